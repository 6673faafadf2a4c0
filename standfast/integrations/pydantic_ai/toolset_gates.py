"""Finds the tools of pydantic-ai's toolsets for all users, and the calls that need approval; internal."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    FilteredToolset,
    PrefixedToolset,
    PreparedToolset,
    RenamedToolset,
    WrapperToolset,
)

from standfast.messages import ToolCall
from standfast.tools import Approval


def unfiltered(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return a toolset without wrappers that hide tools from some users."""
    match toolset:
        case FilteredToolset():
            return unfiltered(toolset.wrapped)
        case PreparedToolset() if type(toolset) is PreparedToolset:  # subclasses only add to definitions
            return unfiltered(toolset.wrapped)
        case WrapperToolset():
            return replace(toolset, wrapped=unfiltered(toolset.wrapped))
        case CombinedToolset():
            return replace(toolset, toolsets=[unfiltered(one) for one in toolset.toolsets])
    return toolset


Check = tuple[Callable[..., bool], Any]  # decides whether a call needs approval, and the definition that it gets


async def gates_of(toolset: AbstractToolset[Any], ctx: RunContext[Any]) -> dict[str, list[Check]]:
    """Return by tool name the functions of `ApprovalRequiredToolset`s that decide on their calls."""
    match toolset:
        case ApprovalRequiredToolset():
            found = await gates_of(toolset.wrapped, ctx)
            for name, tool in (await toolset.wrapped.get_tools(ctx)).items():
                found.setdefault(name, []).append((toolset.approval_required_func, tool.tool_def))
            return found
        case PrefixedToolset():
            inner = await gates_of(toolset.wrapped, ctx)
            return {f"{toolset.prefix}_{name}": checks for name, checks in inner.items()}
        case RenamedToolset():
            new = {old: name for name, old in toolset.name_map.items()}
            return {new.get(name, name): checks for name, checks in (await gates_of(toolset.wrapped, ctx)).items()}
        case WrapperToolset():
            return await gates_of(toolset.wrapped, ctx)
        case CombinedToolset():
            several = [await gates_of(one, ctx) for one in toolset.toolsets]
            return {name: checks for found in several for name, checks in found.items()}
    inside = getattr(toolset, "_toolset", None)  # of a toolset made by a function
    return await gates_of(inside, ctx) if isinstance(inside, AbstractToolset) else {}


@dataclass(frozen=True)
class Gates:
    """Decides whether a call needs approval; people are asked if that depends on the user, or is unknown."""

    checks: tuple[Check, ...]
    ctx: RunContext[Any]
    is_personal: bool

    def gate(self, call: ToolCall) -> Approval | None:
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        if not self.is_personal:
            try:
                ctx = replace(self.ctx, tool_name=call.name, tool_call_id=call.id)
                if not any(check(ctx, described, arguments) for check, described in self.checks):
                    return None
            except Exception:  # it needs the messages, for example
                pass
        return Approval(message=f"Run {call.name}?")
