"""Makes any function with effects run at most once for a key, whoever calls it again: `effect`."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter

from standfast.durations import Duration
from standfast.effects import failures
from standfast.effects.calls import EffectCall, Found, Kept, Raised
from standfast.effects.keeper import keeper, on_keeper
from standfast.effects.keys import EffectKey, given_key, in_activity, in_workflow, is_let_through
from standfast.errors import DefinitionError, InputError, MemoryStoreNotDurableError, ToolDurabilityError
from standfast.messages import error_text
from standfast.runtime.cancellation import uninterrupted
from standfast.stores.capabilities import has_ledger
from standfast.stores.protocol import DurableStore
from standfast.time_limits import time_limit
from standfast.tools import Approval, Failed, Happened, NotHappened, Returned, Tool, Unknown, seconds
from standfast.tools.attempts import Verdict
from standfast.tools.checks import check_choice
from standfast.tools.given_arguments import bound, hash_of
from standfast.tools.signatures import schema_type

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_PATIENCE = 60.0  # seconds, where neither the effect nor its activity has a timeout
_GUARDED = "__standfast_effect__"
_ACTIVITY = "__temporal_activity_definition"  # with which `activity.defn` marks a function
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


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
        not_run: tuple[type[BaseException], ...],
    ) -> None:
        self._owner = "effect" if name is None else f"Effect '{name}'"
        if not has_ledger(store) or not getattr(store, "durable", False):
            raise MemoryStoreNotDurableError(self._owner)
        if name is not None and not (isinstance(name, str) and name.isprintable() and 1 <= len(name) <= 100):
            raise DefinitionError(f"effect: name must be a printable text of 1 to 100 characters, got {name!r:.80}")
        if name is None and key is not None:
            raise DefinitionError("effect: key= needs a name, too: together they tell a call from all others")
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
        if not isinstance(not_run, tuple) or not all(isinstance(kind, type) for kind in not_run):
            raise DefinitionError(f"{self._owner}: not_run must be a tuple of classes of errors, got {not_run!r:.80}")
        self._not_run = not_run
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
            raise DefinitionError(f"effect: tool '{function.name}' runs at most once as it is, in runs of its agents")
        if not callable(function) or isinstance(function, type):
            raise DefinitionError(f"effect needs a function, got {function!r:.80}")
        self.name = self.name or getattr(function, "__name__", type(function).__name__)
        self._owner = f"Effect '{self.name}'"
        if hasattr(function, _GUARDED):
            raise DefinitionError(f"{self._owner}: {function.__qualname__} has a guard already")
        if hasattr(function, _ACTIVITY):
            raise DefinitionError(f"{self._owner}: write @effect below @activity.defn, which would call past it")
        if isinstance(self._key, str):
            raise DefinitionError(f"{self._owner}: key must be a function of the arguments, got the text {self._key!r}")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(f"{self._owner}: {function.__qualname__} is a generator, which has no one result")
        result = _result_of(function, self._owner)
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        around = self._around_async if is_async else self._around_plain
        guarded = functools.update_wrapper(around(function, result), function)
        setattr(guarded, _GUARDED, self)
        return cast(FunctionT, guarded)

    def _around_async(self, function: Callable[..., Any], result: TypeAdapter[Any]) -> Callable[..., Any]:
        async def guarded(*arguments: Any, **options: Any) -> Any:
            given = bound(function, arguments, options)
            call, found = await on_keeper(self._begin(self._key_of(arguments, options), given))
            while found is Found.LOST:
                found = await on_keeper(call.settle(await self._ask(arguments, options)))
            if found is not Found.OURS:
                return self._answer(call.key, found, result)
            limit: asyncio.Timeout | None = None
            try:
                async with time_limit(self._timeout) as limit:
                    value = await function(*arguments, **options)
            except self._not_run:
                await uninterrupted(lambda: on_keeper(call.release()))
                raise
            except BaseException as error:
                outcome = self._broken(error, is_cut_off=limit is not None and limit.expired())
                await uninterrupted(lambda: on_keeper(_ended(call, outcome)))
                if _is_final(guarded, outcome):
                    raise failures.of_activity(cast(Exception, error)) from error
                raise
            kept = await uninterrupted(lambda: on_keeper(call.finish(self._written(value, result))))
            return self._answer(call.key, kept, result)

        return guarded

    def _around_plain(self, function: Callable[..., Any], result: TypeAdapter[Any]) -> Callable[..., Any]:
        if self._timeout is not None:
            raise DefinitionError(f"{self._owner}: timeout needs an async function: a plain one cannot be cut off")
        if inspect.iscoroutinefunction(self._verify):
            raise DefinitionError(f"{self._owner}: verify must be a plain function, as the guarded one is")

        def guarded(*arguments: Any, **options: Any) -> Any:
            given = bound(function, arguments, options)
            call, found = keeper().begin(self._begin(self._key_of(arguments, options), given)).result()
            while found is Found.LOST:
                found = keeper().begin(call.settle(self._ask_here(arguments, options))).result()
            if found is not Found.OURS:
                return self._answer(call.key, found, result)
            try:
                value = _no_awaitable(function(*arguments, **options))
            except self._not_run:
                keeper().begin(call.release()).result()
                raise
            except BaseException as error:
                outcome = self._broken(error)
                keeper().begin(_ended(call, outcome)).result()
                if _is_final(guarded, outcome):
                    raise failures.of_activity(cast(Exception, error)) from error
                raise
            kept = keeper().begin(call.finish(self._written(value, result))).result()
            return self._answer(call.key, kept, result)

        return guarded

    def _key_of(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | EffectKey | None:
        if in_workflow():
            raise failures.refused(
                InputError(
                    f"{self._owner} was called in a workflow, which reaches no store, and nothing was run: make it an "
                    "activity, with @activity.defn above the guard"
                )
            )
        return self._key(*arguments, **options) if callable(self._key) else self._key

    async def _begin(self, key: str | EffectKey | None, arguments: dict[str, Any]) -> tuple[EffectCall, Kept | Found]:
        """Return a call, and its outcome if it has one; it may be this attempt's to run now."""
        try:
            call = await self._make_call(key, arguments)
            return call, await call.claim()
        except InputError as error:
            raise failures.refused(error) from None

    async def _make_call(self, key: str | EffectKey | None, arguments: dict[str, Any]) -> EffectCall:
        """Return a call, by the key that was given or that of its activity."""
        digest = hash_of(arguments)
        if self.approval is not None and not is_let_through(digest):
            raise InputError(
                f"{self._owner} needs approval, which this call has not: nothing was run. In a workflow of Temporal, "
                "await execute_effect(…), which asks people first"
            )
        if isinstance(key, EffectKey):  # an adapter knows where in the ledger its calls stand
            found = key
        elif key is not None:
            found = given_key(self.name, key)
        elif in_activity():
            found = await keeper().keys.next(self.name)
        else:
            raise InputError(
                f"{self._owner} has no key: outside of an activity of Temporal, give it key=, by which a repeated call "
                "is known"
            )
        return EffectCall(self._store, found, digest, self._safe_to_retry, self._patience())

    def _patience(self) -> float:
        if self._timeout is not None:
            return self._timeout + 5.0
        if in_activity():
            from temporalio import activity

            if (limit := activity.info().start_to_close_timeout) is not None:
                return limit.total_seconds() + 5.0
        return _PATIENCE

    # --- around a block ---

    async def __aenter__(self) -> "Block":
        if self._block is not None:
            raise InputError(f"{self._owner}: each block needs an effect(…) of its own")
        if not self.name:
            raise InputError("effect: a block needs a name")
        call, found = await on_keeper(self._begin(self._key_of((), {}), {}))
        while found is Found.LOST:
            found = await on_keeper(call.settle(await self._ask((), {})))
        self._call, self._block = call, Block()
        if found is not Found.OURS:
            self._block = Block(is_done=True, result=self._answer(call.key, found, _ANYTHING))
        return self._block

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call, block = self._call, self._block
        assert call is not None
        assert block is not None
        if block.is_done:
            return
        if isinstance(error, self._not_run):
            await uninterrupted(lambda: on_keeper(call.release()))
            return
        outcome = self._written(block.result, _ANYTHING) if error is None else self._broken(error)
        if outcome is not None:
            kept = await uninterrupted(lambda: on_keeper(call.finish(outcome)))
            if error is None:
                block.result, block.is_done = self._answer(call.key, kept, _ANYTHING), True

    # --- outcomes ---

    async def _ask(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Verdict | Unknown:
        """Ask `verify` about a call whose process has died."""
        try:
            verdict = None if self._verify is None else self._verify(*arguments, **options)
            return _verdict(await verdict if inspect.isawaitable(verdict) else verdict)
        except Exception as error:
            return _verify_failed(error)

    def _ask_here(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Verdict | Unknown:
        try:
            return _verdict(None if self._verify is None else self._verify(*arguments, **options))
        except Exception as error:
            return _verify_failed(error)

    def _broken(self, error: BaseException, *, is_cut_off: bool = False) -> Kept | None:
        """Return what an error of the function means; None if the call may be made again."""
        if self._safe_to_retry:
            return None
        if is_cut_off:
            return Unknown(f"it was cut off after its timeout of {self._timeout:g} s")
        if isinstance(error, ToolDurabilityError):
            return Unknown(error.reason)
        if isinstance(error, asyncio.CancelledError):
            return Unknown("it was cancelled while it ran")
        if isinstance(error, Exception):
            return Raised(error_text(error), kind=type(error).__name__)
        return Unknown(f"it was broken off by {type(error).__name__}")

    def _written(self, value: Any, result: TypeAdapter[Any]) -> Kept:
        try:
            text = result.dump_json(value).decode()
            result.validate_json(text)
        except Exception as error:
            return Failed(f"ran, but its result was lost: it cannot be kept as JSON ({error_text(error)})")
        return Returned(text)

    def _answer(self, key: EffectKey, kept: Kept, result: TypeAdapter[Any]) -> Any:
        """Return the result that is kept of a call, or raise what is kept of its failure."""
        match kept:
            case Returned(content):
                return result.validate_json(content)
            case Raised(error):
                raise failures.failed(key, error, kept.kind)
            case Failed(error):
                raise failures.failed(key, error)
            case Unknown(reason):
                if self._on_unknown == "return":
                    return ToolDurabilityError(key.name, key.id, reason=reason).payload()
                raise failures.lost(key, reason)


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
    not_run: tuple[type[BaseException], ...] = (),
) -> Effect:
    """Guard a function (`@effect(store)`) or a block (`async with effect(store, "charge", key=…) as call`).

    It is claimed in the store before it runs, and its result is kept: two writes. Called again with the same key, it
    returns what is kept. If its process died in between, nobody knows whether it has happened, and it is not run again.

    Args:
        store: a durable one, which may be shared with agents.
        name: of the effect; that of the function by default.
        key: tells a call from all others of this name: a function of the arguments, or for a block a text. By default
            the key of the activity of Temporal that runs it, which stays the same at a retry and after a reset.
        safe_to_retry: running it twice is harmless: a call that was lost, or has raised, may run again.
        verify: a read-only function with the same parameters that checks whether a lost effect is there: it returns
            `Happened(result)`, `NotHappened()`, or None if it cannot tell.
        timeout: of an async function; what is cut off has an unknown outcome.
        approval: people have to let a call through: in a workflow of Temporal, `execute_effect` waits for them, and
            elsewhere it does not run.
        on_unknown: whether an unknown outcome raises `ToolDurabilityError`, or returns its `payload()`, for a model.
        not_run: errors by which the function says that it has not run: they pass, and the same key may be used again.

    Raises:
        DefinitionError: an option cannot be used.
        MemoryStoreNotDurableError: the store forgets.

    A function that cannot tell whether it has done its work raises `ToolDurabilityError`. A guarded call raises:
        ToolDurabilityError: nobody knows whether it has happened. In an activity it is not retried.
        EffectFailedError: it has raised at an earlier attempt, or its result was lost; not retried, either.
        InputError: it has no key, or the same key was used with other arguments.
        StoreError: the store does not answer; nothing was run.
    """
    return Effect(store, name, key, safe_to_retry, verify, timeout, approval, on_unknown, not_run)


def _is_of_call(approval: Approval[Any]) -> bool:
    return isinstance(approval.message, str) and not approval.of_gate


_DIED = "its process ended while it ran"


def _verdict(found: object) -> Verdict | Unknown:
    """Return what a `verify` function has found out."""
    if found is None or isinstance(found, Happened | NotHappened):
        return Unknown(_DIED) if found is None else found
    return Unknown(f"{_DIED}, and verify returned {type(found).__name__} instead of Happened, NotHappened or None")


def _verify_failed(error: Exception) -> Unknown:
    return Unknown(f"{_DIED}, and verify failed: {error_text(error)}")


async def _ended(call: EffectCall, outcome: Kept | None) -> None:
    """Record how an attempt was broken off; None if the call may be made again."""
    await (call.give_up() if outcome is None else call.finish(outcome))


def _no_awaitable(value: Any) -> Any:
    """Return what a plain function returned, unless it has only promised to run."""
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"it returned {type(value).__name__}, which has to be awaited: make it an async def")


def _is_final(guarded: object, outcome: Kept | None) -> bool:
    """Whether an error ends an activity that is the guarded function itself."""
    return isinstance(outcome, Raised) and hasattr(guarded, _ACTIVITY) and in_activity()


def _result_of(function: Callable[..., Any], owner: str) -> TypeAdapter[Any]:
    """Return the reader of what a function says that it returns."""
    try:
        annotation = get_type_hints(inspect.unwrap(function), include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        annotation = Any
    return schema_type(annotation, owner, "its result")
