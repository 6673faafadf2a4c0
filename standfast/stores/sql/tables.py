"""The tables of an SQL store, for moving it; see `tables`. Every write may be repeated."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

from standfast.stores.sql.dialect import Query, Row, Statements, verbatim
from standfast.stores.tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    CLOSED,
    KEYS,
    TIMES,
    Progress,
    Sum,
    check_whole_key,
    moment,
)

# D1 has its own tables, and wrangler adds one.
NAMES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 4) <> '_cf_'"
    " AND substr(name, 1, 7) <> 'sqlite_' AND name <> 'd1_migrations' ORDER BY name"
)
_TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND substr(name, 1, 7) = 'closed_'"
_COPY = "CREATE TABLE IF NOT EXISTS @store_copy (name TEXT PRIMARY KEY, after TEXT, rows BIGINT, digest TEXT)"
_NOTE = (
    "INSERT INTO @store_copy VALUES (:name, :after, :rows, :digest) ON CONFLICT (name) DO UPDATE"
    " SET after = excluded.after, rows = excluded.rows, digest = excluded.digest"
)
_NO_VERSION = f"DELETE FROM @standfast_schema WHERE version = {CLOSED}"
_VERSION = f"INSERT INTO @standfast_schema (version, oldest_reader) VALUES ({CLOSED}, {CLOSED})"


class SQLTables:
    """The tables of a database without other users, as SQLite and D1 have them.

    Args:
        executor: runs statements on a separate connection, even if the store is closed.
        name: the store's name in messages.
    """

    _held = "SELECT name FROM @holds UNION SELECT name FROM @workers"
    _batch_bytes = BATCH_BYTES

    def __init__(self, executor: Statements, name: str) -> None:
        self._executor, self.name = executor, name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._executor.close()

    async def _rows(self, text: str, **values: Any) -> list[Row]:
        return await self._executor.rows((text, values))

    async def names(self) -> set[str]:
        return {name for (name,) in await self._rows(NAMES)}

    async def columns(self, table: str) -> list[str]:
        return [name for (name,) in await self._rows("SELECT name FROM pragma_table_info(:name)", name=table)]

    async def held_names(self) -> list[str]:
        return [name for (name,) in await self._rows(self._held)]

    async def has_holds(self) -> bool:
        return False  # all have names

    async def identity(self) -> str:
        found = await self._rows("SELECT id FROM @store_identity")
        return str(found[0][0]) if found else ""

    async def is_empty(self) -> bool:
        query = " OR ".join(f"EXISTS (SELECT 1 FROM @{table})" for table in KEYS)
        return not (await self._rows(f"SELECT {query} AS has_rows"))[0][0]

    # --- rows ---

    async def read(self, table: str, columns: Sequence[str], after: Row | None) -> list[Row]:
        key = ", ".join(KEYS[table])
        known = {f"k{place}": value for place, value in enumerate(after or ())}
        where = f" WHERE ({key}) > ({', '.join(f':{name}' for name in known)})" if known else ""
        length = " + ".join(f"coalesce(BYTES[CAST({column} AS text)], 0)" for column in columns)
        # The sizes first, so that the fetched rows always fit into memory, and into an answer.
        sizes = f"SELECT {length} AS size FROM @{table}{where} ORDER BY {key} LIMIT {BATCH_ROWS}"
        count, taken = 0, 0
        for (size,) in await self._rows(sizes, **known):
            taken += size + 100
            if count and taken > self._batch_bytes:
                break
            count += 1
        query = f"SELECT {', '.join(columns)} FROM @{table}{where} ORDER BY {key} LIMIT :count"
        return await self._rows(query, **known, count=count) if count else []

    async def write(self, table: str, columns: Sequence[str], rows: Sequence[Row], progress: Progress) -> None:
        note = {"name": table, "after": json.dumps(progress.after), "rows": progress.sum.rows}
        note["digest"] = f"{progress.sum.digest:x}"
        await self._executor.batch([*await self._inserts(table, columns, rows), (_NOTE, note)])

    async def _inserts(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Query]:
        """Return the statements that write rows of another store."""
        names = [f"v{place}" for place in range(len(columns))]
        into = f"INSERT INTO @{table} ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in names)})"
        insert = f"{into} ON CONFLICT DO NOTHING"
        return [(insert, dict(zip(names, map(self._value, columns, row), strict=True))) for row in rows]

    def _value(self, column: str, value: Any) -> Any:
        """Return a value of another store in the form of a column."""
        if column == "call_key":
            check_whole_key(value)
        if column in TIMES and isinstance(value, datetime):
            at = moment(value)
            return None if at is None else at.astimezone(UTC).isoformat()
        return value

    # --- progress ---

    async def begin(self, source: str, words: str) -> None:
        fill = {"name": "", "after": source, "rows": None, "digest": None}
        await self._executor.batch([(_COPY, {}), (_NOTE, fill), *_close(words)])

    async def source(self) -> str | None:
        if "store_copy" not in await self.names():
            return None
        found = await self._rows("SELECT after FROM @store_copy WHERE name = ''")
        return str(found[0][0]) if found else None

    async def progress(self, table: str) -> Progress:
        found = await self._rows("SELECT after, rows, digest FROM @store_copy WHERE name = :name", name=table)
        if not found:
            return Progress()
        after, rows, digest = found[0]
        return Progress(tuple(json.loads(after)), Sum(rows, int(digest, 16)))

    async def finish(self, identity: str) -> None:
        take = "UPDATE @store_identity SET id = :identity", {"identity": identity}
        await self._executor.batch([("DROP TABLE IF EXISTS @store_copy", {}), take, *await self._open()])

    # --- closing ---

    async def closed(self) -> str | None:
        if "store_closed" not in await self.names():
            return None
        return str((await self._rows("SELECT words FROM @store_closed"))[0][0])

    async def close(self, words: str) -> None:
        tables = sorted(await self.names() - {"store_closed", "standfast_schema"})
        await self._executor.batch([*await self._open(), *_close(words), *self._refuse(tables, words)])

    async def reopen(self) -> None:
        await self._executor.batch(await self._open())

    async def _open(self) -> list[Query]:
        return [*await self._permit(), ("DROP TABLE IF EXISTS @store_closed", {}), (_NO_VERSION, {})]

    def _refuse(self, tables: Sequence[str], words: str) -> list[Query]:
        """Return the statements that make tables refuse writes."""
        said = f"this store {words}".replace("'", "''")
        return [
            verbatim(
                f"CREATE TRIGGER closed_{table}_{act} BEFORE {act} ON {table} BEGIN SELECT RAISE(ABORT, '{said}'); END"
            )
            for table in tables
            for act in ("INSERT", "UPDATE", "DELETE")
        ]

    async def _permit(self) -> list[Query]:
        """Return the statements that make all tables accept writes."""
        return [(f"DROP TRIGGER IF EXISTS {name}", {}) for (name,) in await self._rows(_TRIGGERS)]


def _close(words: str) -> list[Query]:
    return [
        ("CREATE TABLE IF NOT EXISTS @store_closed (words TEXT NOT NULL)", {}),
        ("DELETE FROM @store_closed", {}),
        ("INSERT INTO @store_closed VALUES (:words)", {"words": words}),
        (_NO_VERSION, {}),
        (_VERSION, {}),
    ]
