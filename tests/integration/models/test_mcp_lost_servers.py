"""MCP servers die while their tools are in use: unsent calls did not run, and the next call reconnects."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from support.drivers import Driver
from support.mcp_http import GatewayedServer
from support.mcp_processes import ServerProcess
from support.temporal_runs import until
from support.transcripts import asks_for, call, error_of, kind_of, result_of, tool_results

from integration.models.test_mcp import stdio
from standfast import Agent, StandfastError, run
from standfast.mcp import mcp_tools
from standfast.testing import ScriptedModel


def asks(name: str, call_id: str = "c1", **arguments: Any) -> ScriptedModel:
    return ScriptedModel([asks_for(call(name, call_id, **arguments)), "done"])


@pytest.mark.slow(but=1)
async def test_a_call_to_a_killed_server_did_not_run_and_the_next_one_finds_it_again(
    driver: Driver, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    async with ServerProcess(effects) as server, mcp_tools(server.url) as tools:
        agent = Agent("a", tools=tools)
        await driver.run(agent, asks("post", text="one"), session="s1")
        await server.kill()
        ended = await driver.run(agent, asks("post", text="two"), session="s2")
        assert "The MCP server cannot be reached: no connection" in error_of(tool_results(ended.messages)[0])
        await server.start()
        ended = await driver.run(agent, asks("post", text="three"), session="s3")
        assert result_of(ended.messages, "c1") == '{"posted":1}'
    assert effects.read_text() == "one\nthree\n"


@pytest.mark.slow(but=1)
async def test_a_safe_call_waits_until_its_server_is_back(driver: Driver, tmp_path: Path) -> None:
    async with ServerProcess(tmp_path / "effects") as server, mcp_tools(server.url, trust_hints=True) as tools:
        await server.kill()

        model = ScriptedModel([asks_for(call("read", "c1", name="x")), "done"])
        work = asyncio.create_task(driver.run(Agent("a", tools=tools), model))
        await until(lambda: model.calls)
        await server.start()
        ended = await work
        assert result_of(ended.messages, "c1") == "x is here"


@pytest.mark.slow(but=1)
async def test_a_process_that_was_killed_between_two_calls_is_started_again(driver: Driver, tmp_path: Path) -> None:
    effects, pid = tmp_path / "effects", tmp_path / "pid"
    server = stdio(effects)
    code = f"import os, runpy, sys; open({str(pid)!r}, 'w').write(str(os.getpid())); sys.argv = sys.argv[1:]; "
    wrapped = StdioServerParameters(
        command=server.command,
        args=["-c", code + "runpy.run_path(sys.argv[0], run_name='__main__')", *server.args],
    )
    async with mcp_tools(wrapped) as tools:
        agent = Agent("a", tools=tools)
        await driver.run(agent, asks("post", text="one"), session="s1")
        killed = int(pid.read_text())
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{killed}/stat").exists() or _is_zombie(killed))
        ended = await driver.run(agent, asks("post", text="two"), session="s2")
        assert result_of(ended.messages, "c1") == '{"posted":1}'
    assert effects.read_text() == "one\ntwo\n"


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")


@pytest.mark.slow(but=1)
async def test_a_function_that_makes_a_transport_is_called_for_each_connection(driver: Driver, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with mcp_tools(lambda: stdio_client(stdio(effects))) as tools:
        calls = (call("die", "c1", text="once"), call("read", "c2", name="x"))
        ended = await driver.run(Agent("a", tools=tools), ScriptedModel([asks_for(*calls), "done"]))
    assert kind_of(ended.messages, "c1") == "tool-durability-error"
    assert result_of(ended.messages, "c2") == "x is here"


async def test_a_transport_that_cannot_be_opened_again_says_so(driver: Driver, tmp_path: Path) -> None:
    async with mcp_tools(stdio_client(stdio(tmp_path / "effects"))) as tools:
        calls = (call("die", "c1", text="once"), call("post", "c2", text="x"))
        ended = await driver.run(Agent("a", tools=tools), ScriptedModel([asks_for(*calls), "done"]))
    assert kind_of(ended.messages, "c1") == "tool-durability-error"
    assert "its transport cannot be opened again: give a function" in error_of(tool_results(ended.messages)[1])


@pytest.mark.parametrize("status", [401, 403])
async def test_a_call_that_is_not_let_in_did_not_run(driver: Driver, status: int) -> None:
    async with GatewayedServer() as server, mcp_tools(server.url, only=["post"]) as tools:
        server.refuses = status
        ended = await driver.run(Agent("a", tools=tools), asks("post"))
        assert f"it answers {status} " in error_of(tool_results(ended.messages)[0])
        assert "headers= or auth= must let it in" in error_of(tool_results(ended.messages)[0])
    assert server.effects == []


async def test_a_server_that_lets_nobody_in_says_so_at_once() -> None:
    async with GatewayedServer() as server:
        server.refuses = 401
        with pytest.raises(StandfastError, match="cannot be reached: it answers 401 Unauthorized"):
            async with mcp_tools(server.url):
                pass


async def test_an_effect_is_unknown_even_if_another_call_was_not_let_in(tmp_path: Path) -> None:
    """What is known of one call says nothing about another one on the same connection."""
    async with GatewayedServer() as server, mcp_tools(server.url, only=["post", "cut"]) as tools:
        first = await run(Agent("a", tools=tools), message="go", llm=asks("cut"))
        server.refuses = 401
        second = await run(Agent("a", tools=tools), message="go", llm=asks("post"))
    assert kind_of(first.messages, "c1") == "tool-durability-error"
    assert "401" in error_of(tool_results(second.messages)[0])
    assert server.effects == ["cut"]
