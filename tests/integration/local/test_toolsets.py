"""Toolsets of agents that hand over to each other."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.transcripts import asks_for, call, result_of

from standfast import Agent, Tool, run, sqlite_store, tool
from standfast.temporal.activities.tools.toolsets import OpenToolsets
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.testing import ScriptedModel


@tool(safe_to_retry=True)
async def look(at: str) -> str:
    """Look at something."""
    return f"a picture of {at}"


class Shelf:
    """Tools that are found when a run or a worker begins."""

    name, agents, asks_model = "shelf", (), False

    def __init__(self, *tools: Tool[..., Any]) -> None:
        self._tools, self.opened_times = tools, 0

    @asynccontextmanager
    async def opened(self, store: Any, renewed: Any = None) -> AsyncIterator[Sequence[Tool[..., Any]]]:
        self.opened_times += 1
        yield self._tools


async def test_two_agents_hand_over_to_a_third_that_has_a_toolset() -> None:
    seer = Agent("seer", model="seer", tools=[Shelf(look)])
    middle = Agent("middle", model="middle", handoffs=[seer])
    first = Agent("first", model="first", handoffs=[middle, seer])
    models = {
        "first": ScriptedModel([asks_for(call("transfer_to_middle", "h1"))]),
        "middle": ScriptedModel([asks_for(call("transfer_to_seer", "h2"))]),
        "seer": ScriptedModel([asks_for(call("look", "c1", at="Rome")), "Seen"]),
    }
    ended = await run(first, message="go", llm=lambda name: models[str(name)])
    assert (ended.status, ended.response) == ("complete", "Seen")
    assert result_of(ended.messages, "c1") == "a picture of Rome"


async def test_agents_whose_tools_clash_in_their_conversation_are_not_served_and_others_are(tmp_path: Path) -> None:
    @tool(name="look")
    async def look_away(at: str) -> str:
        """Look elsewhere."""
        return at

    shelf = Shelf(look)
    target, alone = (
        Agent("target", tools=[look_away]),
        Agent("alone", tools=[prefixed := Shelf(tool(name="peek")(_peek))]),
    )
    first = Agent("first", tools=[shelf], handoffs=[target])
    async with sqlite_store(tmp_path / "s.db") as store:
        host = AgentHost([first, target, alone], [], store, ScriptedModel([]), {}, 200, "1s")
        async with OpenToolsets(host, str).serving(lambda activity: None):
            assert set(host.catalogue.agents) == {"target", "alone"}
            assert "two tools of agents of one conversation are named 'look'" in host.catalogue.waits["first"]
    assert (shelf.opened_times, prefixed.opened_times) == (1, 1)


async def _peek(at: str) -> str:
    """Look for a moment."""
    return at
