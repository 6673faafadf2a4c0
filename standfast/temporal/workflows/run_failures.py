"""Describes the failure of a run, and the reason why its activity or child failed."""

from typing import NoReturn

from temporalio.exceptions import ApplicationError, FailureError

from standfast.messages import error_text
from standfast.temporal.wire import names
from standfast.temporal.workflows.missing_workers import text_in

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
