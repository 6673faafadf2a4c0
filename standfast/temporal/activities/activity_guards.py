"""Guards activities: heartbeats, failures that tell whether to retry, and long writes shown to people."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

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
from standfast.messages import cut, error_text
from standfast.runtime.retried_writes import retry_write
from standfast.runtime.users_functions import call_users
from standfast.temporal.activities.agent_host import TRIES, AgentHost
from standfast.temporal.wire import names

T = TypeVar("T")

_LOG = logging.getLogger("standfast")
HEARTBEAT_EVERY = 3.0  # seconds; the server gives up on a worker after 10 (tools) or 15 (models)
_FOR_GOOD = (InputError, DefinitionError, SessionAccessDeniedError, SessionConflictError, SessionNotFoundError)


@dataclass(slots=True)
class Guard:
    """Turn standfast errors into failures that name their class; errors that a retry cannot fix are not retried.

    Args:
        beats: whether to send heartbeats while the activity runs, from the worker's loop, whatever its handler does. A
            local activity never sends any: the server does not know it.
    """

    host: AgentHost
    beats: bool = True
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __enter__(self) -> None:
        self.host.in_hand.add(activity.info().task_token)
        if self.beats:
            self._beat_later()

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_EVERY, self._beat)

    def _beat(self) -> None:
        if not activity.info().is_local:
            activity.heartbeat()
        self._beat_later()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self.host.in_hand.discard(activity.info().task_token)
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
            category = ApplicationErrorCategory.UNSPECIFIED
            if isinstance(error, SessionConflictError):  # if its run was terminated, only this line reports it
                info, category = activity.info(), ApplicationErrorCategory.BENIGN  # without a traceback
                _LOG.warning(
                    "%s of workflow %s was refused: %s", info.activity_type, info.workflow_id, error_text(error)
                )
            raise ApplicationError(
                error_text(error),
                type=type(error).__name__,
                non_retryable=isinstance(error, _FOR_GOOD),
                category=category,
            ) from None

    def _store_failure(self, error: StoreError) -> ApplicationError:
        """Return the failure of the activity.

        Temporal retries the activity for a while, unseen; then the run retries it, and people see that.
        """
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
    """Whether the run itself cancelled its activity, rather than a worker's shutdown or an impatient server."""
    details = activity.cancellation_details()
    return details is None or details.cancel_requested


async def run_hook(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook, or another user function that a run needs, on the handlers' loop.

    Raises:
        ApplicationError: of type `HookError`; the run pauses until the hook is fixed.
    """
    try:
        return await call_users(hook, *arguments)
    except Exception as error:
        what = getattr(hook, "__name__", "hook")
        _LOG.warning("%s raised", what, exc_info=error)  # the server keeps 4 KB of a failure, without tracebacks
        details = [{names.PASSES: True}] if may_pass(error) else []
        raise ApplicationError(
            f"{what} raised {type(error).__name__}: {error_text(error)}",
            *details,
            type=names.HOOK_ERROR,
            non_retryable=True,
        ) from None


async def called(host: AgentHost, function: Callable[[], T]) -> T:
    """Call a function declared by the user, where user code runs."""
    return cast(T, await host.thread.run(call_users(function)))


_REASON = 2_000  # characters of the reason why a store refuses writes


async def write_in_sight(write: Callable[[], Awaitable[T]], reference: Mapping[str, Any], patience: float) -> T:
    """Retry a write whose data would be lost if the activity gave up; after a while, its run shows it to people.

    Args:
        reference: the activity's reference, by which the run knows it; see `names.holder`.
        patience: seconds until the run is notified; it then shows that the store is away until the activity ends.
    """
    since, why = datetime.now(UTC), "the store does not answer"

    async def noted() -> T:
        nonlocal why
        try:
            return await write()
        except StoreError as error:
            why = error_text(error)
            raise

    async def tell() -> None:
        info = activity.info()
        run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        holder = names.holder(info.activity_type, reference)
        told = {"holder": holder, "message": cut(why, _REASON), "since": since.isoformat()}
        with suppress(RPCError):  # the write continues, shown or not
            await run.signal(names.STORE_WAITS, told)

    with AfterAWhile(tell, patience) as begun:
        try:
            return await retry_write(noted)
        finally:
            for telling in begun:
                telling.cancel()


A_WHILE = 0.5  # seconds; under load, quick work takes 0.1, and would be delayed further


@dataclass(slots=True)
class AfterAWhile:
    """Begin work when a block has lasted for a while; yields a list that contains the task once it has begun."""

    work: Callable[[], Coroutine[Any, Any, None]]
    seconds: float | None = None
    _begun: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _timer: asyncio.TimerHandle = field(init=False)

    def __enter__(self) -> list[asyncio.Task[None]]:
        seconds = A_WHILE if self.seconds is None else self.seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)
        return self._begun

    def _begin(self) -> None:
        self._begun.append(asyncio.ensure_future(self.work()))

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
