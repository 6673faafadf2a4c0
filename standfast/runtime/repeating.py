"""Repeats a process's own work beside its runs, such as the search for lost calls."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from standfast.errors import StandfastError

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
