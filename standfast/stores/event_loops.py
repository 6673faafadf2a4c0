"""Keeps apart what a store has for each event loop that uses it, such as connections, which belong to one."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closing(Protocol):
    """What is closed on its own event loop."""

    async def close(self) -> None:
        """Finish what is being done, and close it."""
        ...


T = TypeVar("T", bound=Closing)


class EventLoops(Generic[T]):
    """What a store has, by event loop; `make` makes it for a loop that has none."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, T] = {}
        self._process = os.getpid()
        self._parents: list[T] = []  # before a fork: theirs, so not even the garbage collector's
        self._guard = threading.Lock()

    def here(self) -> T:
        """Return what the running loop has."""
        loop = asyncio.get_running_loop()
        with self._guard:
            self._leave_to_parent()
            if loop not in self._loops:
                self._loops = {known: its for known, its in self._loops.items() if not known.is_closed()}
                self._loops[loop] = self._make()
            return self._loops[loop]

    async def close(self) -> None:
        """Close what all loops have. The next use makes it anew."""
        with self._guard:
            self._leave_to_parent()
            loops, self._loops = self._loops, {}
        here = asyncio.get_running_loop()
        for loop, its in loops.items():
            if loop is here:
                await its.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(its.close(), loop))

    def _leave_to_parent(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._parents += self._loops.values()
            self._loops = {}
