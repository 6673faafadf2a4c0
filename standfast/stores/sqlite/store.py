"""Sessions, ledger and replies in one SQLite file."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from standfast.errors import InputError
from standfast.stores.deletion import closed
from standfast.stores.file_holds import SessionLocks, is_any_held
from standfast.stores.protocol import (
    LedgerEntry,
    RunningCall,
    Session,
)
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import SQLITE, Query, Row, now
from standfast.stores.sql.rows import MESSAGE, Write, conflict, read_entry, session_values, superseded
from standfast.stores.sql.store import SQLStore
from standfast.stores.sql.tables import SQLTables
from standfast.stores.sqlite.files import current_place, identity, translated
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.thread import SQLiteThread, rows_of

T = TypeVar("T")


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


class Connection:
    """A connection to a file without other users, used on the event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._db is None:
                self._db = sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
                self._db.execute("PRAGMA synchronous = FULL")
            return work(self._db)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        statement, values = SQLITE.named(query)
        return self.do(lambda db: rows_of(db, statement, values))

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        def work(db: sqlite3.Connection) -> list[list[Row]]:
            db.execute("BEGIN IMMEDIATE")
            try:
                found = [rows_of(db, statement, values) for statement, values in map(SQLITE.named, queries)]
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return found

        return self.do(work)

    async def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class SQLiteTables(SQLTables):
    """The tables of a SQLite file."""

    _held = "SELECT name FROM @workers UNION ALL SELECT id FROM @agent_sessions"

    def __init__(self, path: str) -> None:
        self._connection = Connection(path)
        super().__init__(self._connection, path)

    async def closed(self) -> str | None:
        return await super().closed() if _is_there(self.name) else None

    async def has_holds(self) -> bool:
        return is_any_held(self.name)

    async def identity(self) -> str:
        return self._connection.do(lambda db: identity(db, self.name))


def _is_there(path: str) -> bool:
    return os.path.exists(path)


class SQLiteStore(SQLStore):
    """A durable store in a SQLite file: WAL, synchronous=FULL, foreign keys. Safe to use from several processes.

    Next to it are SQLite's `-wal` and `-shm`, `-lock` with the holds of sessions, and `-mark`. The first operation
    opens the file. `await store.close()`, or leaving `async with store`, closes it. A store also closes when the last
    reference to it is gone.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = _checked(os.fspath(path))
        self._thread = SQLiteThread(self._path, MIGRATIONS)
        super().__init__(self._thread, self._path)
        self._do = self._thread.do
        self._locks = SessionLocks(None if self._path == ":memory:" else self._path)
        self._is_ours = False

    def __repr__(self) -> str:
        return f"sqlite_store({self._path!r})"

    @property
    def path(self) -> str:
        """The path of the file, as given."""
        return self._path

    async def identity(self) -> str:
        return await self._do(lambda db: identity(db, self._path), writes=False)

    def tables(self) -> SQLiteTables:
        return SQLiteTables(self._path)

    async def place(self) -> str:
        return await self._do(lambda db: current_place(db, self._path), writes=False)

    @property
    def shares_holds(self) -> bool:
        return self._locks.shared

    async def hold(self, session_id: str) -> bool:
        if not self._is_ours:  # does not create a file next to it before it is known to be a store
            await self._do(lambda db: None, writes=False)
            self._is_ours = True
        return self._locks.take(session_id)

    async def let_go(self, session_id: str) -> None:
        self._locks.release(session_id)

    # --- sessions and messages ---

    async def save_session(self, session: Session) -> None:
        await self._do(lambda db: save_session(db, Write(session, [])))

    async def _append(self, write: Write) -> int:
        return await self._do(lambda db: append_rows(db, write))

    async def _append_more(self, write: Write) -> int | None:
        return await self._do(lambda db: append_more(db, write))

    # --- ledger and replies ---

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        return await self._do(lambda db: claim(db, scope, call_key, owner, arguments_hash, running, self._name))

    async def _finish(self, values: dict[str, Any]) -> bool:
        return await self._do(lambda db: finish(db, values))

    async def begin_call(self, running: RunningCall) -> None:
        await self._do(lambda db: begin_call(db, running))

    async def _append_reply(self, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
        return await self._do(lambda db: append_reply(db, writes, journal_key, turn, reply))

    async def _save_reply(self, journal_key: str, turn: int, reply: str, held: tuple[str, str] | None) -> str:
        return await self._do(lambda db: save_reply(db, journal_key, turn, reply))

    # --- workers and their sessions ---

    async def hold_scope(self) -> str:
        await self._do(lambda db: None, writes=False)
        return self._locks.scope()


def sqlite_store(path: str | os.PathLike[str]) -> SQLiteStore:
    """Return a durable store in a SQLite file. ":memory:" keeps it in this object.

    If the file is not a database, is read-only, locked or full, or was written by a newer version of standfast, an
    operation raises `StoreError` and says what to do. Nothing is overwritten then.
    """
    return SQLiteStore(path)


def _checked(path: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"sqlite_store needs the path of a file, or ':memory:', got {path!r}")
    # Absolute now: the file is opened later, when the process may have another working directory.
    return path if path == ":memory:" else os.path.realpath(path)
