"""Sessions, ledger and replies in one SQLite file."""

import os
import sqlite3
from collections.abc import Sequence
from typing import Literal

from standfast.errors import InputError
from standfast.messages import Message
from standfast.stores.locks import SessionLocks
from standfast.stores.protocol import (
    Append,
    LedgerEntry,
    RunningCall,
    Session,
)
from standfast.stores.sql.rows import message_rows
from standfast.stores.sql.store import SQLStore
from standfast.stores.sqlite.identity import current_place, identity
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.rows import (
    abandon,
    append_more,
    append_rows,
    begin_call,
    claim,
    finish,
    prune_rows,
    save_reply,
    save_session,
    settle,
)
from standfast.stores.sqlite.tables import SQLiteTables
from standfast.stores.sqlite.thread import SQLiteThread


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
        await self._do(lambda db: save_session(db, session, 0))

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        rows = message_rows(messages)

        await self._do(lambda db: append_more(db, session_id, rows, session))

    async def append_messages_atomic(
        self,
        session_id: str,
        messages: Sequence[Message],
        session: Session,
        *,
        write_key: str | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> int:
        rows = message_rows(messages)
        if session.id != session_id:
            session = session.model_copy(update={"id": session_id})
        return await self._do(lambda db: append_rows(db, session, rows, write_key, expected_seq, expected_version))

    async def prune_messages(self, session_id: str, keep: int) -> None:
        await self._do(lambda db: prune_rows(db, session_id, keep))

    # --- ledger and replies ---

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        return await self._do(lambda db: claim(db, scope, call_key, owner, arguments_hash, running, self._name))

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        return await self._do(lambda db: abandon(db, scope, call_key, owner, self._name))

    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        return await self._do(lambda db: finish(db, scope, call_key, owner, state, result, self._name))

    async def begin_call(self, running: RunningCall) -> None:
        await self._do(lambda db: begin_call(db, running))

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        return await self._do(lambda db: settle(db, scope, call_key, self._name))

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        rows = [message_rows(append.messages) for append in appends]

        def work(db: sqlite3.Connection) -> str:
            kept = save_reply(db, journal_key, turn, reply)
            if kept == reply:
                for append, its_rows in zip(appends, rows, strict=True):
                    append_rows(db, append.session, its_rows, append.write_key, append.expected_seq)
            return kept

        return await self._do(work)

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
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
