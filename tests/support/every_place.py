"""Cancels a run at every point at which it, or one of its tasks, waits; and at every two such points."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal

Kind = Literal["at once", "late", "all"]
Wish = Callable[[int], bool]  # whether the run is cancelled at a place, by its number


class _Counted(Coroutine[Any, Any, Any]):
    """Forwards everything to a coroutine, and tells whenever it waits."""

    def __init__(self, inner: Coroutine[Any, Any, Any], waits: Callable[[], None]) -> None:
        self._inner, self._waits = inner, waits

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def send(self, value: Any) -> Any:
        waiting = self._inner.send(value)
        self._waits()
        return waiting

    def throw(self, *error: Any) -> Any:
        waiting = self._inner.throw(*error)
        self._waits()
        return waiting

    def close(self) -> None:
        self._inner.close()


class Places:
    """The places at which a run has waited so far; it is cancelled at those that someone wishes.

    Args:
        kind: "late" cancels when what the run waits for may just be there, and not at once; "all" cancels the tasks of
            the run as well, as the end of an event loop does.
    """

    def __init__(self, wish: Wish, kind: Kind) -> None:
        self.count = 0
        self.cancels = 0
        self._wish, self._kind = wish, kind
        self._task: asyncio.Task[Any] | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return what the run came to: its result, or what it raised."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make)
        try:
            self._task = asyncio.create_task(work)
        finally:
            ended = asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(60):
                return (await ended)[0]
        finally:
            loop.set_task_factory(None)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(_Counted(work, self._waits), loop=loop, **options)
        self._tasks.append(task)
        return task

    def _waits(self) -> None:
        task, self.count = self._task, self.count + 1
        if task is None or task.done() or not self._wish(self.count):
            return
        self.cancels += 1
        # An event loop is shut down once: tasks made in the meantime are not cancelled.
        for one in self._tasks if self._kind == "all" and self.cancels <= 2 else (task,):
            if self._kind == "late":
                asyncio.get_running_loop().call_soon(one.cancel)
            else:
                one.cancel()


async def everywhere(attempt: Callable[[Wish], Coroutine[Any, Any, int]]) -> int:
    """Make attempts with a cancel at each place, then at each two, then at each and all that follow; return how many.

    Args:
        attempt: returns at how many places it waited.
    """
    made = 1
    places = await attempt(lambda place: False)
    for first in range(1, places + 1):
        second = first + 1
        made += 1
        last = await attempt(lambda place, first=first: place == first)  # type: ignore[misc]
        while second <= last:
            made += 1
            await attempt(lambda place, two=(first, second): place in two)  # type: ignore[misc]
            second += 1
        made += 1
        await attempt(lambda place, first=first: place >= first)  # type: ignore[misc]
    return made
