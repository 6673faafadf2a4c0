"""Rows of the SQLite store: writes sessions, messages and ledger entries, each within one transaction."""

import sqlite3
from datetime import UTC, datetime
from typing import Any

from standfast.errors import InputError
from standfast.stores.deletion import closed
from standfast.stores.kept_values import reading
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import DecisionRecord, LedgerEntry, RunningCall, Session, first_kept_index
from standfast.stores.rows import MESSAGE, WORK, conflict, decision_values, named, session_values
from standfast.stores.sqlite import statements as sql
from standfast.stores.workers import AtWork


def append_rows(
    db: sqlite3.Connection,
    session: Session,
    rows: list[tuple[Any, ...]],
    write_key: str | None,
    expected_seq: int | None,
    expected_version: int | None = None,
) -> int:
    """Save the session and its next messages, once by their key, and return the number of its last message."""
    last = _advance_session(db, session, len(rows), write_key, expected_seq, expected_version)
    if last is None:
        return int(db.execute(sql.LAST_SEQ, {"id": session.id}).fetchone()[0])
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
            f"UPDATE agent_sessions SET {sql.ADVANCE}, last_seq = last_seq + :count"
            " WHERE id = :id AND last_seq = :seq AND created_at = coalesce(:created, created_at)"
            " AND version = coalesce(:version, version) AND NOT EXISTS"
            " (SELECT 1 FROM agent_messages WHERE session_id = :id AND write_key = :last_write)",
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
    made_anew = created is not None and expected_seq is not None and _created(session) not in (None, created)
    if expected_seq not in (None, last) or expected_version not in (None, version) or made_anew:
        raise conflict(session_id, last, expected_seq)
    return save_session(db, session, count, write_key)


def _has_key(db: sqlite3.Connection, session_id: str, write_key: str) -> bool:
    row = db.execute("SELECT 1 FROM agent_messages WHERE session_id = ? AND write_key = ?", (session_id, write_key))
    return row.fetchone() is not None


def save_session(db: sqlite3.Connection, session: Session, count: int, write_key: str | None = None) -> int:
    db.execute(sql.SAVE_SESSION, _values(session, count, write_key))
    return int(db.execute(sql.LAST_SEQ, {"id": session.id}).fetchone()[0])


def _values(session: Session, count: int, write_key: str | None) -> dict[str, Any]:
    set_here = {"now": now(), "count": count, "created": _created(session), "last_write": write_key}
    return {**session_values(session), **set_here}


def _created(session: Session) -> str | None:
    return None if session.created_at is None else session.created_at.isoformat()


