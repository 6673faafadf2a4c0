"""MCP tools, over stdio and HTTP, with both drivers: their declarations and results."""

import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from support.drivers import Driver
from support.transcripts import asks_for, call, error_of, kind_of, result_of, tool_results

from standfast import Agent, Approval, DefinitionError, StandfastError
from standfast.mcp import mcp_tools
from standfast.testing import ScriptedModel

SERVER = Path(__file__).parents[2] / "support" / "mcp_server.py"


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def stdio(effects: Path) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=[str(SERVER), str(effects)])


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """What `mcp_tools` connects to, and the file of its effects."""
    if request.param == "stdio":
        return stdio(tmp_path / "effects"), tmp_path / "effects"
    url, effects = request.getfixturevalue("plain_server")
    effects.unlink(missing_ok=True)
    return url, effects


def asks(*calls: Any) -> ScriptedModel:
    return ScriptedModel([asks_for(*calls), "done"])


async def test_a_server_that_is_trusted_says_which_of_its_tools_are_safe(server: tuple[Any, Path]) -> None:
    async with mcp_tools(server[0], trust_hints=True) as tools:
        by_name = {tool.name: tool for tool in tools}
        assert {name: tool.safe_to_retry for name, tool in by_name.items()} == {
            "read": True, "post": False, "put": True, "die": False, "linger": False, "fail": False
        }  # fmt: skip
        assert by_name["post"].description == "Post a text."
        assert by_name["post"].input_schema["required"] == ["text"]


async def test_an_agent_calls_them_like_any_other(driver: Driver, server: tuple[Any, Path]) -> None:
    address, effects = server
    calls = (
        call("read", "c1", name="x"),
        call("post", "c2", text="hi"),
        call("fail", "c3"),
        call("post", "c4", txt="a"),
    )
    async with mcp_tools(address) as tools:
        ended = await driver.run(Agent("a", tools=tools), asks(*calls))
    assert (ended.status, effects.read_text()) == ("complete", "hi\n")
    assert result_of(ended.messages, "c1") == "x is here"
    assert result_of(ended.messages, "c2") == '{"posted":1}'
    failed, invalid = tool_results(ended.messages)[2:]
    assert "no such channel" in error_of(failed)
    assert "'text' is a required property" in error_of(invalid)


@pytest.mark.slow(but=1)
async def test_an_effect_whose_server_died_is_not_repeated(driver: Driver, effects: Path) -> None:
    async with mcp_tools(stdio(effects)) as tools:
        ended = await driver.run(
            Agent("a", tools=tools), asks(call("die", "c1", text="once"), call("read", "c2", name="x"))
        )
    assert effects.read_text() == "once\n"
    assert kind_of(ended.messages, "c1") == "tool-durability-error"
    assert result_of(ended.messages, "c2") == "x is here"  # the connection is made again


@pytest.mark.slow(but=1)
async def test_what_is_safe_is_called_again_when_its_server_died(driver: Driver, effects: Path) -> None:
    async with mcp_tools(stdio(effects), only=["put"], trust_hints=True) as tools:
        ended = await driver.run(Agent("a", tools=tools), asks(call("put", "c1", text="x")))
    assert effects.read_text() == "put x\nput x\n"
    assert result_of(ended.messages, "c1") == "put"


async def test_what_the_server_says_can_be_overridden(server: tuple[Any, Path]) -> None:
    safe, gates = {"read": False, "post": True}, {"post": Approval()}
    async with mcp_tools(server[0], only=["read", "post"], safe_to_retry=safe, approval=gates, timeout="30s") as tools:
        assert [(tool.name, tool.safe_to_retry, tool.approval, tool.timeout) for tool in tools] == [
            ("read", False, None, 30.0), ("post", True, gates["post"], 30.0)
        ]  # fmt: skip


async def test_an_approval_of_a_servers_tool_holds(driver: Driver, effects: Path) -> None:
    async with mcp_tools(stdio(effects), approval={"post": Approval()}) as tools:
        decisions = [{"gate": "c1", "decision": "approve", "edit": {"text": "ho"}}]
        ended = await driver.run(Agent("a", tools=tools), asks(call("post", "c1", text="hi")), decisions=decisions)
    assert (ended.status, effects.read_text()) == ("complete", "ho\n")


@pytest.mark.slow(but=1)
async def test_a_tool_that_the_server_has_not_is_refused_by_name(server: tuple[Any, Path]) -> None:
    with pytest.raises(DefinitionError, match="no tool 'pots'; it has read, post, put, die, linger, fail"):
        async with mcp_tools(server[0], only=["pots"]):
            pass


async def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(StandfastError, match="The MCP server cannot be reached"):
        async with mcp_tools("http://127.0.0.1:9/mcp"):
            pass
