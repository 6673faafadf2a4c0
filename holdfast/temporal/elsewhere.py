"""What a worker has not, and how an activity comes to one that has it."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from holdfast.temporal import names
from holdfast.temporal.facts import Surroundings
from holdfast.temporal.mailboxes import Resume
from holdfast.temporal.results import fits


class SkippedError(Exception):
    """A person has a run go on without the call or step that no worker has; the words say who, and why."""

    def __init__(self, name: str, skip: Resume) -> None:
        super().__init__(f"skipped by {skip.by or 'somebody'}: {skip.reason}")
        self.name = name


_NOT_REGISTERED = "NotFoundError"  # what the SDK says of an activity type that a worker has not


def is_missing(error: FailureError) -> bool:
    """Whether a worker has not the agent or the tool; the error of an activity, or its cause."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type in (names.NOT_HERE, _NOT_REGISTERED)


def missing(error: FailureError, tool: str | None) -> tuple[str, str, Surroundings]:
    """Return what a worker has not, that in words, and where the run is."""
    cause = cast(ApplicationError, error.cause or error)
    if cause.type == _NOT_REGISTERED:
        return str(tool), f"This worker has no tool '{tool}'", {"search": False}
    return cause.details[0]["name"], cause.message, cause.details[0]


def missing_step(error: FailureError) -> str | None:
    """Return the path of the step that a worker has not, or None if it is something else."""
    cause = cast(ApplicationError, error.cause or error)
    return cause.details[0].get("step") if cause.details else None


async def anywhere(
    await_worker: Callable[..., Awaitable[Any]],
    pause: Callable[[str, str], Awaitable[bool]],
    activity: str,
    reference: dict[str, Any],
    options: dict[str, Any],
    *,
    tool: str | None = None,
    otherwise: Any = None,
) -> Any:
    """Return the result of an activity, of whichever worker has what it needs.

    Args:
        await_worker: waits for a worker that has what another had not; None after a cancel.
        pause: waits for a person, who says whether to try again.
        tool: what it needs besides the agent or pipeline.
        otherwise: what is returned if the run is cancelled before there is such a worker.

    Raises:
        ActivityError: it failed for another reason.
        ApplicationError: it was completed by hand with what no run can use, and nobody wants it tried again.
        SkippedError: a person goes on without it.
    """
    while True:
        try:
            found = await workflow.execute_activity(activity, reference, **options)
        except ActivityError as error:
            if not is_missing(error):
                raise
            if await await_worker(error, tool, missing_step(error)) is None:
                return otherwise
            continue
        if fits(activity, reference, found):
            return found
        if not await pause(activity, put_in_by_hand(activity)):
            raise ApplicationError(put_in_by_hand(activity), type="InputError", non_retryable=True)


def put_in_by_hand(activity: str) -> str:
    return f"activity {activity} was completed by hand with what the run cannot use; resume to run it again"
