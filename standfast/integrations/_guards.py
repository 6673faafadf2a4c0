"""Guards the tool calls of a framework; internal, and shared by the adapters."""

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from standfast.effects import Effect, EffectFailedError, ToolDurabilityError, effect
from standfast.effects.effect import check_store
from standfast.effects.keys import LONGEST_KEY, LONGEST_NAME, EffectKey
from standfast.errors import DefinitionError, InputError
from standfast.extras import install
from standfast.messages import JSONObject
from standfast.stores.protocol import DurableStore
from standfast.tools.checks import is_guarded
from standfast.tools.signatures import hash_of

GuardKey = str | EffectKey | None
_Running = tuple[str, str, GuardKey, str]  # a call: its tool, its id, its key, and the hash of its arguments
_LOG = logging.getLogger("standfast")
_guarded: ContextVar[frozenset[_Running]] = ContextVar("_guarded", default=frozenset())  # the calls that run here


def check_version(package: str, lowest: str, below: str, extra: str) -> None:
    """Check the version of a framework's package, and warn if it is newer than the tested versions.

    Args:
        lowest: the first version with all features that the adapter uses.
        below: the first version with which the adapter is not tested.

    Raises:
        ImportError: the package is missing, or older.
    """
    needed = f"standfast's adapter needs {package} {lowest} or later"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ImportError(f"{needed}: {install(extra)}") from None
    if _numbers(found) < _numbers(lowest):
        raise ImportError(f"{needed}, and found {found}: {install(extra)}")
    if _numbers(found) >= _numbers(below):
        _LOG.warning("standfast's adapter is tested with %s below %s, and found %s", package, below, found)


def check_key(key: object, takes: str, *, is_optional: bool = True) -> None:
    """Check the `key=` of an adapter, before an agent runs.

    Args:
        takes: the argument of the function.

    Raises:
        DefinitionError: it is not a function.
    """
    if not (callable(key) or (is_optional and key is None)):
        raise DefinitionError(f"key must be a function of {takes} that returns a text, got {key!r:.80}")


class AroundTool:
    """A replacement for a tool, with the guard around it."""


def has_guard(*functions: object) -> bool:
    """Whether one of a tool's own functions is already guarded."""
    return any(isinstance(one, AroundTool) or is_guarded(one) for one in functions)


def second_guard(tool: str) -> DefinitionError:
    return DefinitionError(
        f"guarded: tool '{tool}' is already guarded: remove one of the two guards; or, to use the inner guard's "
        "verify=, declare the tool safe"
    )


class ToolGuard:
    """The guard around the tools of an agent.

    Args:
        store: a durable one.
        not_run: errors with which a tool reports that it has not run: they propagate, and the call may be made again.
        told: errors with which a tool tells the model something: they propagate, and are raised again, with the same
            text, if the call is repeated.

    Raises:
        DefinitionError: it is not a store.
        MemoryStoreNotDurableError: the store is not durable.
    """

    def __init__(
        self,
        store: DurableStore,
        *,
        not_run: tuple[type[BaseException], ...] = (),
        told: tuple[type[Exception], ...] = (),
    ) -> None:
        check_store("The guard around tools", store)
        self._store, self._not_run, self._told = store, not_run, {kind.__name__: kind for kind in told}

    async def run(
        self,
        tool: str,
        call_id: str,
        arguments: Mapping[str, Any],
        function: Callable[[], Awaitable[Any]],
        *,
        key: GuardKey,
        returns: Any = Any,
        safe_to_retry: bool = False,
    ) -> Any:
        """Run a tool's call unless it has run, or may have; return its result, or the text for the model.

        The function's errors propagate, in the process that runs it. Later, the model reads them. A call that another
        guard has let through runs.

        Args:
            key: of the call, from `key_of`, or as in the ledger; None in a Temporal activity, which has one.
            returns: the type of the result, used for storing it as JSON.
            safe_to_retry: running it twice is harmless: a call that was lost, or has raised, may run again.

        Raises:
            InputError: the call cannot be distinguished from others, or was made with other arguments.
            StoreError: the store does not answer; nothing was run.
        """
        guarded, running = self._effect(tool, key, safe_to_retry), (tool, call_id, key, hash_of(arguments))
        if running in _guarded.get():
            return await function()

        async def call(arguments: JSONObject) -> Any:
            with _inside(running):
                return await function()

        call.__annotations__["return"] = returns
        try:
            return await guarded(call)(dict(arguments))
        except (ToolDurabilityError, EffectFailedError) as error:
            return self._read_by_model(error, tool, call_id)

    def run_plain(
        self,
        tool: str,
        call_id: str,
        arguments: Mapping[str, Any],
        function: Callable[[], Any],
        *,
        key: str | None,
        returns: Any = Any,
    ) -> Any:
        """Do the same as `run`, with a plain function, in any thread."""
        guarded, running = self._effect(tool, key), (tool, call_id, key, hash_of(arguments))
        if running in _guarded.get():
            return function()

        def call(arguments: JSONObject) -> Any:
            with _inside(running):
                return function()

        call.__annotations__["return"] = returns
        try:
            return guarded(call)(dict(arguments))
        except (ToolDurabilityError, EffectFailedError) as error:
            return self._read_by_model(error, tool, call_id)

    def _effect(self, tool: str, key: GuardKey, safe_to_retry: bool = False) -> Effect:
        if not tool:
            raise InputError("A tool without a name cannot be guarded: nothing was run")
        by_key: Any = None if key is None else lambda arguments: key
        return effect(self._store, _effect_name(tool), key=by_key, safe_to_retry=safe_to_retry, not_run=self._not_run)

    def _read_by_model(self, error: ToolDurabilityError | EffectFailedError, tool: str, call_id: str) -> Any:
        if isinstance(error, ToolDurabilityError):
            return ToolDurabilityError(tool, call_id, reason=error.reason).payload()
        if error.kind in self._told:
            raise self._told[error.kind](error.reason) from None
        return {"error": f"{error.kind}: {error.reason}" if error.kind else error.reason}


@contextmanager
def _inside(running: _Running) -> Iterator[None]:
    token = _guarded.set(_guarded.get() | {running})
    try:
        yield
    finally:
        _guarded.reset(token)


def key_of(*parts: str) -> str:
    """Return the key of a call: a text that is unique to its parts, such as a conversation's id and the call's.

    Raises:
        InputError: a part is missing.
    """
    if not all(isinstance(part, str) and part for part in parts):
        raise InputError(f"A tool call cannot be guarded without the ids that identify it, got {parts!r:.200}")
    text = json.dumps(parts)
    return text if len(text) <= LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def _effect_name(tool: str) -> str:
    """Return the name of a tool's effect: the tool's own, or a unique short one if that is too long."""
    if len(tool) <= LONGEST_NAME:
        return tool
    return f"{tool[: LONGEST_NAME - 17]}-{hashlib.sha256(tool.encode()).hexdigest()[:16]}"


def said_safe(hints: Any) -> bool:
    """Whether MCP's hints, by name in a mapping or an object, allow a tool to run twice."""
    names = ("readOnlyHint", "idempotentHint", "read_only_hint", "idempotent_hint")
    if isinstance(hints, Mapping):
        return any(hints.get(name) is True for name in names)
    return any(getattr(hints, name, None) is True for name in names)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a version; suffixes, such as "rc1", are ignored."""
    found = list[int]()
    for part in text.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return found
