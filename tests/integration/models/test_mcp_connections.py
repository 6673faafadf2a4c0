"""Faulty connections to MCP servers: the known outcome of a call, and the resources left behind."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from support.drivers import Driver
from support.mcp_http import GatewayedServer
from support.temporal_runs import until
from support.transcripts import asks_for, call, error_of, kind_of, result_of, tool_results

from integration.models.test_mcp import SERVER
from standfast import Agent, RetryPolicy, StandfastError, run
from standfast.mcp import connections, mcp_tools
from standfast.testing import ScriptedModel

UNKNOWN = "tool-durability-error"


MUTE = """
import json, sys

for line in sys.stdin:
    got = json.loads(line)
    if got.get("method") == "initialize":
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "mute", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": got["id"], "result": info}), flush=True)
    elif "id" in got and got["method"] != "tools/list":
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": got["id"], "error": error}), flush=True)
"""


async def test_a_server_that_was_started_again_is_connected_to_again(driver: Driver) -> None:
    """It did not take the call, so that one with effects is made, too: once."""
    async with GatewayedServer() as server, mcp_tools(server.url, only=["post", "read"]) as tools:
        for name in ("post", "read"):
            server.restart()
            model = ScriptedModel([asks_for(call(name, "c1")), "done"])
            ended = await driver.run(Agent("a", tools=tools), model, session=name)
            assert result_of(ended.messages, "c1") == f"{name} is done"
    assert server.effects == ["post", "read"]


@pytest.mark.parametrize("name", ["pay", "garbled", "silent", "cut"])
async def test_an_effect_whose_answer_got_lost_is_unknown(driver: Driver, name: str) -> None:
    async with GatewayedServer() as server, mcp_tools(server.url, only=[name]) as tools:
        model = ScriptedModel([asks_for(call(name, "c1")), "done"])
        ended = await driver.run(Agent("a", tools=tools), model)
        assert kind_of(ended.messages, "c1") == UNKNOWN
    assert server.effects == [name]


async def test_what_is_safe_is_called_again_when_its_answer_got_lost() -> None:
    soon = RetryPolicy(initial_interval=0.01, maximum_attempts=3)
    async with (
        GatewayedServer() as server,
        mcp_tools(server.url, only=["pay"], safe_to_retry={"pay": True}) as tools,
    ):
        agent = Agent("a", tools=[replace(tool, retry=soon) for tool in tools])
        ended: Any = await run(agent, message="go", llm=ScriptedModel([asks_for(call("pay", "c1")), "done"]))
    assert "its MCP server gave no answer to it" in error_of(tool_results(ended.messages)[0])
    assert server.effects == ["pay"] * 3


async def test_a_lost_call_leaves_the_others_of_its_connection_alone() -> None:
    calls = (call("post", "c1", slowly=True), call("cut", "c2"))
    async with GatewayedServer() as server, mcp_tools(server.url, only=["post", "cut"]) as tools:
        together = [replace(tool, parallel=True) for tool in tools]
        work = asyncio.create_task(
            run(Agent("a", tools=together), message="go", llm=ScriptedModel([asks_for(*calls), "done"]))
        )
        await until(lambda: sorted(server.effects) == ["cut", "post"])
        server.release.set()
        ended: Any = await work
    assert result_of(ended.messages, "c1") == "post is done"
    assert kind_of(ended.messages, "c2") == UNKNOWN


async def test_names_that_no_provider_takes_are_written_otherwise() -> None:
    async with GatewayedServer() as server, mcp_tools(server.url, only=["1st", "a.b", "a_b", "a/b"]) as tools:
        assert [tool.name for tool in tools] == ["_1st", "a_b", "a_b_2", "a_b_3"]
        calls = [call(tool.name, f"c{n}") for n, tool in enumerate(tools)]
        await run(Agent("a", tools=tools), message="go", llm=ScriptedModel([asks_for(*calls), "done"]))
    assert server.effects == ["1st", "a.b", "a_b", "a/b"]


async def test_a_list_of_tools_that_cannot_be_read_is_an_error_in_words() -> None:
    async with GatewayedServer(tools={"nonsense": 1}) as server:  # of a list, those that can be read are used
        with pytest.raises(StandfastError, match="The MCP server's tools cannot be read"):
            async with mcp_tools(server.url):
                pass


async def test_tools_are_not_used_after_their_block() -> None:
    async with GatewayedServer() as server:
        async with mcp_tools(server.url, only=["post"]) as tools:
            pass
        ended: Any = await run(
            Agent("a", tools=tools), message="go", llm=ScriptedModel([asks_for(call("post", "c1")), "done"])
        )
    assert "for the `async with` block that gives them" in error_of(tool_results(ended.messages)[0])
    assert server.effects == []


HANGS = StdioServerParameters(command=sys.executable, args=["-c", "import time; time.sleep(600)"])


async def test_a_server_that_does_not_say_who_it_is_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.2)
    with pytest.raises(StandfastError, match=r"cannot be reached: no answer in 0\.2 s"):
        async with mcp_tools(HANGS):
            pass
    assert not [task for task in asyncio.all_tasks() if "HeldClient._hold" in repr(task)]


async def test_a_server_that_does_not_say_which_tools_it_has_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "mute.py"
    script.write_text(MUTE)
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 5)
    server = StdioServerParameters(command=sys.executable, args=["-S", str(script)])
    with pytest.raises(StandfastError, match="tools cannot be read: they are not listed within 5 s"):
        async with mcp_tools(server):
            pass


async def test_a_connection_that_is_cancelled_while_it_is_made_leaves_nothing_behind() -> None:
    async def connect() -> None:
        async with mcp_tools(HANGS):
            pass

    work = asyncio.create_task(connect())
    await until(lambda: any("HeldClient._hold" in repr(task) for task in asyncio.all_tasks()))
    work.cancel()
    await asyncio.wait({work})
    assert work.cancelled()
    assert not [task for task in asyncio.all_tasks() if "HeldClient._hold" in repr(task)]


HANGS_THE_SECOND_TIME = """
import pathlib, sys, time
folder = pathlib.Path("{folder}")
if (folder / "effects").exists():
    (folder / "again").touch()
    time.sleep(600)
sys.argv = ["server", str(folder / "effects")]
exec(compile(open("{server}").read(), "server", "exec"))
"""


@pytest.mark.slow
async def test_a_block_that_is_left_while_a_connection_is_made_leaves_nothing_behind(tmp_path: Path) -> None:
    """A server that died is started again, and the block ends meanwhile."""
    script = tmp_path / "server.py"
    script.write_text(HANGS_THE_SECOND_TIME.format(folder=tmp_path, server=SERVER))
    server = StdioServerParameters(command=sys.executable, args=[str(script)])
    async with mcp_tools(server, only=["put"], trust_hints=True) as tools:
        model = ScriptedModel([asks_for(call("put", "c1", text="x")), "done"])
        work = asyncio.create_task(run(Agent("a", tools=tools), message="go", llm=model))
        await until((tmp_path / "again").exists)
    ended: Any = await work
    assert "error" in tool_results(ended.messages)[0].content
    assert not [task for task in asyncio.all_tasks() if "HeldClient._hold" in repr(task)]
    assert (tmp_path / "effects").read_text() == "put x\n"
