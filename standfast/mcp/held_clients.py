"""Keeps a client of an MCP server open: one task opens and closes it, as the MCP SDK requires."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

from standfast.errors import StandfastError
from standfast.time_limits import time_limit

C = TypeVar("C")


class HeldClient(Generic[C]):
    """A client that any tasks may open and close.

    Args:
        connect: opens a client for as long as its block lasts.
        seconds: the time limit for opening it.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[C]], seconds: float) -> None:
        self._connect, self._seconds = connect, seconds
        self._task: asyncio.Task[None] | None = None
        self.client: C

    @property
    def has_ended(self) -> bool:
        """Whether the client is not open, or no longer open."""
        return self._task is None or self._task.done()

    async def open(self) -> None:
        """Open the client, or raise the error of opening it.

        Raises:
            TimeoutError: the client did not open in time.
        """
        ready: asyncio.Future[C] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready))
        try:
            async with time_limit(self._seconds):
                self.client = await ready
        except BaseException:
            await self.close()
            raise

    async def _hold(self, ready: "asyncio.Future[C]") -> None:
        try:
            async with self._connect() as client:
                if not ready.done():
                    ready.set_result(client)
                await asyncio.Event().wait()  # until it is cancelled
        except BaseException as error:
            if not ready.done():
                closed = StandfastError("its connection was closed while it was made")
                ready.set_exception(error if isinstance(error, Exception) else closed)
            if not isinstance(error, Exception):
                raise

    async def close(self) -> None:
        """Close the client. It may be closed twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})


def first_error(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
