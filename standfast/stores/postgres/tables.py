"""The tables of a PostgreSQL store, for moving it; see `tables`."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from standfast.stores.postgres.database import Address, Database
from standfast.stores.postgres.errors import translated
from standfast.stores.postgres.schema import closed_words
from standfast.stores.sql.rows import index_key
from standfast.stores.tables import BATCH_BYTES, BATCH_ROWS, CLOSED, KEYS, Progress, Row, Sum, check_times, moment

T = TypeVar("T")

_TIME = "timestamp with time zone"
_CLOSE = """
    CREATE TABLE @store_closed (words text NOT NULL);
    INSERT INTO @standfast_schema (version, oldest_reader) VALUES ({closed}, {closed})
"""
_REOPEN = """
    DROP TABLE IF EXISTS @store_closed;
    DROP FUNCTION IF EXISTS @refuse_writes() CASCADE;
    DELETE FROM @standfast_schema WHERE version = {closed}
"""
_REFUSE = """
    CREATE FUNCTION @refuse_writes() RETURNS trigger LANGUAGE plpgsql AS
    'DECLARE said text; BEGIN SELECT words INTO said FROM @store_closed; RAISE EXCEPTION ''this store %'', said; END'
"""


class PostgresTables:
    """The tables of a schema, on one connection outside its store's pool."""

    def __init__(self, address: Address) -> None:
        self.name = address.name
        self._address = address
        self._connection: Any = None
        self._kinds: dict[str, dict[str, str]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def _do(self, work: Callable[[Database], Awaitable[T]]) -> T:
        try:
            if self._connection is None:
                self._connection = await self._address.connect()
            return await work(Database(self._connection, self._address.schema))
        except Exception as error:
            explained = translated(error, self.name)
            if explained is error:
                raise
            raise explained from error

    async def _write(self, work: Callable[[Database], Awaitable[object]]) -> None:
        async def write(db: Database) -> None:
            async with db.transaction():
                await work(db)

        await self._do(write)

    async def closed(self) -> str | None:
        return await self._do(lambda db: closed_words(db.rest(), self._address.schema))

    async def names(self) -> set[str]:
        query = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = $1"
        return {name for (name,) in await self._do(lambda db: db.rows(query, self._address.schema))}

    async def held_names(self) -> list[str]:
        query = "SELECT name FROM @holds UNION SELECT name FROM @workers"
        return [name for (name,) in await self._do(lambda db: db.rows(query))]

    async def has_holds(self) -> bool:
        return False  # all have names

    async def is_empty(self) -> bool:
        query = " OR ".join(f"EXISTS (SELECT 1 FROM @{table})" for table in KEYS)
        row = await self._do(lambda db: db.row(f"SELECT {query}"))
        return row is not None and not row[0]

    async def _columns(self, table: str) -> dict[str, str]:
        if table not in self._kinds:
            query = (
                "SELECT column_name::text, data_type::text FROM information_schema.columns"
                " WHERE table_schema = $1 AND table_name = $2 ORDER BY ordinal_position"
            )
            rows = await self._do(lambda db: db.rows(query, self._address.schema, table))
            self._kinds[table] = {name: kind for name, kind in rows}  # noqa: C416
        return self._kinds[table]

    async def columns(self, table: str) -> list[str]:
        return list(await self._columns(table))

    async def read(self, table: str, columns: Sequence[str], after: Row | None) -> list[Row]:
        kinds, key = await self._columns(table), KEYS[table]
        keys, known = ", ".join(key), [] if after is None else list(after)
        where = f"WHERE ({keys}) > ({_places(known)})" if known else ""
        texts = [column for column in columns if kinds[column] == "text"]
        length = " + ".join(f"coalesce(octet_length({column}), 0)" for column in texts)
        # The sizes first, so that the fetched rows always fit into memory.
        sizes = await self._do(
            lambda db: db.rows(
                f"SELECT {keys}, {length} FROM @{table} {where} ORDER BY {keys} LIMIT {BATCH_ROWS}", *known
            )
        )
        taken, last = 0, None
        for *its_key, size in sizes:
            if taken and taken + size > BATCH_BYTES:
                break
            taken, last = taken + size + 100, its_key
        if last is None:
            return []
        upto = f"({keys}) <= ({_places(last, len(known))})"
        where = f"{where} AND {upto}" if where else f"WHERE {upto}"
        query = f"SELECT {', '.join(columns)} FROM @{table} {where} ORDER BY {keys}"
        return await self._do(lambda db: db.rows(query, *known, *last))

    async def write(self, table: str, columns: Sequence[str], rows: Sequence[Row], progress: Progress) -> None:
        kinds = await self._columns(table)
        values = [
            [moment(row[place]) if kinds[column] == _TIME else row[place] for row in rows]
            for place, column in enumerate(columns)
        ]
        arrays = ", ".join(f"${place}::{kinds[column]}[]" for place, column in enumerate(columns, 1))
        if table == "agent_sessions":
            check_times(columns, rows)
        if table == "tool_ledger":
            values[columns.index("call_key")] = [index_key(row[columns.index("call_key")]) for row in rows]

        async def write(db: Database) -> None:
            if rows:
                await db.rows(
                    f"INSERT INTO @{table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
                    f" SELECT * FROM unnest({arrays})",
                    *values,
                )
            await db.rows(
                "INSERT INTO @store_copy VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO UPDATE"
                " SET after = excluded.after, rows = excluded.rows, digest = excluded.digest",
                table,
                json.dumps(progress.after),
                progress.sum.rows,
                f"{progress.sum.digest:x}",
            )

        await self._write(write)

    async def begin(self, source: str, words: str) -> None:
        async def begin(db: Database) -> None:
            await db.rows("CREATE TABLE @store_copy (name text PRIMARY KEY, after text, rows bigint, digest text)")
            await db.rows("INSERT INTO @store_copy (name, after) VALUES ('', $1)", source)
            await _close(db, words)

        await self._write(begin)

    async def source(self) -> str | None:
        if "store_copy" not in await self.names():
            return None
        row = await self._do(lambda db: db.row("SELECT after FROM @store_copy WHERE name = ''"))
        return None if row is None else str(row[0])

    async def progress(self, table: str) -> Progress:
        row = await self._do(lambda db: db.row("SELECT after, rows, digest FROM @store_copy WHERE name = $1", table))
        return Progress() if row is None else Progress(tuple(json.loads(row[0])), Sum(row[1], int(row[2], 16)))

    async def finish(self, identity: str) -> None:
        async def finish(db: Database) -> None:
            await db.rows("DROP TABLE @store_copy")
            await db.rows("UPDATE @store_identity SET id = $1", identity)
            number = "pg_get_serial_sequence($1, 'number')"
            last = "coalesce((SELECT max(number) FROM @gate_decisions), 0) + 1"
            await db.rows(f"SELECT setval({number}, {last}, false)", f'"{self._address.schema}".gate_decisions')
            await _statements(db, _REOPEN)

        await self._write(finish)

    async def identity(self) -> str:
        row = await self._do(lambda db: db.row("SELECT id FROM @store_identity"))
        return "" if row is None else str(row[0])

    async def close(self, words: str) -> None:
        names = await self.names() - {"store_closed", "standfast_schema"}

        async def close(db: Database) -> None:
            await _statements(db, _REOPEN)
            await _close(db, words)
            await db.rows(_REFUSE)
            for table in names:
                await db.rows(
                    f"CREATE TRIGGER closed BEFORE INSERT OR UPDATE OR DELETE ON @{table}"
                    " FOR EACH STATEMENT EXECUTE FUNCTION @refuse_writes()"
                )

        await self._write(close)

    async def reopen(self) -> None:
        await self._write(lambda db: _statements(db, _REOPEN))


async def _close(db: Database, words: str) -> None:
    await _statements(db, _CLOSE)
    await db.rows("INSERT INTO @store_closed VALUES ($1)", words)


async def _statements(db: Database, script: str) -> None:
    for statement in script.format(closed=CLOSED).split(";"):
        await db.rows(statement)


def _places(values: Sequence[Any], after: int = 0) -> str:
    return ", ".join(f"${after + place}" for place in range(1, len(values) + 1))
