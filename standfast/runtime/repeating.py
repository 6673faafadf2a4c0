"""Repeats a process's own work beside its runs, such as the search for lost calls, and writes that a store refused."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from standfast.errors import StandfastError, StoreError

_LOG = logging.getLogger("standfast")


@asynccontextmanager
async def repeating(
    work: Callable[[], Awaitable[object]],
    every: float,
    failed: str,
    *,
    expected: type[Exception],
    first: float = 0.0,
) -> AsyncIterator[None]:
    """Repeat work for as long as the block lasts, whatever it raises: nothing would start it again.

    Args:
        every: seconds between two rounds.
        failed: the log message of a round that failed; the error follows. The same error in a row is logged once.
        expected: errors that are logged without a traceback, beside our own.
        first: seconds before the first round.
    """
    task = asyncio.create_task(_repeat(work, every, failed, first, expected))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _repeat(
    work: Callable[[], Awaitable[object]], every: float, failed: str, first: float, expected: type[Exception]
) -> None:
    told = ""
    await asyncio.sleep(first)
    while True:
        try:
            await work()
            told = ""
        except Exception as error:
            if repr(error) != told:
                is_expected = isinstance(error, (StandfastError, expected))
                _LOG.warning("%s: %s", failed, error, exc_info=None if is_expected else error)
            told = repr(error)
        await asyncio.sleep(every)


T = TypeVar("T")

_DELAYS = (0.05, 0.2, 0.5, 1.0)  # seconds between attempts at a write; the last is repeated
_LAST_TRIES = 5  # of a write whose caller has been cancelled


async def retry_write(write: Callable[[], Awaitable[T]], *, tries: int | None = None) -> T:
    """Await a write that is safe to repeat, such as the result of a completed effect.

    A refused write is repeated: `tries` times, or until the store accepts it. If a cancel interrupts the write, it is
    repeated, to learn its result.
    """
    left = tries
    for attempt in itertools.count():
        try:
            return await write()
        except asyncio.CancelledError:
            left = _LAST_TRIES if left is None else left
        except StoreError:
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                raise
            try:
                await asyncio.sleep(_DELAYS[min(attempt, len(_DELAYS) - 1)])
            except asyncio.CancelledError:
                left = _LAST_TRIES if left is None else left
    raise AssertionError
