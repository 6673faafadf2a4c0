"""Resources of MCP servers are read by tools, and prompts are text for messages and instructions."""

import pytest
from support.drivers import Driver
from support.transcripts import asks_for, call, error_of, result_of, tool_results

from standfast import Agent, StandfastError
from standfast.mcp import mcp_prompt, mcp_server
from standfast.testing import ScriptedModel


async def test_a_model_lists_and_reads_resources(driver: Driver, asking: str) -> None:
    agent = Agent("a", tools=[mcp_server(asking, only=["pay"], resources=True, prefix="n_")])
    calls = [
        call("n_list_resources", "c1"),
        call("n_read_resource", "c2", uri="notes://today"),
        call("n_read_resource", "c3", uri="notes://friday"),
        call("n_read_resource", "c4", uri="files://etc"),
    ]
    ended = await driver.run(agent, ScriptedModel([asks_for(*calls), "done"]))
    listed = result_of(ended.messages, "c1")
    assert '["notes://today", "What is to be done."]' in listed
    assert "notes://{day}" in listed
    assert result_of(ended.messages, "c2") == "Buy milk."
    assert result_of(ended.messages, "c3") == "Notes of friday."
    assert "files://etc" in error_of(tool_results(ended.messages)[3])


async def test_a_prompt_is_text(asking: str) -> None:
    assert await mcp_prompt(asking, "style", {"tone": "warm"}) == "Write in a warm tone."
    with pytest.raises(StandfastError, match="Internal server error"):
        await mcp_prompt(asking, "sty")