def insert_messages(
    db: sqlite3.Connection,
    session_id: str,
    last: int,
    rows: list[tuple[Any, ...]],
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
    rows = db.execute(sql.ROLES, {"id": session_id}).fetchall()
    first = first_kept_index([role for _, role in rows], keep)
    if first:
        before = rows[first][0] if first < len(rows) else rows[-1][0] + 1
        db.execute("DELETE FROM agent_messages WHERE session_id = ? AND seq < ?", (session_id, before))


def ledger_entry(db: sqlite3.Connection, scope: str, call_key: str) -> LedgerEntry:
    entry = find_entry(db, scope, call_key)
    if entry is None:
        raise InputError(f"Call {call_key} of run {scope} is not in the ledger")
    return entry


def find_entry(db: sqlite3.Connection, scope: str, call_key: str) -> LedgerEntry | None:
    row = db.execute(sql.ENTRY, {"scope": scope, "call": call_key}).fetchone()
    if row is None:
        return None
    state, owner, arguments_hash, result, at = row
    path = db.execute("PRAGMA database_list").fetchone()[2]
    with reading(f"call {call_key} of run {scope} in the ledger of {path}"):
        return LedgerEntry(
            state=state,
            owner=owner,
            arguments_hash=arguments_hash,
            result=result,
            claimed_at=None if at is None else datetime.fromisoformat(at),
        )


def claim(
    db: sqlite3.Connection, scope: str, call_key: str, owner: str, arguments_hash: str, running: RunningCall | None
) -> LedgerEntry:
    check_open(db, scope, call_key)
    values = {"scope": scope, "call": call_key, "owner": owner, "arguments_hash": arguments_hash, "now": now()}
    is_new = db.execute(sql.CLAIM, values).rowcount
    entry = LedgerEntry(state="claimed", owner=owner, arguments_hash=arguments_hash)
    if not is_new:
        entry = ledger_entry(db, scope, call_key)
    if entry.state != "abandoned" and entry.arguments_hash != arguments_hash:
        raise InputError(f"Call {call_key} of run {scope} was claimed with other arguments; it is not run")
    if running is not None:
        begin_call(db, running)
    return entry


def settle(db: sqlite3.Connection, scope: str, call_key: str) -> LedgerEntry:
    check_open(db, scope, call_key)
    db.execute(sql.SETTLE, {"scope": scope, "call": call_key})
    return ledger_entry(db, scope, call_key)


def check_open(db: sqlite3.Connection, scope: str, call_key: str) -> None:
    """Refuse a call that has no entry and belongs to a deleted session.

    Raises:
        SessionConflictError: the call belongs to a deleted session.
    """
    values = {"scope": scope, "call": call_key, "session": scope.rpartition("/")[0]}
    if not db.execute(f"SELECT {sql.IS_OPEN}", values).fetchone()[0]:
        raise closed(scope)


def begin_work(db: sqlite3.Connection, work: AtWork, instead_of: AtWork | None) -> AtWork:
    if instead_of is not None:
        end_work(db, instead_of)
    db.execute(sql.BEGIN_WORK, dict(work))
    return find_work(db, work.session_id)[0]


def end_work(db: sqlite3.Connection, work: AtWork) -> None:
    db.execute(sql.END_WORK, dict(work))


def find_work(db: sqlite3.Connection, session_id: str | None) -> list[AtWork]:
    rows = db.execute(sql.WORK_ON, {"id": session_id})
    return [AtWork(**named(WORK, row)) for row in rows]


def begin_call(db: sqlite3.Connection, running: RunningCall) -> None:
    db.execute(sql.BEGIN_CALL, dict(running))


def record_decision(db: sqlite3.Connection, record: DecisionRecord) -> None:
    db.execute(sql.RECORD_DECISION, decision_values(record))


def save_reply(db: sqlite3.Connection, journal_key: str, turn: int, reply: str) -> str:
    is_new = db.execute(sql.SAVE_REPLY, {"run": journal_key, "turn": turn, "reply": reply, "now": now()}).rowcount
    return reply if is_new else kept_reply(db, journal_key, turn) or reply


def kept_reply(db: sqlite3.Connection, journal_key: str, turn: int) -> str | None:
    row = db.execute(sql.REPLY, {"run": journal_key, "turn": turn}).fetchone()
    return None if row is None else str(row[0])


def now() -> str:
    return datetime.now(UTC).isoformat()


def add_partial(db: sqlite3.Connection, journal_key: str, part: PartialAnswer) -> None:
    """Add a part of an answer; the first part of a later attempt replaces the earlier attempt."""
    values = {**dict(part), "run": journal_key}
    if not db.execute(sql.EXTEND_WORDS, values).rowcount and part.offset == 0:
        db.execute(sql.DROP_OLD_WORDS)
        db.execute(sql.BEGIN_WORDS, values)


def load_partial(db: sqlite3.Connection, journal_key: str, after: PartialAnswer | None) -> PartialAnswer | None:
    turn, attempt, end = (0, "", 0) if after is None else (after.turn, after.attempt, after.end)
    row = db.execute(sql.WORDS, {"run": journal_key, "turn": turn, "attempt": attempt, "end": end}).fetchone()
    return None if row is None else PartialAnswer(turn=row[0], attempt=row[1], offset=row[2], text=row[3])
