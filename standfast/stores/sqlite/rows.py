"""Rows of the SQLite store: writes sessions, messages and ledger entries, each within one transaction."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from standfast.errors import InputError
from standfast.stores.deletion import closed
from standfast.stores.protocol import LedgerEntry, RunningCall, Session
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import SQLITE, now
from standfast.stores.sql.rows import MESSAGE, Write, conflict, read_entry, session_values, superseded


def _plain(statement: str) -> str:
    return SQLITE.prepared(statement).sql


_SAVE_SESSION, _LAST_SEQ, _COUNT_MESSAGES = map(_plain, (sql.SAVE_SESSION, sql.LAST_SEQ, sql.COUNT_MESSAGES))
_SUPERSEDED_BY = _plain(sql.SUPERSEDED_BY)
_CONTINUE = (
    f"UPDATE agent_sessions SET {sql.ADVANCE}, last_seq = last_seq + :count"
    " WHERE id = :id AND last_seq = :seq AND created_at = coalesce(:created, created_at)"
    f" AND version = coalesce(:version, version) AND NOT EXISTS ({_SUPERSEDED_BY}) AND NOT EXISTS"
    " (SELECT 1 FROM agent_messages WHERE session_id = :id AND write_key = :last_write)"
)
_ADD = (
    f"INSERT INTO agent_messages (session_id, seq, user_id, tenant_id, write_key, {MESSAGE})"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CLAIM, _SAVE_REPLY, _REPLY = map(_plain, (sql.CLAIM, sql.SAVE_REPLY, sql.REPLY))
_ENTRY, _IS_OPEN, _BEGIN_CALL = map(_plain, (sql.ENTRY, f"SELECT {sql.IS_OPEN}", sql.BEGIN_CALL))
_FINISH, _END_CALL = map(_plain, (sql.FINISH, sql.END_CALL))


def append_rows(db: sqlite3.Connection, write: Write) -> int:
    """Save the session and its next messages, once by their key, and return the number of its last message."""
    last = _advance_session(db, write)
    if last is None:
        return int(db.execute(_LAST_SEQ, {"id": write.id}).fetchone()[0])
    insert_messages(db, write, last)
    return last


def _advance_session(db: sqlite3.Connection, write: Write) -> int | None:
    """Save the session and advance its last number. Return it, or None if the write key was used before."""
    session_id, key, expected_seq = write.id, write.write_key, write.expected_seq
    if expected_seq:  # the common case in one statement: the session exists, without another writer
        expected = {"seq": expected_seq, "version": write.expected_version}
        if db.execute(_CONTINUE, {**_values(write), **expected}).rowcount:
            return expected_seq + len(write.rows)
    row = db.execute(
        "SELECT last_seq, version, created_at, last_write FROM agent_sessions WHERE id = ?", (session_id,)
    ).fetchone()
    last, version, created, last_write = row or (0, 0, None, None)
    if key is not None and (key == last_write or _has_key(db, session_id, key)):
        return None
    at_work = db.execute(_SUPERSEDED_BY, {"id": session_id, "run_key": write.session.journal_key}).fetchone()
    if at_work is not None:
        raise superseded(session_id, at_work[0])
    made_anew = created is not None and expected_seq is not None and _created(write.session) not in (None, created)
    if expected_seq not in (None, last) or write.expected_version not in (None, version) or made_anew:
        raise conflict(session_id, last, expected_seq)
    return save_session(db, write)


def _has_key(db: sqlite3.Connection, session_id: str, write_key: str) -> bool:
    row = db.execute("SELECT 1 FROM agent_messages WHERE session_id = ? AND write_key = ?", (session_id, write_key))
    return row.fetchone() is not None


def save_session(db: sqlite3.Connection, write: Write) -> int:
    db.execute(_SAVE_SESSION, _values(write))
    return int(db.execute(_LAST_SEQ, {"id": write.id}).fetchone()[0])


def _values(write: Write) -> dict[str, Any]:
    created, count = _created(write.session), len(write.rows)
    set_here = {"now": now(), "count": count, "created": created, "last_write": write.write_key}
    return {**session_values(write.session), **set_here}


def _created(session: Session) -> str | None:
    return None if session.created_at is None else session.created_at.isoformat()


def append_more(db: sqlite3.Connection, write: Write) -> int | None:
    if db.execute(_COUNT_MESSAGES, {"id": write.id, "count": len(write.rows)}).rowcount == 0:
        return None
    (last,) = db.execute(_LAST_SEQ, {"id": write.id}).fetchone()
    insert_messages(db, write, last)
    return int(last)


def insert_messages(db: sqlite3.Connection, write: Write, last: int) -> None:
    session, key, first = write.session, write.write_key, last - len(write.rows) + 1
    owner = (session.user_id, session.tenant_id)
    db.executemany(
        _ADD,
        [(write.id, seq, *owner, key if seq == first else None, *row) for seq, row in enumerate(write.rows, first)],
    )


def ledger_entry(db: sqlite3.Connection, scope: str, call_key: str, store: str) -> LedgerEntry:
    found = db.execute(_ENTRY, {"scope": scope, "call": call_key}).fetchone()
    if found is None:
        raise InputError(f"Call {call_key} of run {scope} is not in the ledger")
    return read_entry(found, scope, call_key, store)


def claim(
    db: sqlite3.Connection,
    scope: str,
    call_key: str,
    owner: str,
    arguments_hash: str,
    running: RunningCall | None,
    store: str,
) -> LedgerEntry:
    check_open(db, scope, call_key)
    values = {"scope": scope, "call": call_key, "owner": owner, "arguments_hash": arguments_hash, "now": now()}
    is_new = db.execute(_CLAIM, values).rowcount
    entry = LedgerEntry(state="claimed", owner=owner, arguments_hash=arguments_hash)
    if not is_new:
        entry = ledger_entry(db, scope, call_key, store)
    if entry.state != "abandoned" and entry.arguments_hash != arguments_hash:
        raise InputError(f"Call {call_key} of run {scope} was claimed with other arguments; it is not run")
    if running is not None:
        begin_call(db, running)
    return entry


def finish(db: sqlite3.Connection, values: dict[str, Any]) -> bool:
    """Record the result of a call; False if it has one, or another owner."""
    is_done = db.execute(_FINISH, values).rowcount  # RETURNING would take 10 µs more
    db.execute(_END_CALL, values)
    return bool(is_done)


def check_open(db: sqlite3.Connection, scope: str, call_key: str) -> None:
    """Refuse a call that has no entry and belongs to a deleted session.

    Raises:
        SessionConflictError: the call belongs to a deleted session.
    """
    values = {"scope": scope, "call": call_key, "session": scope.rpartition("/")[0]}
    if not db.execute(_IS_OPEN, values).fetchone()[0]:
        raise closed(scope)


def begin_call(db: sqlite3.Connection, running: RunningCall) -> None:
    db.execute(_BEGIN_CALL, dict(running))


def save_reply(db: sqlite3.Connection, journal_key: str, turn: int, reply: str) -> str:
    is_new = db.execute(_SAVE_REPLY, {"run": journal_key, "turn": turn, "reply": reply, "now": now()}).rowcount
    return reply if is_new else kept_reply(db, journal_key, turn) or reply


def append_reply(db: sqlite3.Connection, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
    kept = save_reply(db, journal_key, turn, reply)
    if kept == reply:
        for write in writes:
            append_rows(db, write)
    return kept


def kept_reply(db: sqlite3.Connection, journal_key: str, turn: int) -> str | None:
    row = db.execute(_REPLY, {"run": journal_key, "turn": turn}).fetchone()
    return None if row is None else str(row[0])
