"""Turns our errors into Temporal failures that name their class, and say whether trying again may help."""

from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.errors import (
    DefinitionError,
    InputError,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    StandfastError,
    StoreError,
)
from standfast.messages import error_text
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire import names

_FOR_GOOD = (InputError, DefinitionError, SessionAccessDeniedError, SessionConflictError, SessionNotFoundError)


class TypedErrors:
    """Turn our errors into failures that name their class; those that no retry mends are not retried."""

    __slots__ = ("_host",)

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, StoreError):
            raise self._store_failure(error) from None
        if isinstance(error, StandfastError):
            raise ApplicationError(
                error_text(error), type=type(error).__name__, non_retryable=isinstance(error, _FOR_GOOD)
            ) from None

    def _store_failure(self, error: StoreError) -> ApplicationError:
        """Return what the activity fails with: tried again unseen for a while, then by the run, in sight of people."""
        info = activity.info()
        waits = (datetime.now(UTC) - info.scheduled_time).total_seconds()
        return ApplicationError(
            error_text(error),
            self._host.surroundings,
            type=names.STORE_AWAY if waits >= self._host.store_patience else names.STORE_ERROR,
            category=ApplicationErrorCategory.BENIGN,  # not worth a traceback at every attempt
            next_retry_delay=timedelta(seconds=min(0.25 * info.attempt, 10)),  # another worker may have its store
        )


def is_given_up() -> bool:
    """Whether the run itself cancelled its activity; else a worker is shut down, or the server has lost patience."""
    details = activity.cancellation_details()
    return details is None or details.cancel_requested
