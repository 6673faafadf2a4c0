"""Guards the tools of pydantic-ai agents, in this process and in the activities of its Temporal integration.

`guarded` puts its guard into the toolsets that hold the tools, below every wrapper: in a Temporal workflow only they
are called inside the activity, where a store can be reached.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter
from pydantic_ai import AbstractToolset, ApprovalRequired, CallDeferred, ModelRetry, RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.durable_exec import DurableRunContext
from pydantic_ai.exceptions import ToolFailed, UserError
from pydantic_ai.messages import ModelRequest, ToolReturn, ToolReturnContent
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool, WrapperToolset

from standfast.effects.keys import in_activity, in_workflow
from standfast.errors import DefinitionError, InputError, ToolDurabilityError
from standfast.integrations._guards import GuardKey, ToolGuard, has_guard, key_of, said_safe, second_guard
from standfast.messages import JSONObject
from standfast.stores.protocol import DurableStore

AgentOrToolset = TypeVar("AgentOrToolset")


def guarded(agent_or_toolset: AgentOrToolset, *, store: DurableStore, trust_hints: bool = False) -> AgentOrToolset:
    """Guard the tools of a toolset, or all tools and toolsets of an agent, and return the same object.

    A tool is safe, and not guarded, with `metadata={"safe_to_retry": True}`. All others run at most once per
    conversation and model call.

    Args:
        agent_or_toolset: changed in place: tools that are added later are also guarded.
        store: a durable one.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.

    Raises:
        DefinitionError: it is neither an agent nor a toolset, or is already guarded.
        MemoryStoreNotDurableError: the store is not durable.
    """
    guard = guard_of(store)
    match agent_or_toolset:
        case AbstractAgent():
            toolsets = list(agent_or_toolset.toolsets)
        case AbstractToolset():
            toolsets = [agent_or_toolset]
        case _:
            raise DefinitionError(f"guarded needs an agent or a toolset of pydantic-ai, got {agent_or_toolset!r:.80}")
    leaves = _leaves(*toolsets)
    for leaf in leaves.values():
        if isinstance(leaf, _Guarded):
            raise DefinitionError(f"guarded: {leaf.label} is already guarded")
        if twice := _effects(leaf, trust_hints):
            raise second_guard(twice[0])
    for leaf in leaves.values():
        _guard(leaf, guard, trust_hints)
    return agent_or_toolset


def check_unguarded(agent: str, guard: str, *toolsets: AbstractToolset[Any]) -> None:
    """Check that an agent with another guard does not have tools that `guarded` has guarded.

    Raises:
        DefinitionError: it has such tools.
    """
    if any(isinstance(leaf, _Guarded) for leaf in _leaves(*toolsets).values()):
        raise DefinitionError(
            f"Agent '{agent}' has {guard}, which guards its tools, and also guarded(…): remove guarded(…). Nothing "
            "was run"
        )


def check_no_effects(agent: str, toolset: AbstractToolset[Any], trust_hints: bool) -> None:
    """Check that no guarded tool is itself a guarded function.

    Raises:
        DefinitionError: one is, and is not safe.
    """
    for leaf in _leaves(toolset).values():
        for name in _effects(leaf, trust_hints):
            raise DefinitionError(
                f"Agent '{agent}': tool '{name}' is guarded by @effect, and StandfastDurability also guards it: "
                'remove the guard; or, to use its verify=, declare the tool safe with metadata={"safe_to_retry": '
                "True}. Nothing was run"
            )


def _effects(leaf: Any, trust_hints: bool) -> list[str]:
    """Return the names of tools with effects whose functions are guarded themselves."""
    tools = leaf.tools.values() if isinstance(leaf, FunctionToolset) else ()
    return [tool.name for tool in tools if has_guard(tool.function) and not is_safe(tool, trust_hints)]


def function_of(tool: ToolsetTool[Any]) -> Any:
    """Return the function of a tool; None if it is not known."""
    schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    return getattr(schema, "function", None)


def _leaves(*toolsets: AbstractToolset[Any]) -> dict[int, Any]:
    leaves = dict[int, Any]()
    for toolset in toolsets:
        toolset.apply(lambda leaf: leaves.setdefault(id(leaf), leaf))
    return leaves


def guard_of(store: DurableStore) -> ToolGuard:
    """Return the guard of pydantic-ai's tools.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.
    """
    return ToolGuard(store, not_run=(ApprovalRequired, CallDeferred), told=(ModelRetry, ToolFailed))


async def call_guarded(
    guard: ToolGuard,
    name: str,
    call_id: str,
    arguments: Mapping[str, Any],
    function: Callable[[], Awaitable[Any]],
    *,
    key: GuardKey,
    safe_to_retry: bool = False,
) -> Any:
    """Run a tool's call unless it has run, or may have; return its result, or the text for the model."""

    async def call() -> _Result:
        try:
            found = await function()
        except ModelRetry as error:
            if has_timed_out(error) and not safe_to_retry:
                raise ToolDurabilityError(name, call_id, reason=error.message) from None
            raise
        return _Result(whole=found) if isinstance(found, ToolReturn) else _Result(found)

    return _read(await guard.run(name, call_id, arguments, call, key=key, returns=_Result, safe_to_retry=safe_to_retry))


