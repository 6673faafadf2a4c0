"""Connections to a PostgreSQL store: a pool for each event loop that uses the store, since a connection belongs to one.

A loop's connections are closed by `close`, at the end of the loop (`asyncio.run` ends it in order), or when the last
reference to their store is gone.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.errors import StoreError
from standfast.stores.event_loops import EventLoops
from standfast.stores.postgres.database import CONNECT, NAME, Address, Database, batch_of, rows_of, set_up
from standfast.stores.postgres.errors import is_away, translated
from standfast.stores.postgres.holds import Holds
from standfast.stores.postgres.migrations import MIGRATIONS
from standfast.stores.postgres.notifications import News
from standfast.stores.postgres.schema import lock_key, prepare
from standfast.stores.sql.dialect import Plan, Query, Row, postgres

if TYPE_CHECKING:
    from asyncpg import Connection, Pool

    from standfast.stores.postgres.database import Address

T = TypeVar("T")

REPEATS = (0.0, 0.1, 0.4)  # seconds before an operation is repeated after its connection was lost
# Locks belong to a database in a server.
_SCOPE = (
    "SELECT (SELECT system_identifier FROM pg_control_system()), d.oid, n.oid FROM pg_catalog.pg_namespace AS n,"
    " pg_catalog.pg_database AS d WHERE n.nspname = $1 AND d.datname = current_database()"
)

_LOOKS = 20
_LOOK_EVERY = 0.1  # seconds
_HOLDER = (
    "SELECT pid = pg_backend_pid() FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = $1"
)


async def check_session_mode(address: "Address", connection: "Connection") -> None:
    """Refuse a pooler that does not keep a client on one server connection.

    At the start, a server names the process that serves a connection, and a pooler cannot name it truthfully. Only
    behind a pooler, a lock is taken to check whether it persists, and ends with its connection.

    Raises:
        StoreError: the pooler does not.
    """
    if await connection.fetchval("SELECT pg_backend_pid()") == connection.get_server_pid():
        return
    key = secrets.randbits(62)
    probe = await address.connect()
    try:
        await probe.fetchval("SELECT pg_advisory_lock($1)", key)
        is_there = await probe.fetchval(_HOLDER, key)
    finally:
        await probe.close()
    for _ in range(_LOOKS if is_there else 0):
        if (is_ours := await connection.fetchval(_HOLDER, key)) is None:
            return
        if is_ours:
            await connection.fetchval("SELECT pg_advisory_unlock($1)", key)
            break
        await asyncio.sleep(_LOOK_EVERY)
    raise StoreError(
        f"The store {address.name} is behind a pooler in transaction mode, in which holds belong to anybody; give it "
        "session mode (pool_mode = session), or give the server's own address. Nothing was changed."
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """An event loop's resources, for a database that was checked to be a store.

    Args:
        scope: an id that is unique to the schema, across all servers.
    """

    pool: "Pool"
    holds: Holds
    scope: str


class Connections:
    """The connections of a store, by event loop."""

    def __init__(self, address: Address) -> None:
        self._loops = EventLoops(partial(LoopConnections, address))
        self._dialect = postgres(address.schema)
        self.here = self._loops.here

    async def do(self, work: Callable[[Database], Awaitable[T]], *, again: bool = True) -> T:
        """Do work on a connection of the running loop; see `LoopConnections.do`."""
        return await self.here().do(work, again=again)

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        statement, values = self._dialect.in_order(query)
        return await self.do(lambda db: db.rows(statement.sql, *values), again=again)

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        return await self.do(lambda db: batch_of(db, self._dialect, queries), again=again)

    async def run(self, plan: Plan, *, name: str, alone_on: str) -> None:
        async def work(db: Database) -> None:
            async with db.transaction():
                await db.rows(f"LOCK TABLE @{alone_on} IN SHARE ROW EXCLUSIVE MODE")
                running = plan()
                queries = next(running)
                try:
                    while True:
                        queries = running.send(await rows_of(db, self._dialect, queries))
                except StopIteration as planned:
                    await rows_of(db, self._dialect, planned.value)

        await self.do(work)

    def holder(self, name: str) -> str | None:
        holds = self.here().holds
        return None if holds is None else holds.holder(name)

    async def opened(self) -> "Opened":
        """Return the resources of the running loop, after checking that the database is a store."""
        return await self.here().opened()

    async def close(self) -> None:
        """Finish the current operations, and close all connections. The next operation opens new ones."""
        await self._loops.close()


class LoopConnections:
    """The connections of one event loop: a pool, opened by the first operation, and one for its holds.

    A third kind, `news`, is opened while an answer is viewed.
    """

    def __init__(self, address: Address) -> None:
        self._address, self.news = address, News(address)
        self._opening: asyncio.Task[Opened] | None = None
        self._ending: AsyncGenerator[None, None] | None = None
        self._doing = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def do(self, work: Callable[[Database], Awaitable[T]], *, again: bool = True) -> T:
        """Do work on a connection.

        Args:
            again: whether the work may be repeated after its connection was lost, because running it twice is safe.

        Raises:
            StoreError: explaining the failure.
        """
        self._doing += 1
        self._is_idle.clear()
        try:
            for delay in (*REPEATS, None):
                try:
                    async with (await self._open_once()).pool.acquire() as connection:
                        return await work(Database(connection, self._address.schema))
                except Exception as error:
                    if delay is None or not again or not is_away(error):
                        explained = translated(error, self._address.name)
                        if explained is error:
                            raise
                        raise explained from error
                await asyncio.sleep(delay)
            raise AssertionError
        finally:
            self._doing -= 1
            if not self._doing:
                self._is_idle.set()

    @property
    def holds(self) -> Holds | None:
        """The holds that were taken here; None if there were none yet."""
        opening = self._opening
        return None if opening is None or not opening.done() or _failed(opening) else opening.result().holds

    async def opened(self) -> Opened:
        """Open the connections that are not open.

        Raises:
            StoreError: explaining the failure.
        """
        if self.holds is None:
            await self.do(_nothing)
        return await self._open_once()

    async def _open_once(self) -> Opened:
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_failed)
        return await asyncio.shield(self._opening)

    async def _open(self) -> Opened:
        import asyncpg

        class Kept(asyncpg.Connection):  # type: ignore[misc]
            """A connection that work leaves clean, so that a release does not cost a round trip."""

            __slots__ = ()

            def get_reset_query(self) -> str:
                return ""

        address = self._address
        pool = await address.reading_address(
            asyncpg.create_pool(
                address.dsn,
                min_size=0,
                max_size=address.max_connections,
                connection_class=Kept,
                init=set_up,
                timeout=CONNECT,
                server_settings=NAME,
            )
        )
        try:
            connecting = pool.acquire()
            connection = await address.reading_address(connecting)
            try:
                await check_session_mode(address, connection)
                await prepare(connection, address.name, address.schema, MIGRATIONS)
                system, database, schema = await connection.fetchrow(_SCOPE, address.schema) or (0, 0, 0)
            finally:
                await pool.release(connection)
        except BaseException:
            pool.terminate()
            raise
        holds = Holds(address, schema)
        self._ending = _close_at_the_end(pool, holds)
        await anext(self._ending)
        scope = lock_key(str(system), str(database), str(schema))
        return Opened(pool, holds, f"{scope % 2**64:016x}")

    async def close(self) -> None:
        """Finish the current operations, and close the connections."""
        await self._is_idle.wait()
        await self.news.close()
        ending, self._ending, self._opening = self._ending, None, None
        if ending is not None:
            await ending.aclose()


async def _nothing(_: Database) -> None:
    pass


def _failed(task: "asyncio.Task[Any]") -> bool:
    return task.cancelled() or task.exception() is not None


async def _close_at_the_end(pool: "Pool", holds: Holds) -> AsyncGenerator[None, None]:
    """Wait at a `yield`. The end of a loop closes generators that wait at one, and so does the garbage collector."""
    try:
        yield
    finally:
        try:
            await holds.close()
            await asyncio.wait_for(pool.close(), CONNECT)
        except BaseException:
            pool.terminate()
            raise
