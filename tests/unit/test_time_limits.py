"""A time limit ends an awaited operation with a TimeoutError, and leaves a cancel unchanged."""

import asyncio

import pytest

from standfast.time_limits import time_limit


async def end_of(limit: float | None, *, cancelled_before: bool, cancels_itself: bool = False) -> type[BaseException]:
    """Return the error with which a wait under a limit ends, in a separate task."""

    async def work() -> type[BaseException]:
        if cancelled_before:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
        try:
            async with time_limit(limit):
                if cancels_itself and (own := asyncio.current_task()):
                    own.cancel()
                await asyncio.Event().wait()
        except BaseException as error:
            return type(error)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    if cancelled_before:
        task.cancel()
    return await task


@pytest.mark.parametrize("cancelled_before", [False, True])
async def test_a_time_that_is_over_is_a_timeout_error_whether_or_not_the_task_was_cancelled(
    cancelled_before: bool,
) -> None:
    assert await end_of(0.0, cancelled_before=cancelled_before) is TimeoutError


@pytest.mark.parametrize("cancelled_before", [False, True])
@pytest.mark.parametrize("limit", [None, 0.0, 60.0])
async def test_a_cancel_stays_a_cancel(limit: float | None, cancelled_before: bool) -> None:
    ended = await end_of(limit, cancelled_before=cancelled_before, cancels_itself=True)
    assert ended is asyncio.CancelledError


async def test_a_limit_can_be_moved() -> None:
    async with time_limit(0.0) as limit:
        limit.reschedule(None)
        await asyncio.sleep(0)
    assert not limit.expired()
