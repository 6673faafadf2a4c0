"""Guards the tools of pydantic-ai's agents, in this process and in the activities of its Temporal integration.

The guard sits in the toolsets that hold the tools, below every wrapper: in a workflow of Temporal only they are called
inside the activity, where a store can be reached.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from standfast.effects.keys import in_activity
from standfast.errors import DefinitionError, InputError, ToolDurabilityError
from standfast.integrations._guards import ToolGuard, check_version, in_workflow, key_of
from standfast.stores.protocol import DurableStore

check_version("pydantic-ai-slim", "2.68", "3", extra="pydantic-ai")

from pydantic_ai import AbstractToolset, ApprovalRequired, CallDeferred, ModelRetry, RunContext  # noqa: E402
from pydantic_ai.agent import AbstractAgent  # noqa: E402
from pydantic_ai.durable_exec import DurableRunContext  # noqa: E402
from pydantic_ai.exceptions import ToolFailed, UserError  # noqa: E402
from pydantic_ai.messages import ModelRequest, ToolReturn, ToolReturnContent  # noqa: E402
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset  # noqa: E402

__all__ = ["guarded"]

AgentOrToolset = TypeVar("AgentOrToolset")


def guarded(agent_or_toolset: AgentOrToolset, *, store: DurableStore) -> AgentOrToolset:
    """Guard the tools of a toolset, or all tools and toolsets that an agent has, and return the same object.

    A tool is safe, and not guarded, with `metadata={"safe_to_retry": True}`, or by MCP's `readOnlyHint` or
    `idempotentHint`. All others run at most once for a conversation and a call of the model's.

    Args:
        agent_or_toolset: changed in place: a tool that is added later is guarded, too.
        store: a durable one.

    Raises:
        DefinitionError: it is neither an agent nor a toolset, or has a guard already.
        MemoryStoreNotDurableError: the store forgets.
    """
    guard = ToolGuard(store, not_run=(ApprovalRequired, CallDeferred), told=(ModelRetry, ToolFailed))
    match agent_or_toolset:
        case AbstractAgent():
            toolsets = list(agent_or_toolset.toolsets)
        case AbstractToolset():
            toolsets = [agent_or_toolset]
        case _:
            raise DefinitionError(f"guarded needs an agent or a toolset of pydantic-ai, got {agent_or_toolset!r:.80}")
    leaves = dict[int, Any]()
    for toolset in toolsets:
        toolset.apply(lambda leaf: leaves.setdefault(id(leaf), leaf))
    for leaf in leaves.values():
        if isinstance(leaf, _Guarded):
            raise DefinitionError(f"guarded: {leaf.label} has a guard already")
    for leaf in leaves.values():
        _guard(leaf, guard)
    return agent_or_toolset


def _guard(leaf: Any, guard: ToolGuard) -> Any:
    """Guard the calls of a toolset that holds tools; one that only wraps another passes them on."""
    kind = type(leaf)
    if not isinstance(leaf, _Guarded | WrapperToolset):
        leaf.__class__ = type(kind.__name__, (_Guarded, kind), {"_guard": guard, "__module__": kind.__module__})
    return leaf


class _Guarded(AbstractToolset[Any]):
    """A toolset whose calls are guarded: the first base of a class that is made for each kind of toolset."""

    _guard: ClassVar[ToolGuard]

    async def for_run(self, ctx: RunContext[Any]) -> Any:
        return _guard(await super().for_run(ctx), self._guard)

    async def for_run_step(self, ctx: RunContext[Any]) -> Any:
        return _guard(await super().for_run_step(ctx), self._guard)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if _is_safe(tool):
            return await super().call_tool(name, tool_args, ctx, tool)
        if in_workflow():
            raise UserError(
                f"Tool {name!r} has effects, and runs in a workflow, where it cannot be guarded: let it run in an "
                'activity, or declare it safe with metadata={"safe_to_retry": True}'
            )
        call_id = ctx.tool_call_id or ""

        async def call() -> _Result:
            try:
                found = await super(_Guarded, self).call_tool(name, tool_args, ctx, tool)
            except ModelRetry as error:
                if isinstance(error.__context__, TimeoutError):  # nobody knows what a tool that timed out has done
                    raise ToolDurabilityError(name, call_id, reason=error.message) from None
                raise
            return _Result(whole=found) if isinstance(found, ToolReturn) else _Result(found)

        read = await self._guard.run(name, call_id, tool_args, call, key=_key(ctx, call_id), returns=_Result)
        if not isinstance(read, _Result):
            return read
        return read.content if read.whole is None else read.whole


@dataclass
class _Result:
    """What a tool has returned, as it is kept: pydantic-ai's own types are there again when it is read."""

    content: ToolReturnContent = None
    whole: ToolReturn | None = None


def _is_safe(tool: Any) -> bool:
    metadata = tool.tool_def.metadata or {}
    hints = metadata.get("annotations") or {}
    if metadata.get("safe_to_retry") is True:
        return True
    return isinstance(hints, Mapping) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)


def _key(ctx: Any, call_id: str) -> str | None:
    """Return the key of a call: an activity of pydantic-ai's own has one, by which a reset finds it, too."""
    if in_activity() and isinstance(ctx, DurableRunContext):
        return None
    if not ctx.conversation_id or not call_id:
        raise InputError("A tool call of pydantic-ai outside of an agent's run cannot be guarded: it has no id")
    # A provider may count its calls from the beginning in every response, so that an id comes again.
    answered = sum(
        getattr(part, "tool_call_id", None) == call_id
        for message in ctx.messages
        if isinstance(message, ModelRequest)
        for part in message.parts
    )
    return key_of(ctx.conversation_id, call_id, str(answered))
