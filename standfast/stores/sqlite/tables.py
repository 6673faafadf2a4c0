"""The tables of a SQLite store, for moving it; see `tables`."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from standfast.stores.locks import is_any_held
from standfast.stores.sql.dialect import SQLITE, Query, Row
from standfast.stores.sql.tables import SQLTables
from standfast.stores.sqlite.files import translated
from standfast.stores.sqlite.identity import identity
from standfast.stores.sqlite.thread import rows_of

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
