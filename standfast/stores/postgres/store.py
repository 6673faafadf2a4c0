"""Sessions, ledger and replies in one schema of a PostgreSQL database, for workers on any number of machines."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from standfast.errors import StoreError
from standfast.stores.partial_answers import PartialAnswer, run_of
from standfast.stores.postgres import ledger, rows
from standfast.stores.postgres.connections import Connections
from standfast.stores.postgres.database import Address, Database, batch_of, checked_address
from standfast.stores.postgres.errors import translated
from standfast.stores.postgres.notifications import channel, topic
from standfast.stores.protocol import DecisionRecord, LedgerEntry, RunningCall, Session
from standfast.stores.schema_versions import lost_identity
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import Query, Row, postgres
from standfast.stores.sql.rows import (
    Write,
    decision_values,
    index_key,
)
from standfast.stores.sql.store import SQLStore
from standfast.stores.sql.tables import SQLTables
from standfast.stores.tables import check_times, moment
from standfast.stores.waits import Board, Wait

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


class PostgresStore(SQLStore):
    """A durable store in a schema of a PostgreSQL database, shared by workers on any number of machines.

    The first operation connects to the database. `await store.close()`, or leaving `async with store`, ends all
    connections. Those of an event loop also end with the loop, or when the last reference to the store is gone.
    """

    shares_holds = True
    _finds_keys_first = True

    def __init__(self, dsn: str, *, schema: str = "standfast", max_connections: int = 10) -> None:
        self._address = checked_address(dsn, schema, max_connections)
        self._connections = Connections(self._address)
        super().__init__(self._connections, self._address.name)
        self._do = self._connections.do

    def __repr__(self) -> str:
        return f"postgres_store({self._name!r})"

    async def identity(self) -> str:
        row = await self._do(lambda db: db.row("SELECT id FROM @store_identity"))
        if row is None:
            raise lost_identity(self._name)
        return str(row[0])

    def tables(self) -> PostgresTables:
        return PostgresTables(self._address)

    async def place(self) -> str:
        # After a failover or a point-in-time recovery, the server begins another timeline of its log.
        scope, query = (await self._connections.opened()).scope, "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
        try:
            row = await self._do(lambda db: db.row(f"SELECT {query}"))
        except StoreError as error:
            if not str(getattr(error.__cause__, "sqlstate", "")).startswith(("0A", "42")):
                raise
            row = None  # this server does not show it to its users
        return f"{scope}/{'' if row is None else row[0]}"

    async def hold(self, session_id: str) -> bool:
        return await (await self._connections.opened()).holds.take(session_id)

    async def let_go(self, session_id: str) -> None:
        if (holds := self._connections.here().holds) is not None:
            await holds.leave(session_id)

    # --- sessions and messages ---

    async def save_session(self, session: Session) -> None:
        write = Write(session, [], holder=self._connections.holder(session.id))
        await self._do(lambda db: rows.save_session(db, write))

    async def _append(self, write: Write) -> int:
        # Without a key, the second of two writes is one more, or is refused as another writer's.
        return await self._do(lambda db: rows.append_rows(db, write), again=write.write_key is not None)

    async def _append_more(self, write: Write) -> int | None:
        return await self._do(lambda db: rows.append_more(db, write), again=False)

    # --- ledger and replies ---

    @staticmethod
    def _key(call_key: str) -> str:
        return index_key(call_key)

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        return await self._do(
            lambda db: ledger.claim(
                db,
                scope,
                self._key(call_key),
                owner,
                arguments_hash,
                running,
                None if running is None else self._connections.holder(running.worker),
                self._name,
            )
        )

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        values = {"scope": scope, "call": self._key(call_key), "owner": owner}
        found = await self._executor.rows((ledger.ABANDON, values))
        return self._read_entry(found, scope, call_key) if found else await self._entry(scope, call_key)

    async def _finish(self, values: dict[str, Any]) -> bool:
        return bool(await self._executor.rows((ledger.FINISH, values)))

    async def begin_call(self, running: RunningCall) -> None:
        await self._do(lambda db: ledger.begin_call(db, running, self._connections.holder(running.worker)))

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        return await self._do(lambda db: ledger.settle(db, scope, self._key(call_key), self._name))

    async def _append_reply(self, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
        return await self._do(lambda db: rows.append_reply(db, writes, journal_key, turn, reply))

    async def _save_reply(self, journal_key: str, turn: int, reply: str, held: tuple[str, str] | None) -> str:
        return await self._do(lambda db: rows.save_reply(db, journal_key, turn, reply, held))

    def _decision(self, record: DecisionRecord) -> Query:
        return sql.RECORD_DECISION, decision_values(record) | {"at": rows.aware(record.at)}

    # --- workers and their sessions ---

    async def hold_scope(self) -> str:
        return (await self._connections.opened()).scope

    async def add_worker(self, name: str) -> None:
        (await self._connections.opened()).holds.keep_worker(name)
        await super().add_worker(name)

    async def drop_worker(self, name: str) -> None:
        (await self._connections.opened()).holds.drop_worker(name)
        await super().drop_worker(name)

    def _show(self, board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
        return rows.show(board, put, keys)

    # --- partial answers ---

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        news = channel(self._address.schema), topic(run_of(journal_key))
        await self._do(lambda db: ledger.add_partial(db, journal_key, part, news))

    async def load_partial(self, journal_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        return await self._do(lambda db: ledger.load_partial(db, journal_key, after))

    def partial_news(self, journal_key: str) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._connections.here().news.of(journal_key)


def postgres_store(dsn: str, *, schema: str = "standfast", max_connections: int = 10) -> PostgresStore:
    """Return a durable store in a schema of a PostgreSQL database (13 or newer).

    The first operation creates the schema, if the user has the right to. If the database refuses or cannot be reached,
    an operation raises `StoreError` and says what to do; the text never contains the password.

    Args:
        dsn: such as "postgresql://user:password@host/database?sslmode=verify-full". Missing parts come from the
            environment (PGPASSWORD and others, as for psql).
        schema: several stores in one database each have a schema, and do not see each other.
        max_connections: per event loop that uses the store, plus one for its holds.

    Raises:
        ImportError: asyncpg is not installed.
        InputError: the address or the schema cannot be used.
    """
    return PostgresStore(dsn, schema=schema, max_connections=max_connections)
