"""Reads the results and failures of activities so that none can wedge a workflow, including a user's own.

The SDK decodes a result before any workflow code runs. A result that cannot be decoded, such as one entered by an
operator, would fail the workflow task again and again. So activities return their results undecoded.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from temporalio import exceptions, workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as TimedOut

from standfast.messages import JSONObject, cut, error_text
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Resume
from standfast.temporal.wire.snapshots import Surroundings


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A payload that could not be read; the code that validates values rejects it and shows the reason."""

    reason: str

    def __repr__(self) -> str:
        return f"a payload that cannot be read ({self.reason})"


def undecodable(error: Exception) -> Undecodable:
    return Undecodable(" ".join(cut(error_text(error), 200).split()))


def read_result(found: RawValue | None, kind: Any = None) -> Any:
    """Return the result of an activity that was called with `result_type=RawValue`.

    Args:
        kind: the type to decode it as; any by default.
    """
    if not isinstance(found, RawValue):  # completed without a result
        return None
    try:
        return workflow.payload_converter().from_payload(found.payload, kind)
    except Exception as error:
        return undecodable(error)


_FOR_GOOD = ("SessionConflictError", "SessionAccessDeniedError")


def is_for_good(error: FailureError) -> bool:
    """Whether an activity failed because the session is not the run's: this cannot be repaired."""
    return isinstance(error.cause, ApplicationError) and error.cause.type in _FOR_GOOD


def failed(error: FailureError) -> ApplicationError:
    """Return the error that fails a run like its activity: it cannot be repaired, or the input was wrong."""
    cause = error.cause or error
    if isinstance(cause, ApplicationError) and cause.type == names.STEP_ERROR:
        kind = text_in(error, "type") or "StandfastError"
        return ApplicationError(
            cause.message, {"failed_step": text_in(error, "failed_step")}, type=kind, non_retryable=True
        )
    if isinstance(cause, ApplicationError):
        return ApplicationError(cause.message, *cause.details, type=cause.type, non_retryable=True)
    return ApplicationError(str(cause), type="StandfastError", non_retryable=True)


def why(error: FailureError) -> str:
    """Return the reason why an activity or child failed, as text."""
    cause = error.cause or error
    return cause.message if isinstance(cause, ApplicationError) else error_text(cause)


def refuse(why: str) -> NoReturn:
    raise ApplicationError(why, type="InputError", non_retryable=True) from None


def fail(error: FailureError) -> NoReturn:
    raise failed(error) from None


class SkippedError(Exception):
    """A person lets a run continue without a call or step that no worker has; the text says who, and why."""

    def __init__(self, name: str, skip: Resume) -> None:
        super().__init__(f"skipped by {skip.by or 'someone'}: {skip.reason}")
        self.name = name


_NOT_REGISTERED = "NotFoundError"  # the SDK's type for an activity that a worker does not have


def is_missing(error: FailureError) -> bool:
    """Whether the error of an activity, or its cause, reports that a worker does not have the agent or the tool."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type in (names.NOT_HERE, _NOT_REGISTERED)


def is_unavailable(error: ActivityError) -> bool:
    """Whether a model could not be called within its maximum number of attempts."""
    cause = error.cause
    return isinstance(cause, TimedOut) or (
        isinstance(cause, ApplicationError) and cause.type == names.MODEL_UNAVAILABLE
    )


def is_users_fault(error: ActivityError) -> bool:
    """Whether a user function raised, such as a guardrail or the instructions: another model does not fix that."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == names.HOOK_ERROR


def missing(error: FailureError, tool: str | None) -> tuple[str, str]:
    """Return what a worker lacks: its kind and name, and a text for people."""
    cause = cast(ApplicationError, error.cause or error)
    if cause.type == _NOT_REGISTERED:
        return str(tool), f"This worker has no tool '{tool}'"
    return text_in(error, "name") or str(tool), cause.message


def details_of(error: FailureError) -> JSONObject:
    """Return the details of an activity's error. If an operator failed it by hand, they may be anything."""
    cause = error.cause or error
    details = cause.details if isinstance(cause, ApplicationError) else ()
    return details[0] if details and isinstance(details[0], dict) else {}


def text_in(error: FailureError, name: str) -> str | None:
    """Return a text from the details of an activity's error; None if they lack a text with this name."""
    found = details_of(error).get(name)
    return found if isinstance(found, str) else None


def surroundings_of(error: FailureError) -> Surroundings:
    """Return the run's surroundings from the error of a worker that lacks what the run needs."""
    flags = {name: found for name, found in details_of(error).items() if isinstance(found, bool)}
    return cast(Surroundings, {"search": False, **flags})


def missing_step(error: FailureError) -> str | None:
    """Return the path of the step that a worker lacks; None if it lacks something else."""
    return text_in(error, "step")


def is_store_away(error: FailureError) -> bool:
    """Whether the error of an activity, or its cause, reports that a worker could not use its store."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type in (names.STORE_ERROR, names.STORE_AWAY)


def is_store_behind(error: FailureError) -> bool:
    """Whether the error of an activity, or its cause, reports that the store lacks rows that the run has seen."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type == names.STORE_BEHIND


def has_other_store(error: FailureError) -> bool:
    """Whether a worker could use its store, but it is not the run's store."""
    return bool(cast(dict[str, object], surroundings_of(error)).get(names.OTHER_STORE))


def may_pass(error: FailureError) -> bool:
    """Whether an activity that failed once may succeed later: it timed out, or its error may be transient."""
    cause = error.cause or error
    if isinstance(cause, ApplicationError):
        return not cause.non_retryable
    return isinstance(cause, exceptions.TimeoutError)


def may_be_tried_again(error: FailureError) -> bool:
    """Whether the store is back and now the model fails, so that its attempts are counted again from zero."""
    cause = error.cause or error
    return isinstance(cause, ApplicationError) and cause.type == names.MODEL_UNAVAILABLE and not cause.non_retryable


def put_in_by_hand(activity: str) -> str:
    return f"activity {activity} was completed by hand with an unusable result; resume to run it again"


def was_lost(error: ActivityError) -> bool:
    """Whether the last attempt at an activity has not ended by itself, so that it may have done a part of its work."""
    return not isinstance(error.cause, ApplicationError) or error.cause.type == names.WORKER_DIED


def was_cancelled(trying: "asyncio.Future[Any]") -> bool:
    """Whether an attempt was cancelled, whatever error reports it."""
    error = None if trying.cancelled() else trying.exception()
    return trying.cancelled() or (error is not None and exceptions.is_cancelled_exception(error))
