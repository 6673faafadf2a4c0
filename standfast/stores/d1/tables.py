"""The tables of a D1 store, for moving it; see `tables`."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from standfast.stores.d1.database import D1Binding, Database
from standfast.stores.d1.schema import TABLES, closed_words
from standfast.stores.d1.statements import Statement, chunks, statement
from standfast.stores.tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    CLOSED,
    KEYS,
    TIMES,
    Progress,
    Row,
    Sum,
    check_times,
    check_whole_key,
    moment,
)

_OWN = ("write_key", "gate_decisions")  # columns that only this store has, for repeated writes
_SIZE = BATCH_BYTES // 4  # an answer is one text in JSON
_COPY = "CREATE TABLE IF NOT EXISTS store_copy (name TEXT PRIMARY KEY, after TEXT, rows INTEGER, digest TEXT) STRICT"
_TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND substr(name, 1, 7) = 'closed_'"
_ACTS = ("INSERT", "UPDATE", "DELETE")


class D1Tables:
    """The tables of a database, on a separate binding. Every write may be sent again."""

    def __init__(self, connect: Callable[[], D1Binding], name: str) -> None:
        self.name = name
        self._binding = connect()
        self._db = Database(self._binding, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if (close := getattr(self._binding, "close", None)) is not None:
            await close()

    async def _rows(self, sql: str, **values: Any) -> list[Row]:
        return await self._db.one(statement(sql, **values))

    async def closed(self) -> str | None:
        return await closed_words(self._db)

    async def names(self) -> set[str]:
        return {name for (name,) in await self._rows(TABLES)}

    async def held_names(self) -> list[str]:
        return [name for (name,) in await self._rows("SELECT name FROM holds UNION SELECT name FROM workers")]

    async def has_holds(self) -> bool:
        return False  # all have names

    async def is_empty(self) -> bool:
        query = " OR ".join(f"EXISTS (SELECT 1 FROM {table})" for table in KEYS)
        return not (await self._rows(f"SELECT {query} AS has_rows"))[0][0]

    async def columns(self, table: str) -> list[str]:
        rows = await self._rows("SELECT name FROM pragma_table_info(:name)", name=table)
        return [name for (name,) in rows if (name, table) != _OWN]

    async def read(self, table: str, columns: Sequence[str], after: Row | None) -> list[Row]:
        key = ", ".join(KEYS[table])
        known = {f"k{place}": value for place, value in enumerate(after or ())}
        where = f" WHERE ({key}) > ({', '.join(f':{name}' for name in known)})" if known else ""
        length = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
        # The sizes first, so that no answer is too large to send.
        sizes = f"SELECT {length} AS size FROM {table}{where} ORDER BY {key} LIMIT {BATCH_ROWS}"
        count, taken = 0, 0
        for (size,) in await self._rows(sizes, **known):
            taken += size + 100
            if count and taken > _SIZE:
                break
            count += 1
        query = f"SELECT {', '.join(columns)} FROM {table}{where} ORDER BY {key} LIMIT :count"
        return await self._rows(query, **known, count=count) if count else []

    async def write(self, table: str, columns: Sequence[str], rows: Sequence[Row], progress: Progress) -> None:
        if table == "agent_sessions":
            check_times(columns, rows)
        values = [list(map(_text, columns, row)) for row in rows]
        into = f"INSERT INTO {table} ({', '.join(columns)})"
        parts: list[Statement] = []
        for _, part in chunks(values):
            if len(part) == 1:  # unchanged: as JSON it may be too large
                alone = {f"v{place}": value for place, value in enumerate(part[0])}
                places = ", ".join(f":{name}" for name in alone)
                parts.append(statement(f"{into} VALUES ({places}) ON CONFLICT DO NOTHING", **alone))
            else:
                places = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(columns)))
                query = f"{into} SELECT {places} FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING"
                parts.append(statement(query, rows=part))
        known = (json.dumps(progress.after), progress.sum.rows, f"{progress.sum.digest:x}")
        note = "INSERT OR REPLACE INTO store_copy VALUES (:name, :after, :rows, :digest)"
        values_of_note = dict(zip(("after", "rows", "digest"), known, strict=True))
        await self._db.batch([*parts, statement(note, name=table, **values_of_note)])

    async def begin(self, source: str, words: str) -> None:
        fill = "INSERT OR REPLACE INTO store_copy (name, after) VALUES ('', :source)"
        await self._db.batch([statement(_COPY), statement(fill, source=source), *_close(words)])

    async def source(self) -> str | None:
        if "store_copy" not in await self.names():
            return None
        found = await self._rows("SELECT after FROM store_copy WHERE name = ''")
        return str(found[0][0]) if found else None

    async def progress(self, table: str) -> Progress:
        found = await self._rows("SELECT after, rows, digest FROM store_copy WHERE name = :name", name=table)
        if not found:
            return Progress()
        after, rows, digest = found[0]
        return Progress(tuple(json.loads(after)), Sum(rows, int(digest, 16)))

    async def finish(self, identity: str) -> None:
        take = statement("UPDATE store_identity SET id = :identity", identity=identity)
        await self._db.batch([statement("DROP TABLE IF EXISTS store_copy"), take, *await self._open()])

    async def identity(self) -> str:
        found = await self._rows("SELECT id FROM store_identity")
        return str(found[0][0]) if found else ""

    async def close(self, words: str) -> None:
        said = f"this store {words}".replace("'", "''")
        refuse = [
            Statement(
                f"CREATE TRIGGER closed_{table}_{act} BEFORE {act} ON {table} BEGIN SELECT RAISE(ABORT, '{said}'); END",
                [],
            )
            for table in sorted(await self.names() - {"store_closed", "standfast_schema"})
            for act in _ACTS
        ]
        await self._db.batch([*await self._open(), *_close(words), *refuse])

    async def reopen(self) -> None:
        await self._db.batch(await self._open())

    async def _open(self) -> list[Statement]:
        drops = [f"DROP TRIGGER IF EXISTS {name}" for (name,) in await self._rows(_TRIGGERS)]
        drops += ["DROP TABLE IF EXISTS store_closed", f"DELETE FROM standfast_schema WHERE version = {CLOSED}"]
        return [statement(drop) for drop in drops]


def _close(words: str) -> list[Statement]:
    return [
        statement("CREATE TABLE IF NOT EXISTS store_closed (words TEXT PRIMARY KEY) STRICT"),
        statement("INSERT OR REPLACE INTO store_closed VALUES (:words)", words=words),
        statement(f"INSERT OR REPLACE INTO standfast_schema (version, oldest_reader) VALUES ({CLOSED}, {CLOSED})"),
    ]


def _text(column: str, value: Any) -> Any:
    """Return a value in the form of a D1 column: D1 compares times as texts."""
    if column == "call_key":
        check_whole_key(value)
    if column in TIMES and isinstance(value, datetime | str):
        at = moment(value)
        return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")
    return value
