"""Sessions, ledger and replies in one schema of a PostgreSQL database, for workers on any number of machines."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from standfast.errors import StoreError
from standfast.stores.partial_answers import PartialAnswer, run_of
from standfast.stores.postgres import ledger, rows
from standfast.stores.postgres.addresses import checked_address
from standfast.stores.postgres.connections import Connections
from standfast.stores.postgres.notifications import channel, topic
from standfast.stores.postgres.tables import PostgresTables
from standfast.stores.protocol import DecisionRecord, LedgerEntry, RunningCall, Session
from standfast.stores.schema_versions import lost_identity
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import Query
from standfast.stores.sql.rows import (
    Write,
    decision_values,
    index_key,
)
from standfast.stores.sql.store import SQLStore
from standfast.stores.waits import Board, Wait


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
