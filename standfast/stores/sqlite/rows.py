"""Rows of the SQLite store: writes sessions, messages and ledger entries, each within one transaction."""

import sqlite3
from typing import Any

from standfast.errors import InputError
from standfast.stores.deletion import closed
from standfast.stores.protocol import LedgerEntry, RunningCall, Session, first_kept_index
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import SQLITE, Row, now
from standfast.stores.sql.rows import MESSAGE, conflict, read_entry, session_values, superseded


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
_ROLES, _SAVE_REPLY, _REPLY = map(_plain, (sql.ROLES, sql.SAVE_REPLY, sql.REPLY))
_CLAIM, _FINISH, _ABANDON, _SETTLE = map(_plain, (sql.CLAIM, sql.FINISH, sql.ABANDON, sql.SETTLE))
_ENTRY, _IS_OPEN, _BEGIN_CALL, _END_CALL = map(
    _plain, (sql.ENTRY, f"SELECT {sql.IS_OPEN}", sql.BEGIN_CALL, sql.END_CALL)
)


def append_rows(
    db: sqlite3.Connection,
    session: Session,
    rows: list[Row],
    write_key: str | None,
    expected_seq: int | None,
    expected_version: int | None = None,
) -> int:
    """Save the session and its next messages, once by their key, and return the number of its last message."""
    last = _advance_session(db, session, len(rows), write_key, expected_seq, expected_version)
    if last is None:
        return int(db.execute(_LAST_SEQ, {"id": session.id}).fetchone()[0])
    insert_messages(db, session.id, last - len(rows), rows, session, write_key)
    return last


def _advance_session(
    db: sqlite3.Connection,
    session: Session,
    count: int,
    write_key: str | None,
    expected_seq: int | None,
    expected_version: int | None,
) -> int | None:
    """Save the session and advance its last number. Return it, or None if the write key was used before."""
    session_id = session.id
    if expected_seq:  # the common case in one statement: the session exists and there was no other writer
        done = db.execute(
            _CONTINUE,
            {**_values(session, count, write_key), "seq": expected_seq, "version": expected_version},
        ).rowcount
        if done:
            return expected_seq + count
    row = db.execute(
        "SELECT last_seq, version, created_at, last_write FROM agent_sessions WHERE id = ?", (session_id,)
    ).fetchone()
    last, version, created, last_write = row or (0, 0, None, None)
    if write_key is not None and (write_key == last_write or _has_key(db, session_id, write_key)):
        return None
    at_work = db.execute(_SUPERSEDED_BY, {"id": session_id, "run_key": session.journal_key}).fetchone()
    if at_work is not None:
        raise superseded(session_id, at_work[0])
    made_anew = created is not None and expected_seq is not None and _created(session) not in (None, created)
    if expected_seq not in (None, last) or expected_version not in (None, version) or made_anew:
        raise conflict(session_id, last, expected_seq)
    return save_session(db, session, count, write_key)


def _has_key(db: sqlite3.Connection, session_id: str, write_key: str) -> bool:
    row = db.execute("SELECT 1 FROM agent_messages WHERE session_id = ? AND write_key = ?", (session_id, write_key))
    return row.fetchone() is not None


def save_session(db: sqlite3.Connection, session: Session, count: int, write_key: str | None = None) -> int:
    db.execute(_SAVE_SESSION, _values(session, count, write_key))
    return int(db.execute(_LAST_SEQ, {"id": session.id}).fetchone()[0])


def _values(session: Session, count: int, write_key: str | None) -> dict[str, Any]:
    set_here = {"now": now(), "count": count, "created": _created(session), "last_write": write_key}
    return {**session_values(session), **set_here}


def _created(session: Session) -> str | None:
    return None if session.created_at is None else session.created_at.isoformat()


def append_more(db: sqlite3.Connection, session_id: str, rows: list[Row], session: Session) -> None:
    if db.execute(_COUNT_MESSAGES, {"id": session_id, "count": len(rows)}).rowcount == 0:
        raise InputError(f"Session {session_id} must be saved before messages are appended to it")
    (last,) = db.execute(_LAST_SEQ, {"id": session_id}).fetchone()
    insert_messages(db, session_id, last - len(rows), rows, session, None)


def insert_messages(
    db: sqlite3.Connection,
    session_id: str,
    last: int,
    rows: list[Row],
    session: Session,
    write_key: str | None,
) -> None:
    db.executemany(
        f"INSERT INTO agent_messages (session_id, seq, user_id, tenant_id, write_key, {MESSAGE})"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (session_id, seq, session.user_id, session.tenant_id, write_key if seq == last + 1 else None, *row)
            for seq, row in enumerate(rows, last + 1)
        ],
    )


def prune_rows(db: sqlite3.Connection, session_id: str, keep: int) -> None:
    rows = db.execute(_ROLES, {"id": session_id}).fetchall()
    first = first_kept_index([role for _, role in rows], keep)
    if first:
        before = rows[first][0] if first < len(rows) else rows[-1][0] + 1
        db.execute("DELETE FROM agent_messages WHERE session_id = ? AND seq < ?", (session_id, before))


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


def finish(db: sqlite3.Connection, scope: str, call_key: str, owner: str, state: str, result: str, store: str) -> bool:
    values = {"scope": scope, "call": call_key, "owner": owner, "state": state, "result": result}
    is_done = db.execute(_FINISH, values).rowcount
    db.execute(_END_CALL, {"owner": owner})
    if is_done:
        return True
    entry = ledger_entry(db, scope, call_key, store)
    return (entry.owner, entry.state, entry.result) == (owner, state, result)


def abandon(db: sqlite3.Connection, scope: str, call_key: str, owner: str, store: str) -> LedgerEntry:
    db.execute(_ABANDON, {"scope": scope, "call": call_key, "owner": owner})
    db.execute(_END_CALL, {"owner": owner})
    return ledger_entry(db, scope, call_key, store)


def settle(db: sqlite3.Connection, scope: str, call_key: str, store: str) -> LedgerEntry:
    check_open(db, scope, call_key)
    db.execute(_SETTLE, {"scope": scope, "call": call_key})
    return ledger_entry(db, scope, call_key, store)


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


def kept_reply(db: sqlite3.Connection, journal_key: str, turn: int) -> str | None:
    row = db.execute(_REPLY, {"run": journal_key, "turn": turn}).fetchone()
    return None if row is None else str(row[0])
