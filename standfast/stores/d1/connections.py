"""Keeps a separate binding and holds for each event loop that uses a D1 store.

They end with `close`, at the end of the loop (`asyncio.run` ends it in order), or when the last reference to their
store is gone.
"""

import asyncio
import contextlib
import json
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from standfast.errors import StoreError
from standfast.stores.d1.database import TRIES, D1Binding, Database, crowded
from standfast.stores.d1.holds import KEEPER, Holds
from standfast.stores.d1.schema import MIGRATIONS, prepare
from standfast.stores.d1.statements import statement
from standfast.stores.event_loops import EventLoops
from standfast.stores.kept_values import with_nul
from standfast.stores.schema_versions import lost_identity
from standfast.stores.sql.dialect import Plan, Query, RefusedByGuardError, Row, guard

P = ParamSpec("P")
T = TypeVar("T")

EVERY = 60.0  # seconds between two numbers of a loop that keeps running
_CLOCK = "unixepoch('now', 'subsec')"
_CHANGE = (
    "UPDATE store_identity SET place = :new WHERE place IS NULL"
    " OR coalesce((SELECT number FROM marks WHERE owner = :owner), 0) < :known"
)
_COUNT = (
    f"INSERT INTO marks (owner, number, at) VALUES (:owner, :next, {_CLOCK}) ON CONFLICT (owner) DO UPDATE"
    " SET number = max(number, excluded.number), at = excluded.at"
)
_LOOK = "SELECT place FROM store_identity"
_FORGET = "DELETE FROM marks WHERE owner = :owner"
_FORGET_OLD = f"DELETE FROM marks WHERE at < {_CLOCK} - 30 * 86400"  # of processes that were killed


class Place:
    """An event loop's knowledge of the place of a database's data."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._owner = uuid4().hex
        self._number = 0  # acknowledged by the database
        self._counted_at = 0.0

    async def look(self) -> str:
        """Return the id of the place of the data. After a restore, it is another one."""
        known = self._number
        steps = {
            _FORGET_OLD: {},
            _CHANGE: {"new": uuid4().hex, "owner": self._owner, "known": known},
            _COUNT: {"owner": self._owner, "next": known + 1},
            _LOOK: {},
        }
        *_, found = await self._db.batch([statement(sql, **values) for sql, values in steps.items()])
        if not found:
            raise lost_identity(self._db.name)
        self._number, self._counted_at = max(self._number, known + 1), time.monotonic()
        return str(found[0][0])

    async def keep(self) -> None:
        """Look again from time to time, once the place was looked up."""
        if self._number and time.monotonic() - self._counted_at > EVERY:
            await self.look()

    async def forget(self) -> None:
        """Remove this loop's row from the database, if that can be reached."""
        if self._number:
            with contextlib.suppress(StoreError):  # its row is removed a month later
                await self._db.one(statement(_FORGET, owner=self._owner))


class Connections:
    """The bindings of a store, by event loop.

    Args:
        connect: returns the binding for a loop.
        name: the store's name in messages.
        lease: seconds that a hold lasts without renewal.
    """

    def __init__(self, connect: Callable[[], D1Binding], name: str, lease: float) -> None:
        self.connect, self._name = connect, name
        self._loops = EventLoops(partial(LoopConnection, connect, name, lease))

    def holder(self, name: str) -> str | None:
        """Return the holder name under which this process holds a session or a run. Its writes are refused once the
        hold is lost.
        """
        return self._loops.here().holds.holder(name)

    @property
    def holds(self) -> Holds:
        """The holds of the running loop, even if the database is unreachable."""
        return self._loops.here().holds

    async def do(self, work: Callable[Concatenate[Database, P], Awaitable[T]], /, *args: P.args, **kw: P.kwargs) -> T:
        """Do work with the database, after checking that it is a store."""
        async with self._loops.here().used() as connection:
            return await work(connection.database, *args, **kw)

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        """Return the rows of a statement. Every statement of the store may safely run twice."""
        return (await self.batch([query]))[0]

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        async with self._loops.here().used() as connection:
            return await connection.database.batch([statement(sql, **values) for sql, values in queries])

    async def run(self, plan: Plan, *, name: str, alone_on: str) -> None:
        """Run the queries of a plan, and then its changes in one batch that fails if the queries have other rows."""
        for _ in range(TRIES):
            running = plan()
            queries, unchanged = next(running), list[Query]()
            try:
                while True:
                    found = await self.batch(queries)
                    for (query, values), rows in zip(queries, found, strict=True):
                        seen = "\n".join(text for (text,) in rows)
                        same = f"coalesce((SELECT group_concat(found, char(10)) FROM ({query})), '') = :seen"
                        unchanged.append(guard(same, {**values, "seen": seen}))
                    queries = running.send([[_read(text) for (text,) in rows] for rows in found])
            except StopIteration as planned:
                changes = planned.value
            with contextlib.suppress(RefusedByGuardError):  # another process has written in between
                if changes:
                    await self.batch([*unchanged, *changes])
                return
        raise crowded(self._name, name)

    async def place(self) -> str:
        async with self._loops.here().used() as connection:
            return await connection.place.look()

    async def hold(self, name: str) -> bool:
        async with self._loops.here().used() as connection:
            return await connection.holds.take(name)

    async def let_go(self, name: str) -> None:
        await self.holds.leave(name)

    async def close(self) -> None:
        """Finish the current operations, end all holds and close the bindings. The next operation opens new ones."""
        await self._loops.close()


class LoopConnection:
    """The binding and the holds of one event loop."""

    def __init__(self, connect: Callable[[], D1Binding], name: str, lease: float) -> None:
        self._binding = connect()
        self.database = Database(self._binding, name)
        self.holds = Holds(self.database, lease)
        self.place = Place(self.database)
        self._preparing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._doing = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator["LoopConnection"]:
        self._doing += 1
        self._is_idle.clear()
        try:
            if self._keeping is None:
                self._keep()
            await self._prepare_once()
            yield self
        finally:
            self._doing -= 1
            if not self._doing:
                self._is_idle.set()

    async def _prepare_once(self) -> None:
        if self._preparing is None or (self._preparing.done() and _failed(self._preparing)):
            self._preparing = asyncio.create_task(prepare(self.database, MIGRATIONS))
            self._preparing.add_done_callback(_failed)
        await asyncio.shield(self._preparing)

    async def close(self) -> None:
        """Finish the current operations, and close."""
        await self._is_idle.wait()
        self._ended.set()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        # The task does not refer to this object, so it ends when the object is garbage-collected.
        self._keeping = loop.create_task(_keep(self._binding, self.holds, self.place, self._ended), name=KEEPER)
        weakref.finalize(self, _end, loop, self._ended).atexit = False


def _read(text: str) -> list[Any]:
    return [with_nul(value) for value in json.loads(text)]


def _failed(task: "asyncio.Task[Any]") -> bool:
    return task.cancelled() or task.exception() is not None


async def _keep(binding: D1Binding, holds: Holds, place: Place, ended: asyncio.Event) -> None:
    try:
        await holds.keep(ended, place.keep)
        await place.forget()
    finally:
        close = getattr(binding, "close", None)
        if close is not None:
            await close()


def _end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(ended.set)
