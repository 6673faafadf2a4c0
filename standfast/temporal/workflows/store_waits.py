"""Lets activities wait for a run's store, and shows people the wait as one item."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import FailureError

from standfast.temporal.workflows.activity_options import until_the_store_is_back
from standfast.temporal.workflows.inbox import read_moment
from standfast.temporal.workflows.missing_workers import (
    has_other_store,
    is_store_away,
    is_store_behind,
    may_be_tried_again,
    was_cancelled,
)
from standfast.temporal.workflows.run_failures import failed, why
from standfast.temporal.workflows.waiting import Waiting

_SAID = 2_000  # characters
T = TypeVar("T")


class StoreWaits:
    """The activities of a run that wait for its store, shown as one item regardless of their number.

    Args:
        begin, end: show a waiting item, and remove it.
        learn: takes in the run's surroundings from the error of an activity that could not use its store.
        pause: waits for a person, or for an automatic attempt; see `Pauses.pause`.
    """

    def __init__(
        self,
        begin: Callable[[Waiting], None],
        end: Callable[[Waiting], None],
        learn: Callable[[FailureError], None],
        pause: Callable[[str, str, "asyncio.Future[Any]"], Awaitable[bool]],
    ) -> None:
        self._pause = pause
        self._begin, self._end, self._learn = begin, end, learn
        self._shown: Waiting | None = None
        self._count = 0
        # Activities that may hold data that is not stored, and whether each has reported it.
        self._holders: dict[str, bool] = {}

    async def run(self, attempt: Callable[[dict[str, Any]], Awaitable[T]], options: dict[str, Any]) -> T:
        """Return the result of an activity that needs the store, however long the store is away; people see the wait.

        Args:
            attempt: runs the activity with these options.

        Raises:
            ActivityError: it failed for another reason.
            ApplicationError: the store is older than the run, and a person has accepted that.
        """
        while True:
            since = workflow.now()
            try:
                return await attempt(options)
            except FailureError as error:
                if is_store_behind(error):
                    again = asyncio.ensure_future(attempt(until_the_store_is_back(options)))
                    if not await self._pause("store", why(error), again):
                        raise failed(error) from None
                    if again.cancelled() or was_cancelled(again):
                        continue
                    return await again
                if not is_store_away(error):
                    raise
                self._learn(error)
                self._add(why(error), since, has_other_store(error))
            # Not in a `finally`: a worker that evicts the run closes it outside the workflow's loop.
            try:
                result = await attempt(until_the_store_is_back(options))
            except (FailureError, asyncio.CancelledError) as error:
                self._remove()
                if not isinstance(error, FailureError) or not may_be_tried_again(error):
                    raise
            else:
                self._remove()
                return result

    def _add(self, message: str, since: datetime, needs_worker: bool = False) -> None:
        """Show that one more activity waits: for the store, or for a worker that has it."""
        self._count += 1
        if self._shown is None:
            what = ("worker", "its store") if needs_worker else ("store", "store")
            self._shown = Waiting(*what, message, since)
            self._begin(self._shown)
            workflow.logger.warning("Waits for its store: %s", message)

    def _remove(self) -> None:
        """Remove the item that `_add` shows, once no activity waits any more."""
        self._count -= 1
        if not self._count and self._shown is not None:
            gone, self._shown = self._shown, None
            self._end(gone)

    async def holding(self, holder: str, work: Awaitable[T]) -> T:
        """Return the result of an activity that may report, while it runs, that the store rejects the data it holds."""
        self._holders[holder] = False
        # Not in a `finally`: a worker that evicts the run closes it outside the workflow's loop.
        try:
            found = await work
        except (Exception, asyncio.CancelledError):
            self._released(holder)
            raise
        self._released(holder)
        return found

    def _released(self, holder: str) -> None:
        if self._holders.pop(holder, False):
            self._remove()

    def take_signal(self, data: object) -> None:
        """Take in a report of `write_in_sight`; a report that no running activity can have sent changes nothing."""
        given = data if isinstance(data, dict) else {}
        holder, message = given.get("holder"), given.get("message")
        if isinstance(holder, str) and isinstance(message, str) and self._holders.get(holder) is False:
            self._holders[holder] = True
            self._add(message[:_SAID], read_moment(given.get("since")) or workflow.now())
