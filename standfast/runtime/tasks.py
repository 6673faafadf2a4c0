"""Handles cancellation, protects work that it must not interrupt, and repeats work: beside runs, and refused writes."""

import asyncio
import contextlib
import contextvars
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from standfast.errors import StandfastError, StoreError

T = TypeVar("T")
_UNSET = object()


class Cancellation:
    """Distinguishes a cancel of the run from one that the called code raised itself.

    Create it before awaiting code; afterwards `requested()` tells whether this task was cancelled in the meantime.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def requested(self) -> bool:
        return self._task is not None and self._task.cancelling() > self._before


class OwnCancels(Cancellation):
    """Raises an error instead of a cancel that the block's code raised itself.

    A driver would treat it as a cancel of the run. Temporal would retry the activity, unseen and for ever. A cancel of
    the run that comes in a group with plain errors is raised alone, since callers would not recognize the group.
    """

    def __init__(self, kind: type[Exception], text: str = "") -> None:
        super().__init__()
        self._kind, self._text = kind, text

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, raised: BaseException | None, _traceback: object) -> None:
        if isinstance(raised, BaseExceptionGroup):
            cancels, others = raised.split(asyncio.CancelledError)
            if cancels is None or not (others is None or isinstance(others, Exception)):
                return
        elif not isinstance(raised, asyncio.CancelledError):
            return
        if not self.requested():
            raise self._kind(self._text) from raised
        if isinstance(raised, BaseExceptionGroup):
            raise asyncio.CancelledError from raised


async def in_own_task(work: Coroutine[Any, Any, T]) -> T:
    """Await a handler in a separate task, and take over its context variables.

    Until Python 3.12, an `asyncio.TaskGroup` with a failed task leaves a cancel counted in the task that it runs in. In
    the run's own task, that would look like a cancel of the run.
    """
    context = contextvars.copy_context()
    try:
        return await asyncio.create_task(work, context=context)
    finally:
        for variable, value in context.items():
            if variable.get(_UNSET) is not value:
                variable.set(value)


async def to_the_end(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait for work, however often this is cancelled in the meantime; the caller is already ending, and raises itself.

    Args:
        work: begins the work, and begins it again if it was cancelled itself, as all tasks are when an event loop shuts
            down.
    """
    while True:
        task = asyncio.ensure_future(work())
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            return task.result()


async def uninterrupted(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait for work to its end, and only then be cancelled."""
    cancellation = Cancellation()
    result = await to_the_end(work)
    if cancellation.requested():
        raise asyncio.CancelledError
    return result


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
