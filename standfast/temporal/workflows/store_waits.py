"""Shows people, as one thing, that activities of a run wait for its store."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from temporalio import workflow

from standfast.temporal.workflows.inbox import read_moment
from standfast.temporal.workflows.waiting import Waiting

_SAID = 2_000  # characters
T = TypeVar("T")


class StoreWaits:
    """What of a run waits for its store: once shown, however many activities do.

    Args:
        begin, end: show something that waits, and take that back.
    """

    def __init__(self, begin: Callable[[Waiting], None], end: Callable[[Waiting], None]) -> None:
        self._begin, self._end = begin, end
        self._shown: Waiting | None = None
        self._count = 0
        self._holders: dict[str, bool] = {}  # activities that may hold what the store has not, and whether they said so

    def add(self, message: str, since: datetime) -> None:
        """Show that one more activity waits."""
        self._count += 1
        if self._shown is None:
            self._shown = Waiting("store", "store", message, since)
            self._begin(self._shown)
            workflow.logger.warning("Waits for its store: %s", message)

    def remove(self) -> None:
        """Take back what `add` has shown, once no activity waits any more."""
        self._count -= 1
        if not self._count and self._shown is not None:
            gone, self._shown = self._shown, None
            self._end(gone)

    async def holding(self, holder: str, work: Awaitable[T]) -> T:
        """Return what comes of an activity that may say, meanwhile, that the store does not take what it holds."""
        self._holders[holder] = False
        # Not in a `finally`: a worker that drops the run closes it outside of the workflow's loop.
        try:
            found = await work
        except (Exception, asyncio.CancelledError):
            self._released(holder)
            raise
        self._released(holder)
        return found

    def _released(self, holder: str) -> None:
        if self._holders.pop(holder, False):
            self.remove()

    def take_signal(self, data: object) -> None:
        """Take in what `write_in_sight` says; what no activity of now can have said changes nothing."""
        given = data if isinstance(data, dict) else {}
        holder, message = given.get("holder"), given.get("message")
        if isinstance(holder, str) and isinstance(message, str) and self._holders.get(holder) is False:
            self._holders[holder] = True
            self.add(message[:_SAID], read_moment(given.get("since")) or workflow.now())
