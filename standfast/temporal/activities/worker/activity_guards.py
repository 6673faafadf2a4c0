"""Defines activities: JSON in and out, heartbeats, failures that tell whether to retry, and one log line each."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError
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
from standfast.messages import JSONObject, cut, error_text
from standfast.runtime.tasks import retry_write
from standfast.runtime.users_functions import call_users
from standfast.temporal.activities.worker.agent_host import TRIES, AgentHost
from standfast.temporal.wire import names

T = TypeVar("T")

_LOG = logging.getLogger("standfast")
HEARTBEAT_EVERY = 3.0  # seconds; the server gives up on a worker after 10 (tools) or 15 (models)
_FOR_GOOD = (InputError, DefinitionError, SessionAccessDeniedError, SessionConflictError, SessionNotFoundError)

RUNS = logging.getLogger("standfast.runs")
OUTCOMES = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")  # of a tool's call
_WORDS = {
    names.CALL_MODEL: "model",
    names.OPEN: "run begins",
    names.OPEN_PIPELINE: "run begins",
    names.FINISH: "run ends",
    names.DECIDE: "decision",
    names.SETTLE: "lost call",
    names.NOTIFY: "notice",
    names.SHOW: "board",
}
_COUNTER = "standfast_outcomes"


def log_returned(name: str, reference: object, begun: float, result: object) -> None:
    """Log an attempt of an activity that returned.

    Args:
        begun: the start time, by `time.monotonic`.
    """
    given, found = _fields_of(reference), _fields_of(result)
    level, more = logging.INFO, dict[str, str]()
    if name == names.CALL_MODEL:
        calls = ",".join(str(call[1]) for call in found.get("calls", ()))
        more = {"calls": calls} if calls else {}
        outcome = "refused" if "error" in found else "calls" if calls else "answered"
    elif name == names.FINISH:
        outcome = str(given.get("status"))
    elif name == names.DECIDE:
        refused = found["of"] if "receipt" in found else result
        outcome = "refused" if refused else str(given.get("decision"))
    elif name == names.SETTLE:
        outcome = next((one for one in OUTCOMES if one in found), "unknown" if "claimed" in found else "not run")
    elif name in (names.OPEN, names.OPEN_PIPELINE):
        outcome = "open"
        level = logging.INFO if "input" in given else logging.DEBUG
    elif name.startswith("standfast."):
        outcome, level = "done", logging.INFO if name == names.NOTIFY else logging.DEBUG
    else:
        outcome = next((one for one in OUTCOMES if one in found), "returned")
    _write(name, given, begun, outcome, logging.WARNING if outcome in ("unknown", "refused") else level, **more)


def log_raised(name: str, reference: object, begun: float, error: BaseException) -> None:
    """Log an attempt of an activity that raised: the first of a series, and then fewer and fewer."""
    attempt = activity.info().attempt
    kind = (error.type or "") if isinstance(error, ApplicationError) else type(error).__name__
    is_calm = isinstance(error, CancelledError) or not isinstance(error, Exception)
    seldom = attempt & (attempt - 1) == 0  # 1, 2, 4, 8, …: a store that is away for an hour does not fill a disk
    level = logging.DEBUG if not seldom else logging.INFO if is_calm else logging.WARNING
    _write(name, _fields_of(reference), begun, f"error:{kind}", level)


def _fields_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _write(name: str, reference: Mapping[str, Any], begun: float, outcome: str, level: int, **more: Any) -> None:
    what = _WORDS.get(name, name if name.startswith("standfast.") else "tool")
    if activity.in_activity():
        activity.metric_meter().create_counter(_COUNTER, "Attempts of activities, by their outcome").add(
            1, {"what": what, "name": name, "outcome": outcome}
        )
    if not RUNS.isEnabledFor(level):
        return
    fields = (
        _fields(name, reference, what) | more | {"outcome": outcome, "ms": round((time.monotonic() - begun) * 1000)}
    )
    RUNS.log(
        level,
        "%s",
        " ".join([what, *(f"{key}={value}" for key, value in fields.items())]),
        extra={"event": what, "fields": fields},
    )


def _fields(name: str, reference: Mapping[str, Any], what: str) -> JSONObject:
    info = activity.info()
    kind, run = info.workflow_type or "", info.workflow_id or ""
    found: JSONObject = {"run": run, "run_id": info.workflow_run_id or ""}
    if session := reference.get("session") or names.session_of(kind, run):
        found["session"] = session
    found |= {key: reference[key] for key in ("turn", "path", "gate") if key in reference}
    if what == "tool":
        found |= {"tool": name, "call": reference.get("position", 0)}
    return found | ({"attempt": info.attempt} if info.attempt > 1 else {})


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
        self.host.identity.in_hand.add(activity.info().task_token)
        if self.beats:
            self._beat_later()

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_EVERY, self._beat)

    def _beat(self) -> None:
        if not activity.info().is_local:
            activity.heartbeat()
        self._beat_later()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self.host.identity.in_hand.discard(activity.info().task_token)
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


CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def json_activity(name: str) -> Callable[[CallableT], CallableT]:
    """Make a function an activity whose types are only for type checkers.

    A converter that used the types would drop unknown keys, such as a newer worker's.
    """

    def define(function: CallableT) -> CallableT:
        function.__annotations__ = dict.fromkeys(function.__annotations__, JSONObject)

        @functools.wraps(function)
        async def run(*arguments: Any) -> Any:
            reference, begun = arguments[-1], time.monotonic()  # after `self`
            try:
                result = await function(*arguments)
            except BaseException as error:
                log_raised(name, reference, begun, error)
                raise
            log_returned(name, reference, begun, result)
            return result

        return cast(CallableT, activity.defn(name=name)(run))

    return define
