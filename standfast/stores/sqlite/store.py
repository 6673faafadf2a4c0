"""Sessions, ledger and replies in one SQLite file."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from standfast.errors import InputError
from standfast.stores.file_holds import SessionLocks, is_any_held
from standfast.stores.protocol import (
    LedgerEntry,
    RunningCall,
    Session,
)
from standfast.stores.sql.dialect import SQLITE, Query, Row
from standfast.stores.sql.rows import Write
from standfast.stores.sql.store import SQLStore
from standfast.stores.sql.tables import SQLTables
from standfast.stores.sqlite.files import translated
from standfast.stores.sqlite.identity import current_place, identity
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.rows import (
    append_more,
    append_reply,
    append_rows,
    begin_call,
    claim,
    finish,
    save_reply,
    save_session,
)
from standfast.stores.sqlite.thread import SQLiteThread, rows_of

T = TypeVar("T")


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
