"""Makes a tool of an agent that another one may call."""

from typing import TYPE_CHECKING, Any

from standfast.tools import Happened, Tool, ToolContext, tool
from standfast.tools.attempts import AgentFinder

if TYPE_CHECKING:
    from standfast.agents.agent import Agent

_FOR_EVER = "3650d"  # its own limits end an agent


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
