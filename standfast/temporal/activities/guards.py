"""Guards activities: heartbeats while they run, and errors as failures that say whether trying again may help."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.errors import (
    DefinitionError,
    InputError,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    SessionStoreError,
    StandfastError,
    StoreBehindError,
    StoreError,
)
from standfast.llm.provider_errors import may_pass
from standfast.messages import error_text
from standfast.runtime.users_functions import call_users
from standfast.temporal.activities.hosts import TRIES, AgentHost
from standfast.temporal.wire import names

T = TypeVar("T")

_LOG = logging.getLogger("standfast")
HEARTBEAT_EVERY = 3.0  # seconds; the server gives a worker up after 10 (tools) or 15 (models)
_FOR_GOOD = (InputError, DefinitionError, SessionAccessDeniedError, SessionConflictError, SessionNotFoundError)


@dataclass(slots=True)
class Guard:
    """Turn our errors into failures that name their class; those that a retry cannot mend are not retried.

    Args:
        beats: whether to tell the server meanwhile that this activity is alive, from the worker's loop, whatever its
            handler does. A local activity never does: the server does not know of it.
    """

    host: AgentHost
    beats: bool = True
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __enter__(self) -> None:
        if self.beats:
            self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_EVERY, self._beat)

    def _beat(self) -> None:
        if not activity.info().is_local:
            activity.heartbeat()
        self.__enter__()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(error, StoreBehindError):
            raise ApplicationError(
                error_text(error),
                self.host.surroundings,
                type=names.STORE_BEHIND,
                category=ApplicationErrorCategory.BENIGN,
                next_retry_delay=timedelta(seconds=min(0.25 * activity.info().attempt, 10)),
            ) from None
        if isinstance(error, StoreError):
            raise self._store_failure(error) from None
        if isinstance(error, StandfastError):
            raise ApplicationError(
                error_text(error), type=type(error).__name__, non_retryable=isinstance(error, _FOR_GOOD)
            ) from None

    def _store_failure(self, error: StoreError) -> ApplicationError:
        """Return the failure of the activity. It is retried unseen for a while, then by the run in sight of people."""
        info = activity.info()
        waits = (datetime.now(UTC) - info.scheduled_time).total_seconds()
        if is_other := isinstance(error, SessionStoreError):
            is_known = info.attempt >= TRIES  # it does not pass with time, but other workers may have the run's store
        else:
            is_known = waits >= self.host.store_patience
        return ApplicationError(
            error_text(error),
            {**self.host.surroundings, names.OTHER_STORE: True} if is_other else self.host.surroundings,
            type=names.STORE_AWAY if is_known else names.STORE_ERROR,
            category=ApplicationErrorCategory.BENIGN,  # not worth a traceback at every attempt
            next_retry_delay=timedelta(seconds=min(0.25 * info.attempt, 10)),  # another worker may have its store
        )


def is_given_up() -> bool:
    """Whether the run itself cancelled its activity, not a worker's shutdown or a server that has lost patience."""
    details = activity.cancellation_details()
    return details is None or details.cancel_requested


async def run_hook(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook, or another function of the user's that a run needs, on the handlers' loop.

    Raises:
        ApplicationError: of type `HookError`; the run pauses until somebody has mended the hook.
    """
    try:
        return await call_users(hook, *arguments)
    except Exception as error:
        what = getattr(hook, "__name__", "hook")
        _LOG.warning("%s raised", what, exc_info=error)  # the server keeps 4 KB of a failure, no tracebacks
        details = [{names.PASSES: True}] if may_pass(error) else []
        raise ApplicationError(
            f"{what} raised {type(error).__name__}: {error_text(error)}",
            *details,
            type=names.HOOK_ERROR,
            non_retryable=True,
        ) from None


async def called(host: AgentHost, function: Callable[[], T]) -> T:
    """Call a function that a user declared, where users' code runs."""
    return cast(T, await host.thread.run(call_users(function)))
