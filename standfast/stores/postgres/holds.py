"""Holds of a PostgreSQL store, which end with their process, wherever it ran and however it died.

A hold is an advisory lock and a row. The lock belongs to a connection that does nothing else. The server drops the lock
when the connection breaks: at once if the process died, or within seconds if its machine did (TCP keepalive). The row
names the holder, and outlives the connection. This distinguishes two cases:

- The row is gone: the holder has let go.
- The row is there and the lock is free: the holder has died, or it has only lost its connection. A living holder
  reconnects at once and locks the rows that are still in its name. Others wait for it for `GRACE` seconds, and only
  then write their own name into the row.

That name is the fence: a holder whose name is no longer in the row has lost its hold. It never locks again, and its
writes under the hold are refused, since each such write checks the row (see `rows`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from standfast.errors import StoreError
from standfast.stores.event_loops import in_forked_processes
from standfast.stores.postgres.database import Address, Database, dropped_on_error, forget
from standfast.stores.postgres.errors import is_away, translated
from standfast.stores.postgres.schema import lock_key

if TYPE_CHECKING:
    from asyncpg import Connection

T = TypeVar("T")

GRACE = 3.0  # seconds for a holder to come back
LOOKS = 0.25  # seconds between two checks of a hold whose holder may come back
CLOSE = 5.0  # seconds before a connection is dropped without a message
RETRIES = 0.2  # seconds between two tries to connect again
PATIENCE = 1.0  # seconds that an operation waits for returning holds

_LOG = logging.getLogger("standfast")
# The lock comes first. ON CONFLICT then sees the current row, not the row at the start of the statement.
_TAKE = (
    "WITH locked AS MATERIALIZED (SELECT pg_try_advisory_lock($3) AS ok), taken AS (INSERT INTO @holds AS h"
    " (name, holder) SELECT $1::text, $2::text FROM locked WHERE ok ON CONFLICT (name) DO UPDATE"
    " SET holder = excluded.holder, since = excluded.since WHERE h.holder IN ($2, $4) RETURNING 1)"
    " SELECT ok, EXISTS (SELECT 1 FROM taken), (SELECT holder FROM @holds WHERE name = $1) FROM locked"
)
_UNLOCK = "SELECT pg_advisory_unlock($1)"
# The lock is released last, so a waiter finds the row gone. A lock that is not ours stays untouched: the server would
# log a warning.
_LEAVE = (
    "WITH gone AS (DELETE FROM @holds WHERE name = $1 AND holder = $2 RETURNING 1)"
    " SELECT CASE WHEN $3::bigint IS NOT NULL THEN pg_advisory_unlock($3) END FROM (SELECT count(*) FROM gone) AS g"
)
_OURS = "SELECT name FROM @holds JOIN unnest($1::text[], $2::text[]) AS ours (name, holder) USING (name, holder)"


class Holds:
    """The holds that were taken on one event loop.

    Args:
        scope: a number that is unique to the schema within the database.
    """

    def __init__(self, address: Address, scope: int) -> None:
        self._address, self._scope = address, str(scope)
        self._connection: Connection | None = None
        self._backend: tuple[Any, ...] = ()
        self._taking: set[str] = set()
        self._holders: dict[str, str] = {}  # by name, including lost holds: they fence their holder's writes
        self._locked: set[str] = set()  # names, on this connection
        self._lost: set[str] = set()
        self._workers: set[str] = set()
        self._turn = asyncio.Lock()  # a connection does one thing at a time
        self._returning: asyncio.Task[None] | None = None
        self._retaking: asyncio.Task[None] | None = None
        self._is_closed = False
        in_forked_processes(self._is_forked)

    def _is_forked(self) -> None:
        forget(self._connection)

    def holder(self, name: str) -> str | None:
        """Return the holder name under which a hold was taken here; None if it was not."""
        return self._holders.get(name)

    async def take(self, name: str) -> bool:
        """Take a hold; False if another holder has it. If its holder was lost, wait until it can no longer come back.

        Raises:
            StoreError: the database cannot be reached.
        """
        if name in self._holders or name in self._taking:
            return False
        self._taking.add(name)
        holder = uuid4().hex
        try:
            return await self._take(name, holder)
        except BaseException:
            await self._forget(name, holder)
            raise
        finally:
            self._taking.discard(name)

    async def _take(self, name: str, holder: str) -> bool:
        lost, since = None, 0.0
        while True:
            before = lost if lost is not None and time.monotonic() - since >= GRACE else None
            is_locked, is_taken, known = await self._do(partial(self._try, name, holder, before))
            if is_taken or not is_locked or lost not in (None, known):
                return bool(is_taken)  # if not, another holder has it, or was quicker
            if lost is None and known is not None:
                lost, since = known, time.monotonic()
            await asyncio.sleep(0 if known is None else LOOKS)

    async def _try(self, name: str, holder: str, before: str | None, db: Database) -> tuple[Any, ...]:
        key = self._key(name)
        found = await db.row(_TAKE, name, holder, key, before)
        assert found is not None
        is_locked, is_taken, _ = found
        if is_taken:
            self._holders[name] = holder
            self._locked.add(name)
        elif is_locked:
            await db.rows(_UNLOCK, key)
        return found

    async def leave(self, name: str) -> None:
        """End a hold. If the database is unreachable, others wait `GRACE` seconds before they take it."""
        if name in self._holders:
            await self._forget(name, self._holders[name])

    async def _forget(self, name: str, holder: str) -> None:
        self._holders.pop(name, None)
        self._lost.discard(name)

        async def leave(db: Database) -> None:
            key = self._key(name) if name in self._locked else None
            self._locked.discard(name)
            await db.rows(_LEAVE, name, holder, key)

        try:
            await self._do(leave)
        except StoreError as error:
            _LOG.info("The hold of %s could not be ended, so others will wait for its end: %s", name, error)

    def keep_worker(self, name: str) -> None:
        """Take a worker's hold again if it is lost. Others only check it, and its runs have their own fences."""
        self._workers.add(name)

    def drop_worker(self, name: str) -> None:
        self._workers.discard(name)

    async def close(self) -> None:
        """End all holds, and close the connection."""
        self._is_closed = True
        for task in (self._returning, self._retaking):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        for name in list(self._holders):
            await self.leave(name)
        if self._connection is not None:
            await self._connection.close(timeout=CLOSE)

    # --- the connection ---

    async def _do(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Do work on the connection, and repeat it if the connection turns out to be lost. All work here is safe to
        repeat.

        A cancel does not interrupt it; otherwise it would be unknown whether a lock was taken.
        """
        doing = asyncio.create_task(self._do_again(work))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait({doing})
            raise

    async def _do_again(self, work: Callable[[Database], Awaitable[T]]) -> T:
        for is_last in (False, True):
            try:
                async with self._turn:
                    return await work(Database(await self._connected(), self._address.schema))
            except Exception as error:
                if is_last or not is_away(error):
                    explained = translated(error, self._address.name)
                    if explained is error:
                        raise
                    raise explained from error
            if self._connection is not None:
                self._connection.terminate()
            if self._returning is not None and not self._returning.done():
                await asyncio.wait({self._returning}, timeout=PATIENCE)
        raise AssertionError

    async def _connected(self) -> "Connection":
        if self._connection is None or self._connection.is_closed():
            self._locked.clear()
            connection = await self._address.connect()
            with dropped_on_error(connection):
                row = await connection.fetchrow(
                    "SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()"
                )
                if self._backend:  # if only our side saw the old connection end, the server still has its locks
                    await connection.fetch(
                        "SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
                        " WHERE pid = $1 AND backend_start = $2",
                        *self._backend,
                    )
            self._backend = tuple(row or ())
            connection.add_termination_listener(self._on_end)
            self._connection = connection
        return self._connection

    def _on_end(self, _: Any) -> None:
        """Reconnect at once: others wait only `GRACE` seconds."""
        if self._holders and not self._is_closed and (self._returning is None or self._returning.done()):
            self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        """Reconnect, and lock our remaining holds again."""
        while not self._is_closed:
            try:
                async with self._turn:
                    db = Database(await self._connected(), self._address.schema)
                    is_done = await self._lock_again(db)
            except Exception as error:
                _LOG.debug("The holds of %s wait for a connection: %s", self._address.name, error)
                is_done = False
                if self._connection is not None:
                    self._connection.terminate()
            if is_done:
                break
            await asyncio.sleep(RETRIES)
        if self._lost & self._workers and (self._retaking is None or self._retaking.done()):
            self._retaking = asyncio.create_task(self._take_workers_again())

    async def _lock_again(self, db: Database) -> bool:
        """Lock the unlocked rows in our names; False if another process is checking some of them right now."""
        wanted = {name: its for name, its in self._holders.items() if name not in self._locked | self._lost}
        ours = {name for (name,) in await db.rows(_OURS, list(wanted), list(wanted.values()))}
        for name in wanted.keys() - ours:
            _LOG.warning("The hold of %s was lost with the connection to %s: somebody has it", name, self._address.name)
            self._lost.add(name)
        keys = {name: self._key(name) for name in ours}
        locked = {
            name
            for name, is_locked in await db.rows(
                "SELECT name, pg_try_advisory_lock(key) FROM unnest($1::text[], $2::bigint[]) AS ours (name, key)",
                list(keys),
                list(keys.values()),
            )
            if is_locked
        }
        # Read again: a row that was taken before it was locked belongs to another holder.
        still = {name for (name,) in await db.rows(_OURS, list(ours), [wanted[name] for name in ours])}
        for name in locked:
            if name in still and name in self._holders:
                self._locked.add(name)
            else:
                await db.rows(_UNLOCK, keys[name])
        return all(name in self._locked or name not in self._holders for name in ours)

    async def _take_workers_again(self) -> None:
        """Wait until the lost worker names are free. Until then, their holder reports the worker's calls."""
        while not self._is_closed and (names := self._lost & self._workers):
            for name in names:
                with contextlib.suppress(StoreError):
                    await self._take_worker_again(name)
            await asyncio.sleep(RETRIES)

    async def _take_worker_again(self, name: str) -> None:
        if not await self._take(name, uuid4().hex):
            return
        self._lost.discard(name)
        if name not in self._workers:
            await self.leave(name)  # the worker has ended in the meantime
            return
        await self._do(lambda db: db.rows("INSERT INTO @workers VALUES ($1) ON CONFLICT DO NOTHING", name))

    def _key(self, name: str) -> int:
        return lock_key(self._scope, name)
