"""What a worker has not, its store included, and how an activity comes to one that has it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as TimedOut

from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Resume
from standfast.temporal.wire.results import fits
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.workflows.activity_options import until_the_store_is_back
from standfast.temporal.workflows.store_waits import StoreWaits


class SkippedError(Exception):
    """A person has a run go on without the call or step that no worker has; the words say who, and why."""

    def __init__(self, name: str, skip: Resume) -> None:
        super().__init__(f"skipped by {skip.by or 'somebody'}: {skip.reason}")
        self.name = name


T = TypeVar("T")

VERSIONS = 20  # that a step is tried with unasked, before it waits for a person alone
_NOT_REGISTERED = "NotFoundError"  # what the SDK says of an activity type that a worker has not


def is_missing(error: FailureError) -> bool:
    """Whether a worker has not the agent or the tool; the error of an activity, or its cause."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type in (names.NOT_HERE, _NOT_REGISTERED)


def is_unavailable(error: ActivityError) -> bool:
    """Whether a model was tried as often as it may be, and could not be called."""
    cause = error.cause
    return isinstance(cause, TimedOut) or (
        isinstance(cause, ApplicationError) and cause.type == names.MODEL_UNAVAILABLE
    )


def missing(error: FailureError, tool: str | None) -> tuple[str, str]:
    """Return what a worker has not, and that in words."""
    cause = cast(ApplicationError, error.cause or error)
    if cause.type == _NOT_REGISTERED:
        return str(tool), f"This worker has no tool '{tool}'"
    return cause.details[0]["name"], cause.message


def surroundings_of(error: FailureError) -> Surroundings:
    """Return where the run is, from what a worker says that has not what it needs."""
    cause = cast(ApplicationError, error.cause or error)
    return cast(Surroundings, cause.details[0]) if cause.details else {"search": False}


def missing_step(error: FailureError) -> str | None:
    """Return the path of the step that a worker has not, or None if it is something else."""
    cause = cast(ApplicationError, error.cause or error)
    return cause.details[0].get("step") if cause.details else None


def is_store_away(error: FailureError) -> bool:
    """Whether a worker could not use its store; the error of an activity, or its cause."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type in (names.STORE_ERROR, names.STORE_AWAY)


def may_pass(error: FailureError) -> bool:
    """Whether an activity that was tried once may succeed later: it took too long, or failed not for good."""
    cause = error.cause or error
    if isinstance(cause, ApplicationError):
        return not cause.non_retryable
    return isinstance(cause, exceptions.TimeoutError)


class Waiter(Protocol):
    """What a run shows while it waits for what workers have not."""

    store_waits: StoreWaits

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is cancelled, so that it waits for nothing more."""

    async def await_worker(self, error: FailureError, tool: str | None = None, path: str | None = None) -> Any:
        """Wait for a worker that has what another had not; None after a cancel."""

    async def pause(self, name: str, message: str, mended: "asyncio.Future[Any] | None" = None) -> bool:
        """Wait for a person, who says whether to try again, or until it is mended without one."""

    def show_store_away(self, error: FailureError, since: datetime) -> None:
        """Show that an activity waits for the store."""

    def show_store_back(self) -> None:
        """Take back what `show_store_away` has shown."""


async def with_store(waiter: Waiter, attempt: Callable[[dict[str, Any]], Awaitable[T]], options: dict[str, Any]) -> T:
    """Return the result of an activity that needs the store, however long that is away; people see it after a while.

    Args:
        attempt: runs the activity with these options.

    Raises:
        ActivityError: it failed for another reason.
    """
    while True:
        since = workflow.now()
        try:
            return await attempt(options)
        except FailureError as error:
            if not is_store_away(error):
                raise
            waiter.show_store_away(error, since)
        # Not in a `finally`: a worker that drops the run closes it outside of the workflow's loop.
        try:
            result = await attempt(until_the_store_is_back(options))
        except (FailureError, asyncio.CancelledError) as error:
            waiter.show_store_back()
            if not isinstance(error, FailureError) or not _may_be_tried_again(error):
                raise
        else:
            waiter.show_store_back()
            return result


def _may_be_tried_again(error: FailureError) -> bool:
    """Whether the store is back, and a model fails whose attempts begin now."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type == names.MODEL_UNAVAILABLE and not cause.non_retryable


async def anywhere(
    waiter: Waiter,
    activity: str,
    reference: dict[str, Any],
    options: dict[str, Any],
    *,
    tool: str | None = None,
    otherwise: Any = None,
) -> Any:
    """Return the result of an activity, of whichever worker has what it needs.

    Args:
        tool: what it needs besides the agent or pipeline.
        otherwise: what is returned if the run is cancelled before it has a result that it can use.

    Raises:
        ActivityError: it failed for another reason.
        ApplicationError: it was completed by hand with what no run can use, and nobody wants it tried again.
        SkippedError: a person goes on without it.
    """

    def attempt(options: dict[str, Any]) -> Awaitable[Any]:
        return workflow.execute_activity(activity, reference, **options)

    while True:
        try:
            found = await with_store(waiter, attempt, options)
        except ActivityError as error:
            if not is_missing(error):
                raise
            if await waiter.await_worker(error, tool, missing_step(error)) is None:
                return otherwise
            continue
        if fits(activity, reference, found):
            return found
        if not await waiter.pause(activity, put_in_by_hand(activity)):
            if waiter.is_cancelled:
                return otherwise
            raise ApplicationError(put_in_by_hand(activity), type="InputError", non_retryable=True)


async def until_mended(waiter: Waiter, activity: str, reference: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return the result of an activity; if what a user declared raises in it, of a later version, or when resumed.

    The activity is told which versions have raised, and the server offers it to workers until one has another: a run
    that waits has no events of that, and tries each version once. What was done is kept, so that it goes on from there.

    Raises:
        ActivityError: it failed for another reason, or nobody wants it tried again.
    """
    raised: list[str] = []
    trying: Awaitable[Any] = anywhere(waiter, activity, reference, options)
    while True:
        try:
            return await trying
        except ActivityError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError) or cause.type != names.STEP_ERROR:
                raise
            detail, mended = cause.details[0], None
            if "version" in detail:  # what older versions of this library said has none
                raised = [*(one for one in raised if one != detail["version"]), detail["version"]]
                if len(raised) <= VERSIONS:
                    again = anywhere(waiter, activity, {**reference, "raised": raised}, options)
                    mended = asyncio.ensure_future(again)
            if not await waiter.pause(detail["failed_step"], cause.message, mended):
                raise
            if mended is None or _was_cancelled(mended):
                trying = anywhere(waiter, activity, reference, options)
            else:
                trying = mended


def _was_cancelled(trying: "asyncio.Future[Any]") -> bool:
    error = None if trying.cancelled() else trying.exception()
    return trying.cancelled() or (error is not None and exceptions.is_cancelled_exception(error))


def put_in_by_hand(activity: str) -> str:
    return f"activity {activity} was completed by hand with what the run cannot use; resume to run it again"
