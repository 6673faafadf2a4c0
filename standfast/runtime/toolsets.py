"""Opens the toolsets of an agent, which provide its tools until a run or a worker ends."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from standfast.agents import Agent
from standfast.tools import Tool, Toolset

_LOG = logging.getLogger("standfast")


@asynccontextmanager
async def with_toolsets(agent: Agent, store: Any) -> AsyncIterator[Agent]:
    """Yield an agent with the tools of its toolsets, which work for as long as the block lasts.

    Raises:
        StandfastError: the tools of one cannot be found.
    """
    if not agent.toolsets:
        yield agent
        return
    async with AsyncExitStack() as stack:
        yield with_found(agent, {one: await stack.enter_async_context(one.opened(store)) for one in agent.toolsets})


def with_found(
    agent: Agent, found: Mapping[Toolset, Sequence[Tool[..., Any]]], made: dict[Agent, Agent] | None = None
) -> Agent:
    """Return an agent, and the agents that it hands over to, with the tools of their toolsets.

    Tools with another tool's name are left out.

    Args:
        made: the agents made so far: two agents that hand over to a third hand over to the same one.

    Raises:
        DefinitionError: two tools of its conversation's agents have the same name.
    """
    if not agent.toolsets:
        return agent
    made = {} if made is None else made
    if agent not in made:
        whole = agent.with_tools(found)
        for toolset in (item for item in agent.tools if isinstance(item, Toolset)):
            for tool in found[toolset]:
                if whole.tool_map.get(tool.name) is not tool:
                    _LOG.warning(
                        "Agent %s: it already has a tool named %r, so the tool of %s is left out; prefix= "
                        "distinguishes them",
                        agent.name,
                        tool.name,
                        toolset.name,
                    )
        targets = [with_found(one, found, made) if isinstance(one, Agent) else one for one in agent.handoffs]
        made[agent] = replace(whole, handoffs=targets)
    return made[agent]
