"""Runs a workflow to its end, with the activities and children that a cancel or a reset must reach."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.workflows.board.run_board import Board
from standfast.temporal.workflows.run.activity_results import fail, why
from standfast.temporal.workflows.sdk.unseen_events import cancel_has_come, hears_of_resets, undetected_reset

HandleT = TypeVar("HandleT", bound="asyncio.Future[Any]")
TELLING = timedelta(seconds=60)  # in which a run that has ended replies to waiting senders
EVENTS = 4_000  # of a history, after which a waiting run continues as new: replay stays short
_FIRST_TASK = 3  # events up to the beginning of the first task


class Running:
    """The activities and children that run now.

    They are kept in the order in which they began, which is the order of the commands that cancel them. The order of a
    set would differ at each replay.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self.resets = 0  # of the workflow; the store has what was acknowledged after the point of a reset
        self.wakes = False  # at a reset; a run begun by an older worker sleeps until the next event
        self.attaches = False  # to its agents after a reset; a run begun by an older worker may wait for ever
        self._handles: dict[asyncio.Future[Any], None] = {}
        self._when_reset: list[Callable[[], None]] = []
        self._ask_just_reset: Callable[[bool], bool] = lambda is_detected: False
        self._doubts = 0  # signals and updates of which a user's workflow cannot know whether a reset has sent them
        self._doubted: object = None  # the last of them
        if workflow.in_workflow():
            # The only sign of a reset that a workflow gets, at the same point in every replay.
            workflow.register_random_seed_callback(lambda seed: self._was_reset())
            self._loop = asyncio.get_running_loop()
            self._ask_just_reset = undetected_reset()

    def _was_reset(self) -> None:
        self._ask_just_reset(True)
        self.note_resets(1)
        if self.wakes:
            self._loop.call_soon(lambda: None)  # otherwise no condition is checked if the seed comes alone

    def is_just_reset(self) -> bool:
        """Whether what is applied now follows a reset that the workflow has not detected."""
        return self._ask_just_reset(False)

    def may_follow_reset(self, arrived: object) -> bool:
        """Whether a user's workflow got something after a reset; True once for each such signal or update.

        The SDK reports the reset later than the signal. The run's id also shows it, but a replay has that id from its
        beginning, or never. So the history has a marker for each answer that is True.
        """
        info = workflow.info()
        if arrived is self._doubted or hears_of_resets():
            return False
        self._doubted, self._doubts = arrived, self._doubts + 1
        if info.run_id == info.original_execution_run_id and not workflow.unsafe.is_replaying():
            return False
        return workflow.patched(f"{names.RESETS_FIRST_AT}{self._doubts}")

    def when_reset(self, react: Callable[[], None]) -> None:
        """Call a function whenever the workflow detects a reset."""
        self._when_reset.append(react)

    def note_resets(self, count: int) -> None:
        self.resets += count
        for react in self._when_reset if count else ():
            react()

    def cancel(self) -> None:
        """Cancel all current and future work.

        The run waits for each activity and child, so that its outcome is known.
        """
        self.cancelled = True
        for handle in list(self._handles):
            handle.cancel()

    def add(self, handle: HandleT) -> HandleT:
        """Return an activity or child, which a cancel reaches until it has ended."""
        self._handles[handle] = None
        handle.add_done_callback(lambda _: self._handles.pop(handle, None))
        if self.cancelled:
            handle.cancel()
        return handle

    async def ended_or_reset(self, handle: "asyncio.Future[Any]", resets: int) -> bool:
        """Wait until a child has ended or the workflow was reset once more; return whether the child has ended.

        The server reports the end of a child to one run of its parent. Another run, which is reset later to a point
        after the child's start, would wait for ever.

        Args:
            resets: the number of resets before the child was started.
        """
        await workflow.wait_condition(lambda: handle.done() or self.resets > resets)
        if not handle.done():
            self._handles.pop(handle, None)
            handle.add_done_callback(lambda one: one.cancelled() or one.exception())  # its end is known otherwise
        return handle.done()

    async def until(self, condition: Callable[[], bool], deadline: datetime | None, summary: str) -> bool:
        """Wait for a condition, the deadline or a cancel; return whether the deadline passed."""
        timeout = None if deadline is None else max(0.0, (deadline - workflow.now()).total_seconds())
        try:
            await workflow.wait_condition(
                lambda: condition() or self.cancelled, timeout=timeout, timeout_summary=summary
            )
        except TimeoutError:
            return True
        return False


async def run_to_end(
    main: Awaitable[JSONObject], running: Running, board: Board, senders_told: Callable[[], Awaitable[None]]
) -> JSONObject:
    """Run to the end. A cancel goes to the current work; the run ends when all of that has ended.

    Args:
        senders_told: waits until every waiting sender has its outcome.
    """

    async def to_its_end() -> JSONObject:
        try:
            result = await main
            await board.rows.settled(ending=True)
            return result
        except FailureError as error:
            board.error = why(error)
            board.end_run("error")
            await senders_told()
            await board.rows.settled(ending=True)
            if isinstance(error, ActivityError):
                fail(error)
            raise
        except asyncio.CancelledError:
            if not board.ended:
                board.end_run("cancelled")
            await senders_told()
            await board.rows.settled(ending=True)
            raise

    task = asyncio.ensure_future(to_its_end())
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            running.cancel()


async def until_told(condition: Callable[[], bool]) -> None:
    """Wait at the end of a run until every waiting sender has its outcome, or for a minute.

    The recording activity may wait for a store that is away, or for an operator who has paused it. Its sender then
    learns that the message may or may not count.
    """
    if not condition():
        timeout = TELLING if workflow.patched(names.TELLING_ENDS) else None
        with suppress(TimeoutError):
            await workflow.wait_condition(condition, timeout=timeout, timeout_summary="until senders are told")


def carried_in(data: Any) -> JSONObject | None:
    """Return the state carried over by the previous run if this run continues it as new; None otherwise."""
    if workflow.info().continued_run_id is None or not isinstance(data, dict):
        return None
    return data.get("carried")


def began_again() -> bool:
    """Whether the first task of a run may be a repetition: the run may have been reset to its beginning.

    After a reset, the history contains that task's failure. The history also contains a failure if the task simply
    failed, and it is longer if a signal began the run. Such runs search the store in vain.
    """
    return workflow.info().get_current_history_length() > _FIRST_TASK


def is_long() -> bool:
    """Whether the history is so long that the run should continue as new."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() > EVENTS


def may_continue() -> bool:
    """Whether a run can continue as new now without losing a cancel or the outcome of an update."""
    return workflow.all_handlers_finished() and not cancel_has_come()
