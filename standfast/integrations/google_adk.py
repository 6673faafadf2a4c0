"""Guards the tools of Google's ADK: each call runs at most once in its session.

A plugin sees a call before the agent's own callbacks, which may answer it, and before its confirmation. So the plugin
only puts the guard around the tool's `run_async`: behind that is the tool itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakSet

from pydantic import PlainSerializer, PlainValidator

from standfast.effects.keys import in_activity
from standfast.integrations._guards import ToolGuard, check_key, check_version, key_of, said_safe
from standfast.messages import JSONObject
from standfast.stores.protocol import DurableStore

check_version("google-adk", "2.8", "3", "google-adk")

from google.adk.events import EventActions  # noqa: E402 - only in a version that has it
from google.adk.plugins.base_plugin import BasePlugin  # noqa: E402
from google.adk.tools import BaseTool, ToolContext  # noqa: E402
from google.genai import types  # noqa: E402

__all__ = ["AtMostOnce"]


@dataclass(frozen=True)
class _Result:
    """A tool's result, and its changes to its context: the session's state, a transfer, and so on."""

    value: Any
    actions: dict[str, Any]


def _dump(result: _Result) -> list[Any]:
    return [_dump_value(result.value), result.actions]


def _load(kept: Any) -> Any:
    return _Result(_load_value(kept[0]), kept[1]) if isinstance(kept, list) else kept


_Kept = Annotated[Any, PlainSerializer(_dump), PlainValidator(_load)]


class AtMostOnce(BasePlugin):
    """A plugin that runs a tool's call at most once: `App(…, plugins=[AtMostOnce(store)])`, or a `Runner`'s.

    A tool is safe, and not guarded, if its `custom_metadata` has `{"safe_to_retry": True}`. All others have effects,
    including agents that are tools, each as one call.

    Args:
        store: a durable one, which may be shared.
        key: distinguishes a call from all others of its tool, from the arguments and the `ToolContext`. By default, the
            ids of the app, the user, the session and the call; in a Temporal activity, the activity's id.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.

    A guarded call raises:
        InputError: it has no id, or was made before with other arguments.
        StoreError: the store does not answer; nothing was run.
    """

    def __init__(
        self,
        store: DurableStore,
        *,
        key: Callable[[JSONObject, ToolContext], str] | None = None,
        trust_hints: bool = False,
    ) -> None:
        check_key(key, "the call's arguments and ToolContext")
        super().__init__(name="standfast")
        self._guard, self._key, self._trust_hints = ToolGuard(store, not_run=(_AskedError,)), key, trust_hints
        self._tools: WeakSet[Any] = WeakSet()
        self._contexts: WeakSet[Any] = WeakSet()

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: JSONObject, tool_context: ToolContext
    ) -> JSONObject | None:
        if self._is_safe(tool):
            return None
        if tool not in self._tools:
            self._tools.add(tool)
            tool.run_async = self._guarded(tool, tool.run_async)
        self._contexts.add(tool_context)  # the same tool may serve a runner without this plugin
        return None

    def _guarded(self, tool: BaseTool, run_async: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*, args: JSONObject, tool_context: ToolContext) -> Any:
            if tool_context not in self._contexts:
                return await run_async(args=args, tool_context=tool_context)

            async def call() -> Any:
                value = await run_async(args=args, tool_context=tool_context)
                actions, call_id = tool_context.actions, tool_context.function_call_id
                if call_id in actions.requested_tool_confirmations or call_id in actions.requested_auth_configs:
                    raise _AskedError(value)
                return _Result(value, actions.model_dump(mode="json", exclude_defaults=True))

            call_id, key = tool_context.function_call_id or "", self._key_of(args, tool_context)
            try:
                read = await self._guard.run(tool.name, call_id, args, call, key=key, returns=_Kept)
            except _AskedError as asked:
                return asked.value
            if not isinstance(read, _Result):
                return read
            _act(tool_context, read.actions)
            return read.value

        return guarded

    def _is_safe(self, tool: BaseTool) -> bool:
        if (tool.custom_metadata or {}).get("safe_to_retry") is True:
            return True
        return self._trust_hints and said_safe(getattr(getattr(tool, "raw_mcp_tool", None), "annotations", None))

    def _key_of(self, args: JSONObject, context: ToolContext) -> str | None:
        if self._key is not None:
            return self._key(args, context)
        if in_activity():
            return None
        session, call_id = context.session, context.function_call_id
        # A model may count its calls from 0, so ids may repeat.
        answered = sum(part.id == call_id for event in session.events for part in event.get_function_responses())
        return key_of(session.app_name, session.user_id, session.id, call_id or "", str(answered))


class _AskedError(Exception):
    """The tool asks for a confirmation or a credential, and has not run."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _act(context: ToolContext, kept: dict[str, Any]) -> None:
    """Apply the first call's changes to a context."""
    for name, value in EventActions.model_validate(kept):
        if name not in kept:
            continue
        if name == "state_delta":
            context.state.update(value)
        elif isinstance(value, dict):
            getattr(context.actions, name).update(value)
        else:
            setattr(context.actions, name, value)


_MEDIA = {"part": types.Part, "response": types.FunctionResponse}  # a tool may return these besides JSON


def _dump_value(value: Any) -> list[Any]:
    for name, kind in _MEDIA.items():
        if isinstance(value, kind):
            return [name, value.model_dump(mode="json", exclude_none=True)]
    if not _has_media(value):
        return ["value", value]
    if isinstance(value, dict):
        return ["dict", {name: _dump_value(part) for name, part in value.items()}]
    return ["list", [_dump_value(part) for part in value]]


def _load_value(kept: list[Any]) -> Any:
    match kept:
        case ["dict", parts]:
            return {name: _load_value(part) for name, part in parts.items()}
        case ["list", parts]:
            return [_load_value(part) for part in parts]
        case ["value", value]:
            return value
    return _MEDIA[kept[0]].model_validate(kept[1])


def _has_media(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(_has_media(part) for part in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, tuple(_MEDIA.values()))