def has_timed_out(error: ModelRetry) -> bool:
    """Whether a tool timed out, which pydantic-ai reports to the model as something to try again."""
    return isinstance(error.__context__, TimeoutError)


def _guard(leaf: Any, guard: ToolGuard, trust_hints: bool) -> Any:
    """Guard the calls of a toolset that holds tools; a wrapper passes calls on."""
    kind = type(leaf)
    if not isinstance(leaf, _Guarded | WrapperToolset):
        own = {"_guard": guard, "_trust_hints": trust_hints, "__module__": kind.__module__}
        leaf.__class__ = type(kind.__name__, (_Guarded, kind), own)
    return leaf


class _Guarded(AbstractToolset[Any]):
    """A toolset whose calls are guarded: the first base of a class that is created for each kind of toolset."""

    _guard: ClassVar[ToolGuard]
    _trust_hints: ClassVar[bool]

    async def for_run(self, ctx: RunContext[Any]) -> Any:
        return _guard(await super().for_run(ctx), self._guard, self._trust_hints)

    async def for_run_step(self, ctx: RunContext[Any]) -> Any:
        return _guard(await super().for_run_step(ctx), self._guard, self._trust_hints)

    async def call_tool(self, name: str, tool_args: JSONObject, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        if is_safe(tool, self._trust_hints):
            return await super().call_tool(name, tool_args, ctx, tool)
        if in_workflow():
            raise UserError(
                f"Tool {name!r} has effects, and runs in a workflow, where it cannot be guarded: let it run in an "
                'activity, or declare it safe with metadata={"safe_to_retry": True}'
            )
        call_id = ctx.tool_call_id or ""
        call = partial(super().call_tool, name, tool_args, ctx, tool)
        return await call_guarded(self._guard, name, call_id, tool_args, call, key=_key(ctx, call_id))


@dataclass
class _Result:
    """The stored form of a tool's result: pydantic-ai's own types are restored when it is read."""

    content: ToolReturnContent = None
    whole: ToolReturn | None = None


def read_result(kept: str) -> Any:
    """Return a tool's result from the ledger's value."""
    return _read(TypeAdapter(_Result).validate_json(kept))


def _read(found: Any) -> Any:
    if not isinstance(found, _Result):
        return found
    return found.content if found.whole is None else found.whole


def is_safe(tool: Any, trust_hints: bool) -> bool:
    metadata = tool.tool_def.metadata or {}
    return metadata.get("safe_to_retry") is True or (trust_hints and said_safe(metadata.get("annotations")))


def _key(ctx: Any, call_id: str) -> str | None:
    """Return the key of a call: an activity of pydantic-ai has one, which a reset also finds."""
    if in_activity() and isinstance(ctx, DurableRunContext):
        return None
    if not ctx.conversation_id or not call_id:
        raise InputError("A pydantic-ai tool call outside an agent's run cannot be guarded: it has no id")
    # A provider may count its calls from the beginning in every response, so ids may repeat.
    answered = sum(
        getattr(part, "tool_call_id", None) == call_id
        for message in ctx.messages
        if isinstance(message, ModelRequest)
        for part in message.parts
    )
    return key_of(ctx.conversation_id, call_id, str(answered))
