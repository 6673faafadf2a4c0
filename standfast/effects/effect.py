"""Makes any function with effects run at most once per key, however often it is called: `effect`.

No attempt waits for a call that does not run: a cancelled, interrupted or forgotten attempt gives its call back.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from standfast.durations import Duration
from standfast.effects.calls import EffectCall, Ending, Found
from standfast.effects.kept_outcomes import (
    Kept,
    Raised,
    failed_error,
    lost_error,
    of_activity,
    refused_error,
    said_by,
    written,
)
from standfast.effects.keys import (
    LONGEST_NAME,
    EffectKey,
    check_key_of,
    given_key,
    in_activity,
    in_workflow,
    is_cancel,
    is_let_through,
)
from standfast.effects.store_thread import keeper, on_keeper, recorded
from standfast.errors import (
    DefinitionError,
    InputError,
    MemoryStoreNotDurableError,
    StandfastError,
    ToolDurabilityError,
)
from standfast.messages import error_text
from standfast.stores.protocol import DurableStore, has_ledger
from standfast.time_limits import time_limit
from standfast.tools import Approval, Failed, Happened, NotHappened, Returned, Tool, Unknown, seconds
from standfast.tools.calls import Verdict
from standfast.tools.checks import GUARDED, check_choice, is_guarded
from standfast.tools.open_errors import ErrorTypes, check_open_errors, leaves_open
from standfast.tools.signatures import bound, hash_of, schema_type

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_ACTIVITY = "__temporal_activity_definition"  # with which `activity.defn` marks a function
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)

_running: ContextVar[tuple[EffectCall, ...]] = ContextVar("_running", default=())  # the calls that run around this one


async def begin(call: EffectCall, ask: Callable[[str], Awaitable[Verdict | Unknown]]) -> Kept | Found:
    """Claim a call, or return its outcome.

    Args:
        ask: looks up a call that was lost, for the reason that it is given.
    """
    try:
        _check_not_inside(call)
        found = await on_keeper(call.claim())
        while found is Found.LOST:
            found = await on_keeper(call.settle(await ask(call.reason)))
        return found
    except InputError as error:
        raise refused_error(error) from None
    except asyncio.CancelledError:
        await recorded(call.leave(), is_cancelled=True)
        raise
    except GeneratorExit:  # the event loop was closed, and nothing can be awaited
        keeper().begin(call.leave())
        raise


def begin_plain(call: EffectCall, ask: Callable[[str], Verdict | Unknown]) -> Kept | Found:
    """Do what `begin` does, in any thread."""
    try:
        _check_not_inside(call)
        found = keeper().begin(call.claim()).result()
        while found is Found.LOST:
            found = keeper().begin(call.settle(ask(call.reason))).result()
        return found
    except InputError as error:
        raise refused_error(error) from None
    except BaseException:
        keeper().begin(call.leave())
        raise


async def end(call: EffectCall, error: BaseException, outcome: Kept | Ending) -> None:
    """Record how an attempt was broken off by an error, which the caller raises again."""
    if isinstance(error, GeneratorExit):
        keeper().begin(call.end(outcome))
    else:
        await recorded(call.end(outcome), is_cancelled=is_cancel(error))


def _check_not_inside(call: EffectCall) -> None:
    """Check that a call does not wait for itself.

    Raises:
        InputError: it would.
    """
    for outer in _running.get():
        if outer.is_ours and outer.given is not None and outer.given == call.given and outer.store is call.store:
            raise InputError(
                f"Effect '{call.name}' was called from within itself with the key '{outer.key.id}', for which it would "
                "wait for ever, and nothing was run: guard the function once, or give the inner call another key"
            )


@contextmanager
def inside(call: EffectCall) -> Iterator[None]:
    """Let what is called inside the block know that a call runs."""
    token = _running.set((*_running.get(), call))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is closed by the garbage collector ends in another context
            _running.reset(token)


def result_of(function: Callable[..., Any], owner: str) -> TypeAdapter[Any]:
    """Return what reads a value of the type that a function is declared to return."""
    return schema_type(_returned(function), owner, "its result")


def result_or_error(function: Callable[..., Any]) -> Any:
    """Return the result type for callers that receive unknown outcomes as values."""
    return _returned(function) | dict[str, Any]


def _returned(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


def no_awaitable(value: Any) -> Any:
    """Return what a plain function returned, unless that has yet to be awaited."""
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"it returned {type(value).__name__}, which must be awaited: make it an async def")


def broken(
    error: BaseException,
    *,
    safe_to_retry: bool,
    unknown: ErrorTypes = (),
    not_run: ErrorTypes = (),
    cut_off_after: float | None = None,
) -> Kept | Ending:
    """Return what an error of a function means."""
    if cut_off_after is None and isinstance(error, not_run):
        return Ending.NOT_RUN
    if safe_to_retry:
        return Ending.AGAIN
    if cut_off_after is not None:
        return Unknown(f"it was cut off after its timeout of {cut_off_after:g} s")
    if isinstance(error, ToolDurabilityError):
        return Unknown(error.reason)
    if is_cancel(error):
        return Unknown("it was cancelled while it ran")
    if isinstance(error, GeneratorExit):
        return Unknown("its event loop was closed while it ran")
    if isinstance(error, Exception) and leaves_open(error, unknown=unknown, not_run=not_run):
        return Unknown(said_by(error))
    if isinstance(error, Exception):
        return Raised(said_by(error), kind=type(error).__name__)
    return Unknown(f"it was interrupted by {type(error).__name__}")


def is_told(error: BaseException, outcome: Kept | Ending) -> bool:
    """Whether an error is raised as `ToolDurabilityError`; a cancel stays a cancel."""
    return isinstance(outcome, Unknown) and isinstance(error, Exception) and not is_cancel(error)


def settled(found: Verdict | Unknown) -> Kept | Ending:
    """Return the outcome of an attempt that raised an error, given the verdict of `verify`."""
    match found:
        case Happened(value):
            return written(value, TypeAdapter(Any))
        case Unknown():
            return found
        case _:
            return Ending.NOT_RUN


def verdict_of(found: object, reason: str) -> Verdict | Unknown:
    """Return what a `verify` function has found out about a call that was lost for a reason."""
    if found is None or isinstance(found, Happened | NotHappened):
        return Unknown(reason) if found is None else found
    return Unknown(f"{reason}, and verify returned {type(found).__name__} instead of Happened, NotHappened or None")


def not_verified(error: Exception, reason: str) -> Unknown:
    return Unknown(f"{reason}, and verify failed: {error_text(error)}")


def answer(key: EffectKey, kept: Kept, result: TypeAdapter[Any], *, raises: bool) -> Any:
    """Return the result that is kept of a call, or raise what is kept of its failure.

    Args:
        raises: raise an unknown outcome as well, instead of returning it for a model.
    """
    match kept:
        case Returned(content):
            try:
                return result.validate_json(content)
            except ValidationError as error:
                raise _misfit(key, error) from None
        case Raised(reason):
            raise failed_error(key, reason, kept.kind)
        case Failed(reason):
            raise failed_error(key, reason)
        case Unknown(reason):
            if not raises:
                return ToolDurabilityError(key.name, key.id, reason=reason).payload()
            raise lost_error(key, reason)


def _misfit(key: EffectKey, error: ValidationError) -> StandfastError:
    first = error.errors()[0]["msg"]
    return failed_error(
        key, f"has run, and its result is stored, but does not fit the function's current return type: {first}"
    )


class Effect:
    """The guard around a function with effects, or a block of code; see `effect`."""

    def __init__(
        self,
        store: DurableStore,
        name: str | None,
        key: str | Callable[..., str] | None,
        safe_to_retry: bool,
        verify: Callable[..., Any] | None,
        timeout: Duration | None,
        approval: Approval | None,
        on_unknown: Literal["raise", "return"],
        unknown: ErrorTypes,
        not_run: ErrorTypes,
    ) -> None:
        self._owner = "effect" if name is None else f"Effect '{name}'"
        check_store(self._owner, store)
        if name is not None and not (isinstance(name, str) and name.isprintable() and 1 <= len(name) <= LONGEST_NAME):
            raise DefinitionError(
                f"effect: name must be a printable text of 1 to {LONGEST_NAME} characters, got {name!r:.80}"
            )
        if name is None and key is not None:
            raise DefinitionError("effect: key= also needs a name: together they identify a call")
        if not isinstance(safe_to_retry, bool):
            raise DefinitionError(f"{self._owner}: safe_to_retry must be True or False, got {safe_to_retry!r:.80}")
        if verify is not None and not callable(verify):
            raise DefinitionError(f"{self._owner}: verify must be a function, got {verify!r:.80}")
        if approval is not None and not (isinstance(approval, Approval) and _is_of_call(approval)):
            raise DefinitionError(
                f"{self._owner}: approval must be an Approval whose message is a text, without show, edit, on_reject "
                f"and max_rejections, got {approval!r:.80}"
            )
        check_choice(f"{self._owner}: on_unknown", on_unknown, ("raise", "return"))
        self._store, self.name, self._key = store, name or "", key
        self._safe_to_retry, self._verify, self._on_unknown = safe_to_retry, verify, on_unknown
        check_open_errors(self._owner, unknown, not_run)
        self._unknown, self._not_run = unknown, not_run
        self._timeout = None if timeout is None else seconds(timeout, f"{self._owner}: timeout")
        self.approval = approval
        self._call: EffectCall | None = None
        self._block: Block | None = None

    # --- around a function ---

    def __call__(self, function: FunctionT) -> FunctionT:
        """Guard a function, async or plain. The guarded one takes and returns the same.

        Raises:
            DefinitionError: it cannot be guarded.
        """
        if isinstance(function, Tool):
            raise DefinitionError(f"effect: tool '{function.name}' already runs at most once, in runs of its agents")
        if not callable(function) or isinstance(function, type):
            raise DefinitionError(f"effect needs a function, got {function!r:.80}")
        self.name = self.name or getattr(function, "__name__", type(function).__name__)
        self._owner = f"Effect '{self.name}'"
        if is_guarded(function):
            raise DefinitionError(f"{self._owner}: the function is already guarded")
        if hasattr(function, _ACTIVITY):
            raise DefinitionError(f"{self._owner}: write @effect below @activity.defn, which would bypass it")
        called = type(function).__call__
        if isinstance(self._key, str):
            raise DefinitionError(f"{self._owner}: key must be a function of the arguments, got the text {self._key!r}")
        if self._key is not None:
            check_key_of(self._owner, self._key, function)
        if any(inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one) for one in (function, called)):
            raise DefinitionError(f"{self._owner}: the function is a generator, which does not return a single result")
        result = result_of(function, self._owner)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        around = self._around_async if is_async else self._around_plain
        guarded = functools.update_wrapper(around(function, result), function)
        setattr(guarded, GUARDED, self)
        if self._on_unknown == "return":  # a workflow reads a result as the type that its activity is said to return
            given = getattr(function, "__annotations__", {})
            guarded.__annotations__ = {**given, "return": result_or_error(function)}
        return cast(FunctionT, guarded)

    def _around_async(self, function: Callable[..., Any], result: TypeAdapter[Any]) -> Callable[..., Any]:
        async def guarded(*arguments: Any, **options: Any) -> Any:
            call = self._call_of(function, arguments, options)
            found = await begin(call, lambda reason: self._ask(reason, arguments, options))
            if found is not Found.OURS:
                return self._answer(call, found, result)
            limit: asyncio.Timeout | None = None
            try:
                with inside(call):
                    async with time_limit(self._timeout) as limit:
                        value = await function(*arguments, **options)
            except BaseException as error:
                outcome = self._broken(error, is_cut_off=limit is not None and limit.expired())
                if is_told(error, outcome):
                    outcome = await self._settled(call, outcome, arguments, options)
                    if outcome is not Ending.NOT_RUN:
                        return self._answer(call, await recorded(call.end(outcome)), result)
                await end(call, error, outcome)
                if _is_final(guarded, outcome):
                    raise of_activity(cast(Exception, error)) from error
                raise
            return self._answer(call, await recorded(call.end(written(value, result))), result)

        return guarded

    def _around_plain(self, function: Callable[..., Any], result: TypeAdapter[Any]) -> Callable[..., Any]:
        if self._timeout is not None:
            raise DefinitionError(f"{self._owner}: timeout needs an async function: a plain one cannot be cut off")
        if inspect.iscoroutinefunction(self._verify):
            raise DefinitionError(f"{self._owner}: verify must be a plain function, as the guarded one is")

        def guarded(*arguments: Any, **options: Any) -> Any:
            call = self._call_of(function, arguments, options)
            found = begin_plain(call, lambda reason: self._ask_here(reason, arguments, options))
            if found is not Found.OURS:
                return self._answer(call, found, result)
            try:
                with inside(call):
                    value = no_awaitable(function(*arguments, **options))
            except BaseException as error:
                outcome = self._broken(error)
                if is_told(error, outcome):
                    outcome = self._settled_here(call, outcome, arguments, options)
                    if outcome is not Ending.NOT_RUN:
                        return self._answer(call, keeper().begin(call.end(outcome)).result(), result)
                keeper().begin(call.end(outcome)).result()
                if _is_final(guarded, outcome):
                    raise of_activity(cast(Exception, error)) from error
                raise
            return self._answer(call, keeper().begin(call.end(written(value, result))).result(), result)

        return guarded

    def _call_of(
        self, function: Callable[..., Any] | None, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> EffectCall:
        """Return a call that may be claimed.

        Raises:
            InputError: it cannot be made, and nothing was run.
        """
        given = {} if function is None else bound(function, arguments, options)
        try:
            if in_workflow():
                raise InputError(
                    f"{self._owner} was called in a workflow, which reaches no store, and nothing was run: make it an "
                    "activity, with @activity.defn above the guard"
                )
            digest = hash_of(given)
            if self.approval is not None and not is_let_through(digest):
                raise InputError(
                    f"{self._owner} needs approval, which this call lacks: nothing was run. In a workflow of "
                    "Temporal, await execute_effect(…), which asks people first"
                )
            said = self._key(*arguments, **options) if callable(self._key) else self._key
            key = said if said is None or isinstance(said, EffectKey) else given_key(self.name, said)
            if key is None and not in_activity():
                raise InputError(
                    f"{self._owner} has no key: outside a Temporal activity, give it key=, which identifies a "
                    "repeated call"
                )
        except InputError as error:
            raise refused_error(error) from None
        can_verify = self._verify is not None
        return EffectCall(self._store, self.name, key, digest, self._safe_to_retry, can_verify, self._time())

    def _time(self) -> float | None:
        """Return the seconds after which a call is cut off, and some more for recording that; None if it never is."""
        limits = [self._timeout]
        if in_activity():
            from temporalio import activity

            info = activity.info()
            limit = info.start_to_close_timeout or info.schedule_to_close_timeout
            limits.append(None if limit is None else limit.total_seconds())
        return min((limit + 5.0 for limit in limits if limit is not None), default=None)

    # --- around a block ---

    async def __aenter__(self) -> "Block":
        if self._block is not None:
            raise InputError(f"{self._owner}: each block needs its own effect(…)")
        if not self.name:
            raise InputError("effect: a block needs a name")
        if self._timeout is not None:
            raise DefinitionError(
                f"{self._owner}: timeout applies to functions, not to blocks: limit what the block awaits"
            )
        self._call, self._block = self._call_of(None, (), {}), Block()
        found = await begin(self._call, lambda reason: self._ask(reason, (), {}))
        if found is not Found.OURS:
            self._block = Block(is_done=True, result=self._answer(self._call, found, _ANYTHING))
        return self._block

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call, block = self._call, self._block
        assert call is not None
        assert block is not None
        if block.is_done:
            return
        if error is not None:
            outcome = self._broken(error)
            await end(call, error, outcome)
            # With a `verify`, the error is raised unchanged, and the next attempt verifies.
            if self._verify is None and isinstance(outcome, Unknown) and is_told(error, outcome):
                answer(call.key, outcome, _ANYTHING, raises=True)
            return
        kept = await recorded(call.end(written(block.result, _ANYTHING)))
        block.result, block.is_done = self._answer(call, kept, _ANYTHING), True

    # --- outcomes ---

    async def _ask(self, reason: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Verdict | Unknown:
        """Ask `verify` about a call that was lost for a reason."""
        try:
            found = None if self._verify is None else self._verify(*arguments, **options)
            return verdict_of(await found if inspect.isawaitable(found) else found, reason)
        except Exception as error:
            return not_verified(error, reason)

    async def _settled(
        self, call: EffectCall, lost: Kept | Ending, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Kept | Ending:
        """Return the outcome of an attempt that raised what leaves it open, after `verify` was asked."""
        assert isinstance(lost, Unknown)
        try:
            return settled(await self._ask(lost.reason, arguments, options))
        except BaseException as error:  # a cancel, say
            await end(call, error, lost)
            raise

    def _settled_here(
        self, call: EffectCall, lost: Kept | Ending, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Kept | Ending:
        assert isinstance(lost, Unknown)
        try:
            return settled(self._ask_here(lost.reason, arguments, options))
        except BaseException:
            keeper().begin(call.end(lost)).result()
            raise

    def _ask_here(self, reason: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Verdict | Unknown:
        try:
            return verdict_of(None if self._verify is None else self._verify(*arguments, **options), reason)
        except Exception as error:
            return not_verified(error, reason)

    def _broken(self, error: BaseException, *, is_cut_off: bool = False) -> Kept | Ending:
        return broken(
            error,
            safe_to_retry=self._safe_to_retry,
            unknown=self._unknown,
            not_run=self._not_run,
            cut_off_after=self._timeout if is_cut_off else None,
        )

    def _answer(self, call: EffectCall, kept: Any, result: TypeAdapter[Any]) -> Any:
        return answer(call.key, kept, result, raises=self._on_unknown == "raise")


class Block:
    """A block of code with effects.

    Args:
        is_done: whether an earlier attempt has run it; then `result` is what that one left, and there is nothing to do.
        result: JSON; set it in the block, and it is kept.
    """

    def __init__(self, is_done: bool = False, result: Any = None) -> None:
        self.is_done, self.result = is_done, result


def effect(
    store: DurableStore,
    name: str | None = None,
    *,
    key: str | Callable[..., str] | None = None,
    safe_to_retry: bool = False,
    verify: Callable[..., Any] | None = None,
    timeout: Duration | None = None,
    approval: Approval | None = None,
    on_unknown: Literal["raise", "return"] = "raise",
    unknown: ErrorTypes = (),
    not_run: ErrorTypes = (),
) -> Effect:
    """Guard a function (`@effect(store)`) or a block (`async with effect(store, "charge", key=…) as call`).

    It is claimed in the store before it runs, and its result is kept: two writes. Called again with the same key, it
    returns what is kept. If its process died in between, it is unknown whether it has happened, and it is not run
    again.

    Args:
        store: a durable one, which may be shared with agents.
        name: of the effect; by default the function's name.
        key: tells a call from all others of this name: a function of the arguments, or for a block a text. By default
            the key of the activity of Temporal that runs it, which stays the same at a retry and after a reset.
        safe_to_retry: running it twice is harmless: a call that was lost, or has raised, may run again.
        verify: a read-only function with the same parameters that checks whether a lost effect is there: it returns
            `Happened(result)`, `NotHappened()`, or None if it cannot tell.
        timeout: of an async function; what is cut off has an unknown outcome.
        approval: people have to let a call through: in a workflow of Temporal, `execute_effect` waits for them, and
            elsewhere it does not run.
        on_unknown: whether an unknown outcome raises `ToolDurabilityError`, or returns its `payload()`, for a model.
        unknown: classes of errors that leave open whether the effect took place, besides those that are known to: read
            timeouts and broken connections of common libraries.
        not_run: errors by which the function says that it has not run: they pass, and the same key may be used again.

    Raises:
        DefinitionError: an option cannot be used.
        MemoryStoreNotDurableError: the store forgets.

    A function that cannot tell whether it has done its work raises `ToolDurabilityError`. A guarded call raises:
        ToolDurabilityError: its outcome is unknown: its process died, it was cut off, or it raised an error that
            leaves the outcome open. In that case the error is its context. In an activity it is not retried.
        EffectFailedError: it has raised at an earlier attempt, or its result was lost; not retried, either.
        InputError: it has no key, or the same key was used with other arguments.
        StoreError: the store does not answer; nothing was run.
    """
    return Effect(store, name, key, safe_to_retry, verify, timeout, approval, on_unknown, unknown, not_run)


def check_store(owner: str, store: DurableStore) -> None:
    """Check that a store can hold what must not be forgotten.

    Raises:
        DefinitionError: it is not a store.
        MemoryStoreNotDurableError: it forgets.
    """
    if not hasattr(store, "durable"):
        raise DefinitionError(
            f"{owner}: store must be a store, such as sqlite_store('standfast.db'), got {store!r:.80}"
        )
    if not has_ledger(store) or not store.durable:
        raise MemoryStoreNotDurableError(owner)


def _is_of_call(approval: Approval[Any]) -> bool:
    return isinstance(approval.message, str) and not approval.of_gate


def _is_final(guarded: object, outcome: Kept | Ending) -> bool:
    """Whether an error ends an activity that is the guarded function itself."""
    return isinstance(outcome, Raised) and hasattr(guarded, _ACTIVITY) and in_activity()
