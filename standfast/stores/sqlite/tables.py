"""The tables of a SQLite store, for moving it; see `tables`."""

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from standfast.stores.locks import is_any_held
from standfast.stores.sqlite.files import closed_words, translated
from standfast.stores.sqlite.identity import identity
from standfast.stores.tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    CLOSED,
    KEYS,
    TIMES,
    Progress,
    Row,
    Sum,
    check_whole_key,
    moment,
    size,
)

T = TypeVar("T")

_COPY = "CREATE TABLE IF NOT EXISTS store_copy (name TEXT PRIMARY KEY, after TEXT, rows INTEGER, digest TEXT) STRICT"


class SQLiteTables:
    """The tables of a SQLite file without other users; one connection, used on the event loop."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = path
        self._db: sqlite3.Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._db is None:
                self._db = sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
                self._db.execute("PRAGMA synchronous = FULL")
            return work(self._db)
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        def do(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            try:
                work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

        self._do(do)

    async def closed(self) -> str | None:
        return self._do(closed_words) if _is_there(self._path) else None

    async def names(self) -> set[str]:
        return self._do(_names)

    async def held_names(self) -> list[str]:
        query = "SELECT name FROM workers UNION ALL SELECT id FROM agent_sessions"
        return self._do(lambda db: [name for (name,) in db.execute(query)])

    async def has_holds(self) -> bool:
        return is_any_held(self._path)

    async def is_empty(self) -> bool:
        return self._do(
            lambda db: all(db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None for table in KEYS)
        )

    async def columns(self, table: str) -> list[str]:
        return self._do(lambda db: [row[1] for row in db.execute(f"PRAGMA table_info({table})")])

    async def read(self, table: str, columns: Sequence[str], after: Row | None) -> list[Row]:
        key = ", ".join(KEYS[table])
        where = "" if after is None else f" WHERE ({key}) > ({', '.join('?' * len(after))})"

        def read(db: sqlite3.Connection) -> list[Row]:
            rows, taken = list[Row](), 0
            found = db.execute(f"SELECT {', '.join(columns)} FROM {table}{where} ORDER BY {key}", after or ())
            while taken < BATCH_BYTES and len(rows) < BATCH_ROWS and (row := found.fetchone()) is not None:
                rows.append(row)
                taken += size(row)
            found.close()
            return rows

        return self._do(read)

    async def write(self, table: str, columns: Sequence[str], rows: Sequence[Row], progress: Progress) -> None:
        values = [tuple(map(_text, columns, row)) for row in rows]

        def write(db: sqlite3.Connection) -> None:
            places = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", values)
            known = (table, json.dumps(progress.after), progress.sum.rows, f"{progress.sum.digest:x}")
            db.execute("INSERT OR REPLACE INTO store_copy VALUES (?, ?, ?, ?)", known)

        self._write(write)

    async def begin(self, source: str, words: str) -> None:
        def begin(db: sqlite3.Connection) -> None:
            db.execute(_COPY)
            db.execute("INSERT INTO store_copy (name, after) VALUES ('', ?)", (source,))
            _close(db, words)

        self._write(begin)

    async def source(self) -> str | None:
        def source(db: sqlite3.Connection) -> str | None:
            if "store_copy" not in _names(db):
                return None
            row = db.execute("SELECT after FROM store_copy WHERE name = ''").fetchone()
            return None if row is None else str(row[0])

        return self._do(source)

    async def progress(self, table: str) -> Progress:
        query = "SELECT after, rows, digest FROM store_copy WHERE name = ?"
        row = self._do(lambda db: db.execute(query, (table,)).fetchone())
        return Progress() if row is None else Progress(tuple(json.loads(row[0])), Sum(row[1], int(row[2], 16)))

    async def finish(self, identity: str) -> None:
        def finish(db: sqlite3.Connection) -> None:
            db.execute("DROP TABLE store_copy")
            db.execute("UPDATE store_identity SET id = ?", (identity,))
            _reopen(db)

        self._write(finish)

    async def identity(self) -> str:
        return self._do(lambda db: identity(db, self._path))

    async def close(self, words: str) -> None:
        def close(db: sqlite3.Connection) -> None:
            _reopen(db)
            _close(db, words)
            said = f"this store {words}".replace("'", "''")
            for table in _names(db) - {"store_closed", "standfast_schema"}:
                for act in ("INSERT", "UPDATE", "DELETE"):
                    db.execute(
                        f"CREATE TRIGGER closed_{table}_{act} BEFORE {act} ON {table}"
                        f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
                    )

        self._write(close)

    async def reopen(self) -> None:
        self._write(_reopen)


def _is_there(path: str) -> bool:
    return os.path.exists(path)


def _names(db: sqlite3.Connection) -> set[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    return {name for (name,) in db.execute(query)}


def _close(db: sqlite3.Connection, words: str) -> None:
    db.execute("CREATE TABLE store_closed (words TEXT NOT NULL) STRICT")
    db.execute("INSERT INTO store_closed VALUES (?)", (words,))
    db.execute("INSERT INTO standfast_schema (version, oldest_reader) VALUES (?, ?)", (CLOSED, CLOSED))


def _reopen(db: sqlite3.Connection) -> None:
    for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'closed_%'"):
        db.execute(f"DROP TRIGGER {trigger}")
    db.execute("DROP TABLE IF EXISTS store_closed")
    db.execute("DELETE FROM standfast_schema WHERE version = ?", (CLOSED,))


def _text(column: str, value: Any) -> Any:
    """Return a value in the form of a SQLite column."""
    if column == "call_key":
        check_whole_key(value)
    if column in TIMES and isinstance(value, datetime):
        at = moment(value)
        return None if at is None else at.astimezone(UTC).isoformat()
    return value
