"""Holds of a D1 store: leases, since a database behind HTTP does not notice that a process has died.

A hold is a row with its holder and the time when it ends, by the database's clock. Its holder moves that time on in the
background. When the time has passed, the holder has died, or could not reach the database. Any other process may then
write its own name into the row. Until one does, the former holder can move the time on again.

The name in the row is the fence. The statements that write under a hold refuse to do so if the row has another name. A
holder that was stopped for a minute and continues has therefore lost its hold, and does no harm.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

from standfast.errors import StoreError
from standfast.stores.d1.database import Database
from standfast.stores.d1.statements import Statement, guard, statement
from standfast.stores.sql import statements as sql
from standfast.time_limits import time_limit

LEASE = 20.0  # seconds
RENEWALS = 4  # per lease
KEEPER = "standfast d1 holds"  # the name of the renewal tasks
PATIENCE = 5.0  # seconds for the remaining work of an event loop that ends
RETRY = 1.0  # seconds between two checks of a hold that may end, and between two tries to renew

_LOG = logging.getLogger("standfast")
_CLOCK = "unixepoch('now', 'subsec')"
_TAKE = (
    f"INSERT INTO holds (name, holder, until) VALUES (:name, :holder, {_CLOCK} + :lease) ON CONFLICT (name) DO UPDATE"
    f" SET holder = excluded.holder, until = excluded.until WHERE holder = excluded.holder OR until < {_CLOCK}"
)
_LOOK = f"SELECT holder, until - {_CLOCK} AS ends FROM holds WHERE name = :name"
_RENEW = (
    f"UPDATE holds SET until = {_CLOCK} + :lease WHERE name IN (SELECT value FROM json_each(:names))"
    " AND holder IN (SELECT value FROM json_each(:holders)) RETURNING name"
)
_LEAVE = "DELETE FROM holds WHERE name = :name AND holder = :holder"
OURS = "EXISTS (SELECT 1 FROM holds WHERE name = :held AND holder = :holder)"


def fence(name: str, holder: str | None) -> list[Statement]:
    """Return a guard that fails if a hold has another holder. Without a hold, return none."""
    return [] if holder is None else [guard(OURS, held=name, holder=holder)]


async def has_hold(db: Database, name: str, holder: str) -> bool:
    return bool((await db.one(statement(f"SELECT {OURS} AS is_held", held=name, holder=holder)))[0][0])


class Holds:
    """The holds that were taken on one event loop.

    Args:
        lease: seconds after which an unrenewed hold ends.
    """

    def __init__(self, db: Database, lease: float) -> None:
        self._db, self._lease = db, lease
        self._holders: dict[str, str] = {}  # by name, including lost holds: they fence their holder's writes
        self._taking: set[str] = set()
        self._lost: set[str] = set()
        self._workers: set[str] = set()

    def holder(self, name: str) -> str | None:
        """Return the holder name under which a hold was taken here; None if it was not."""
        return self._holders.get(name)

    async def take(self, name: str) -> bool:
        """Take a hold; False if another holder has it. If its holder has missed renewals, wait for its end.

        Raises:
            StoreError: the database cannot be reached.
        """
        if name in self._holders or name in self._taking:
            return False
        self._taking.add(name)
        holder = uuid4().hex
        taking = asyncio.create_task(self._take(name, holder))
        try:
            # A cancel does not interrupt a request; otherwise it would be unknown whether the hold was taken.
            return await asyncio.shield(taking)
        except BaseException:
            self._taking.discard(name)
            await asyncio.wait({taking})
            await self._forget(name, holder)
            raise
        finally:
            self._taking.discard(name)

    async def _take(self, name: str, holder: str) -> bool:
        give_up, before = time.monotonic() + self._lease, float("inf")
        while True:
            take = statement(_TAKE, name=name, holder=holder, lease=self._lease)
            _, found = await self._db.batch([take, statement(_LOOK, name=name)])
            has_it, ends = found[0]
            if has_it == holder:
                self._holders[name] = holder
                return True
            is_late = ends < self._lease * (1 - 2 / RENEWALS) and ends <= before  # else it was renewed: it is alive
            if not is_late or time.monotonic() > give_up or name not in self._taking:
                return False
            before = ends
            await asyncio.sleep(min(RETRY, max(ends, 0.01)))

    async def leave(self, name: str) -> None:
        """End a hold. If the database is unreachable, others wait until the lease ends."""
        if name in self._holders:
            await self._forget(name, self._holders[name])

    async def _forget(self, name: str, holder: str) -> None:
        self._holders.pop(name, None)
        self._lost.discard(name)
        leaving = asyncio.create_task(self._leave(name, holder))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await asyncio.wait({leaving})
            raise

    async def _leave(self, name: str, holder: str) -> None:
        try:
            await self._db.one(statement(_LEAVE, name=name, holder=holder))
        except StoreError as error:
            _LOG.info("The hold of %s could not be ended, so others will wait for its end: %s", name, error)

    def keep_worker(self, name: str) -> None:
        """Take a worker's hold again if it is lost. Others only check it, and its runs have their own fences."""
        self._workers.add(name)

    def drop_worker(self, name: str) -> None:
        self._workers.discard(name)

    # --- renewal ---

    async def keep(self, ended: asyncio.Event, also: Callable[[], Awaitable[None]]) -> None:
        """Renew all holds until they must end or the event loop ends. Then end them.

        Args:
            also: called after each renewal.
        """
        try:
            wait = self._lease / RENEWALS
            while not await _is_set(ended, wait):
                try:
                    async with time_limit(self._lease / 2):  # a request may wait longer than this for its turn
                        await self._renew()
                        await also()
                    wait = self._lease / RENEWALS
                except (StoreError, TimeoutError) as error:
                    _LOG.debug("The holds of %s could not be renewed: %s", self._db.name, error)
                    wait = min(RETRY, self._lease / RENEWALS)
        except asyncio.CancelledError:
            await _others_end()  # they may still write what they hold
            raise
        finally:
            for name in list(self._holders):
                await self.leave(name)

    async def _renew(self) -> None:
        """Extend all holds, and note the lost ones."""
        wanted = {name: holder for name, holder in self._holders.items() if name not in self._lost}
        if wanted:
            asked = statement(_RENEW, lease=self._lease, names=list(wanted), holders=list(wanted.values()))
            renewed = {name for (name,) in await self._db.one(asked, again=False)}
            for name in wanted.keys() - renewed:
                if self._holders.get(name) == wanted[name]:
                    _LOG.warning("The hold of %s in %s has run out, and somebody has it", name, self._db.name)
                    self._lost.add(name)
        for name in self._lost & self._workers:
            await self._take_worker_again(name)

    async def _take_worker_again(self, name: str) -> None:
        """Take a worker's name again once it is free. Until then, its holder reports the worker's calls."""
        holder = uuid4().hex
        take = statement(_TAKE, name=name, holder=holder, lease=self._lease)
        _, found = await self._db.batch([take, statement(_LOOK, name=name)])
        if found[0][0] != holder:
            return
        if name not in self._holders or name not in self._workers:  # the hold has ended in the meantime
            await self._leave(name, holder)
            return
        self._holders[name] = holder
        self._lost.discard(name)
        await self._db.one(statement(sql.ADD_WORKER, name=name))


async def _is_set(ended: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, with a limit."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)
    return ended.is_set()


async def _others_end() -> None:
    """Wait for the tasks that are cancelled with this one, since their event loop ends."""
    others = {task for task in asyncio.all_tasks() if task.get_name() != KEEPER}
    if others:
        await asyncio.wait(others, timeout=PATIENCE)
