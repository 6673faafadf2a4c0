"""Tells a cancel of the run from one that code under it raised by itself."""

import asyncio


class Cancellation:
    """Made before code is awaited; afterwards `requested()` tells whether somebody cancelled this task meanwhile."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._count()

    def requested(self) -> bool:
        return self._count() > self._before

    def _count(self) -> int:
        return 0 if self._task is None else self._task.cancelling()
