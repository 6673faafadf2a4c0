"""The tables of a PostgreSQL store, for moving it; see `tables`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from standfast.stores.postgres.database import Address, Database, batch_of
from standfast.stores.postgres.errors import translated
from standfast.stores.sql.dialect import Query, Row, postgres
from standfast.stores.sql.rows import index_key
from standfast.stores.sql.tables import SQLTables
from standfast.stores.tables import check_times, moment

T = TypeVar("T")

_TIME = "timestamp with time zone"
_COLUMNS = (
    "SELECT column_name::text, data_type::text FROM information_schema.columns"
    " WHERE table_schema = :schema AND table_name = :name ORDER BY ordinal_position"
)
_REFUSE = """
    CREATE FUNCTION @refuse_writes() RETURNS trigger LANGUAGE plpgsql AS
    'DECLARE said text; BEGIN SELECT words INTO said FROM @store_closed; RAISE EXCEPTION ''this store %'', said; END'
"""


class Connection:
    """A connection outside its store's pool."""

    def __init__(self, address: Address) -> None:
        self._address, self._dialect = address, postgres(address.schema)
        self._connection: Any = None

    async def _do(self, work: Callable[[Database], Awaitable[T]]) -> T:
        try:
            if self._connection is None:
                self._connection = await self._address.connect()
            return await work(Database(self._connection, self._address.schema))
        except Exception as error:
            explained = translated(error, self._address.name)
            if explained is error:
                raise
            raise explained from error

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        statement, values = self._dialect.in_order(query)
        return await self._do(lambda db: db.rows(statement.sql, *values))

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        return await self._do(lambda db: batch_of(db, self._dialect, queries))

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class PostgresTables(SQLTables):
    """The tables of a schema."""

    def __init__(self, address: Address) -> None:
        super().__init__(Connection(address), address.name)
        self._schema = address.schema
        self._kinds: dict[str, dict[str, str]] = {}

    async def names(self) -> set[str]:
        query = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = :schema"
        return {name for (name,) in await self._rows(query, schema=self._schema)}

    async def columns(self, table: str) -> list[str]:
        if table not in self._kinds:
            rows = await self._rows(_COLUMNS, schema=self._schema, name=table)
            self._kinds[table] = {name: kind for name, kind in rows}  # noqa: C416
        return list(self._kinds[table])

    async def _inserts(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Query]:
        await self.columns(table)
        kinds = self._kinds[table]
        if table == "agent_sessions":
            check_times(columns, rows)
        values = {f"v{place}": [row[place] for row in rows] for place in range(len(columns))}
        for (name, column), those in zip(enumerate(columns), values.values(), strict=True):
            if kinds[column] == _TIME:
                values[f"v{name}"] = [moment(one) for one in those]
            if column == "call_key":
                values[f"v{name}"] = [index_key(one) for one in those]
        arrays = ", ".join(f":{name}::{kinds[column]}[]" for name, column in zip(values, columns, strict=True))
        into = f"INSERT INTO @{table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
        return [(f"{into} SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING", values)]

    async def finish(self, identity: str) -> None:
        # The next decision follows the copied ones.
        number = f"pg_get_serial_sequence('\"{self._schema}\".gate_decisions', 'number')"
        last = "coalesce((SELECT max(number) FROM @gate_decisions), 0) + 1"
        await self._rows(f"SELECT setval({number}, {last}, false)")
        await super().finish(identity)

    def _refuse(self, tables: Sequence[str], words: str) -> list[Query]:
        refuse = " FOR EACH STATEMENT EXECUTE FUNCTION @refuse_writes()"
        triggers = (f"CREATE TRIGGER closed BEFORE INSERT OR UPDATE OR DELETE ON @{table}{refuse}" for table in tables)
        return [(_REFUSE, {}), *((trigger, {}) for trigger in triggers)]

    async def _permit(self) -> list[Query]:
        return [("DROP FUNCTION IF EXISTS @refuse_writes() CASCADE", {})]
