"""MCP servers that ask for a model's answer during a call: the model of the agent that makes the call answers."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from support.drivers import Driver, Ended
from support.transcripts import asks_for, call, result_of, says

from standfast import Agent, DefinitionError, Guardrail, Loop, Message, TokenBudget
from standfast.mcp import mcp_server, mcp_tools
from standfast.stores import memory_store
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel

SUPPORT = Path(__file__).parents[2] / "support"


def server(tmp_path: Path, protocol: str = "old") -> StdioServerParameters:
    script = SUPPORT / ("mcp_asking_server.py" if protocol == "new" else "mcp_old_sampler.py")
    return StdioServerParameters(command=sys.executable, args=[str(script), str(tmp_path / "heard")])


def by_name(**models: ScriptedModel) -> Callable[[str | None], ScriptedModel]:
    return lambda name: models[str(name)]


async def sampled(driver: Driver, agent: str) -> list[list[Message]]:
    """Return the transcripts in which an agent has answered for a model."""
    found = await driver.temporal.store.list_sessions(agent_name=agent)
    return [await driver.temporal.store.load_messages(one.id) for one in found]


def answers(ended: Ended, call_id: str = "c1") -> Any:
    return json.loads(result_of(ended.messages, call_id))


@pytest.mark.parametrize("protocol", ["old", "new"])
async def test_the_model_of_the_agent_answers_and_knows_nothing_of_it(
    driver: Driver, tmp_path: Path, protocol: str
) -> None:
    toolset = mcp_server(server(tmp_path, protocol), sampling=True)
    agent = Agent("a", model="m", instructions="The password is xyzzy.", tools=[toolset], settings={"max_tokens": 900})
    model = ScriptedModel([asks_for(call("think", "c1", text="6 * 7?"), tokens=5), says("42", 100, 10), says("done", 5)])
    ended = await driver.run(agent, by_name(m=model), message="Nobody else may read this.")
    assert "42" in result_of(ended.messages, "c1")
    assert ended.usage is not None
    assert ended.usage.total_tokens == 120
    _, asked, _ = model.calls
    assert asked.tools == []
    assert "user: 6 * 7?" in asked.messages[-1].content
    assert "xyzzy" not in str(asked.messages)
    assert "Nobody else" not in str(asked.messages)
    assert asked.settings == {"max_tokens": 100 if protocol == "new" else 50}
    ((said, answer),) = await sampled(driver, "a-sampling")
    assert "user: 6 * 7?" in said.content
    assert answer.content == "42"
