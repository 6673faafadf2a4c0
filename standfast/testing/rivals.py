"""Lets many use a store at the same time: two objects, two threads and two other processes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from standfast.testing.store_processes import StoreProcess, StoreProcesses, Work, close

ROUNDS = 50  # a faulty store has two winners in most rounds

Reopen = Callable[[Any], Callable[[], Any]]
Contend = Callable[[Any, int, int], Awaitable[Any]]
"""The concurrent work, given the store, the user's number and the round; importable by name."""


class Rivals:
    """All concurrent users of one store.

    Args:
        store: the tested object. Two tasks use it, and the event loop of another thread.
        other: a second object over the same data; None if there cannot be one.
        processes: each has its own object.
        rounds: the rounds of a race.
    """

    def __init__(self, store: Any, other: Any, processes: list[StoreProcess], rounds: int) -> None:
        self.rounds = rounds
        self.other = other
        self.here: User = _Here(store)
        self.processes = processes
        self._thread = _Thread(store)

    async def race(
        self,
        contend: Contend,
        check: Callable[[int, list[Any]], Awaitable[None]],
        *,
        most: int | None = None,
        before: Callable[[int], Awaitable[Any]] | None = None,
        only_object: bool = False,
    ) -> None:
        """Let all contend at once, round after round.

        Args:
            check: called after each round with its number and each user's result.
            most: the maximum number of rounds, for slow checks.
            before: called with the number of each round before it begins.
            only_object: leave out other objects and processes.
        """
        users: list[User] = [self.here, self.here, self._thread]
        if self.other is not None and not only_object:
            users += [_Here(self.other), *self.processes]
        for number in range(self.rounds if most is None else min(self.rounds, most)):
            if before is not None:
                await before(number)
            await check(
                number, await asyncio.gather(*(user.do(contend, who, number) for who, user in enumerate(users)))
            )

    async def end(self) -> None:
        await asyncio.to_thread(self._thread.end)


class User(Protocol):
    """One user of a store."""

    async def do(self, work: Work, *arguments: Any) -> Any:
        """Return the result of `work(store, *arguments)` with this user's object."""
        ...


class _Here:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def do(self, work: Work, *arguments: Any) -> Any:
        return await work(self._store, *arguments)


class _Thread:
    """The event loop of another thread, which ends as under `asyncio.run`, without notice to the store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event

    async def do(self, work: Work, *arguments: Any) -> Any:
        if not self._begun.is_set():
            self._thread.start()
            await asyncio.to_thread(self._begun.wait)
        doing: Any = work(self._store, *arguments)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(doing, self._loop))

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._ended.wait()

    def end(self) -> None:
        if self._begun.is_set():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()


@asynccontextmanager
async def rivals_of(store: Any, reopen: Reopen | None, started: StoreProcesses, rounds: int) -> AsyncIterator[Rivals]:
    """Give the store to all its users at once; they all create a new store at once.

    Args:
        reopen: None if no one else can use its data.
    """
    if reopen is None:
        alone = Rivals(store, None, [], rounds)
        try:
            yield alone
        finally:
            await alone.end()
        return
    processes, factory = started.take(2), reopen(store)
    await asyncio.gather(*(process.open(factory) for process in processes))
    rivals = Rivals(store, factory(), processes, rounds)
    try:
        yield rivals
    finally:
        await rivals.end()
        await close(rivals.other)
        await asyncio.gather(*(process.close() for process in processes if process.is_alive))
