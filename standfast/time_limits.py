"""Limits the time of what is awaited, also in a task that was cancelled before, as clean-up code often is.

`asyncio.timeout` alone does so from Python 3.11.3 on. Debian 12 has 3.11.2: there such a task was told that it is
cancelled once more, and not that its time is over.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncGenerator[asyncio.Timeout, None]:
    """Cancel what is awaited within after so many seconds; None is as long as it takes.

    Raises:
        TimeoutError: the time was over.
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
