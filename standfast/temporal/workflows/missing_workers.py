"""Reads what a worker has not, its store included, from the error of an activity."""

from typing import cast

from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as TimedOut

from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Resume
from standfast.temporal.wire.snapshots import Surroundings


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


def may_be_tried_again(error: FailureError) -> bool:
    """Whether the store is back, and a model fails whose attempts begin now."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type == names.MODEL_UNAVAILABLE and not cause.non_retryable


def put_in_by_hand(activity: str) -> str:
    return f"activity {activity} was completed by hand with what the run cannot use; resume to run it again"
