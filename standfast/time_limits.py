"""Limits the time of awaited code, even in a task that was already cancelled, as clean-up code often is.

`asyncio.timeout` alone does so only from Python 3.11.3 on. Debian 12 has 3.11.2, where such a task gets another cancel
instead of a timeout.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncGenerator[asyncio.Timeout, None]:
    """Cancel the awaited code after so many seconds; None means no limit.

    Raises:
        TimeoutError: the time limit has passed.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield limit
    except asyncio.CancelledError as error:
        if limit.expired() and task and task.cancelling() <= before:
            raise TimeoutError from error
        raise
