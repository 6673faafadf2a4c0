"""Checks the tools of an agent, and makes an agent into a tool that another one may call."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from standfast.agents.foreign_agents import ACCEPTED, adopted
from standfast.errors import DefinitionError
from standfast.tools import Happened, HostedTool, Tool, ToolContext, Toolset, tool
from standfast.tools.attempts import AgentFinder

if TYPE_CHECKING:
    from standfast.agents.agent import Agent

_FOR_EVER = "3650d"  # its own limits end an agent


def check_tools(agent: "Agent", kind: type[Any]) -> "tuple[Tool[..., Any] | Agent | Toolset | HostedTool, ...]":
    """Return an agent's `tools`, after a check that they are tools, agents and toolsets.

    Raises:
        DefinitionError: naming the agent and the rule.
    """
    said, given = f"Agent '{agent.name}': tools", agent.tools
    if isinstance(given, str | Mapping):
        raise DefinitionError(f"{said} must be a list of tools")
    try:
        tools = tuple(adopted(item) for item in given)
    except TypeError as error:
        raise DefinitionError(f"{said} must be a list of tools, got {given!r}") from error
    seen = set()
    for item in tools:
        if not isinstance(item, Tool | kind | Toolset | HostedTool):
            name = getattr(item, "__name__", repr(item))
            raise DefinitionError(f"{said}: {name} is not a Tool; decorate the function with @tool, or give {ACCEPTED}")
        if isinstance(item, Toolset):
            continue
        if item.name in seen:
            raise DefinitionError(f"{said}: two are named {item.name!r}")
        if isinstance(item, kind) and item.needs_context:
            raise DefinitionError(
                f"{said}: agent '{item.name}' needs a context, which a model does not give: write a tool that calls "
                f"ctx.agents.invoke({item.name}, message=…, context=…)"
            )
        seen.add(item.name)
    return tools


def as_tool(agent: "Agent") -> Tool[..., Any]:
    """Return a tool that asks the agent."""

    async def find(message: str, ctx: ToolContext) -> Happened | None:
        answer = await ctx.agents.find(agent) if isinstance(ctx.agents, AgentFinder) else None
        return None if answer is None else Happened(answer)

    description = agent.description or f"Ask the agent {agent.name}."

    @tool(name=agent.name, description=description, timeout=_FOR_EVER, verify=find)
    async def ask(message: str, ctx: ToolContext) -> str:
        return (await ctx.agents.invoke(agent, message=message))["response"]

    return ask
