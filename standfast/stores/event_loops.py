"""Separates a store's resources, such as connections, by the event loop and the process that use them."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closing(Protocol):
    """A resource that is closed on its own event loop."""

    async def close(self) -> None:
        """Finish the current operations, and close."""
        ...


T = TypeVar("T", bound=Closing)


class EventLoops(Generic[T]):
    """A store's resources by event loop. `make` creates them for a new loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, T] = {}
        self._process = os.getpid()
        self._parents: list[T] = []  # resources from before a fork: the parent's, so not even garbage-collected
        self._guard = threading.Lock()

    def here(self) -> T:
        """Return the running loop's resource."""
        loop = asyncio.get_running_loop()
        with self._guard:
            self._leave_to_parent()
            if loop not in self._loops:
                self._loops = {known: its for known, its in self._loops.items() if not known.is_closed()}
                self._loops[loop] = self._make()
            return self._loops[loop]

    async def close(self) -> None:
        """Close the resources of all loops. The next use creates them again."""
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


def in_forked_processes(method: Callable[[], None]) -> None:
    """Call a method in the child after each fork, for as long as its object exists."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which lacks fork
        known = weakref.WeakMethod(method)

        def call() -> None:
            if (found := known()) is not None:
                found()

        os.register_at_fork(after_in_child=call)
