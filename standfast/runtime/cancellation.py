"""Handles cancellation, and protects work that it must not interrupt."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

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
            raise self._error from raised
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
