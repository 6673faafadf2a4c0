"""MCP tools from `langchain-mcp-adapters` are dispatched by us in a graph that we run."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from integrations.langchain.server_desk import connection
from integrations.langchain.shop import ScriptedModel, asks
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.checkpoint.memory import InMemorySaver
from support import foreign_mcp_server
from support.foreign_shops import noted
from support.mortal_programs import run_until_complete
from support.temporal_runs import Temporal, events, pending, result, scheduled

from standfast import Approval, is_interrupted, resume, run
from standfast.integrations.langchain import as_agent
from standfast.stores import SQLiteStore
from standfast.temporal import connect
from standfast.testing import DevServer, child_process

CHARGE, PRICE, SOLD = asks("charge", cents=5), asks("price", id="call_1"), AIMessage("sold")


@pytest_asyncio.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    shop = Temporal(await connect(temporal_server.address), store, uuid4().hex[:12])
    yield shop
    await shop.end_all()


@pytest_asyncio.fixture(params=["stdio", "http"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Path]:
    """A folder, with a server over HTTP, or without: then each call starts one."""
    async with over_http(tmp_path, "kill") if request.param == "http" else nullcontext():
        yield tmp_path


@asynccontextmanager
async def over_http(folder: Path, *modes: str) -> AsyncIterator[None]:
    async with child_process(sys.executable, foreign_mcp_server.__file__, str(folder), "http", *modes):
        while not noted(folder, "port"):
            await asyncio.sleep(0.01)
        yield


async def shop(folder: Path, *script: AIMessage, modes: tuple[str, ...] = ()) -> Any:
    tools = await MultiServerMCPClient({"till": connection(folder, *modes)}).get_tools()
    model = ScriptedModel(messages=iter(script))
    return create_agent(model, tools, checkpointer=InMemorySaver(), name="shop")


@pytest.mark.parametrize("where", ["here", "on temporal"])
async def test_a_process_that_a_servers_tools_kill_twice_charges_once_and_the_model_is_told(
    temporal_server: DevServer, place: Path, where: str
) -> None:
    words = [temporal_server.address, uuid4().hex] if where == "on temporal" else []
    done = await run_until_complete("integrations.langchain.server_desk", place, *words)
    assert (done.said["status"], done.deaths, done.charges, len(noted(place, "prices"))) == ("complete", 2, [5], 2)
    told, price = json.loads(done.said["response"])
    assert json.loads(told)["kind"] == "tool-durability-error"
    assert "500" in str(price)
    assert len(noted(place, "answers")) == 3  # no answer was paid twice


async def test_without_us_the_same_graph_charges_again(place: Path) -> None:
    done = await run_until_complete("integrations.langchain.server_desk", place, "bare")
    assert (done.deaths, done.charges, len(noted(place, "prices"))) == (2, [5, 5], 2)


async def test_on_temporal_a_servers_call_is_an_activity_and_waits_at_its_gate(
    temporal: Temporal, tmp_path: Path
) -> None:
    agent = as_agent(await shop(tmp_path, PRICE, CHARGE, SOLD), approval={"charge": Approval(message="Charge?")})
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        assert (waits["message"], noted(tmp_path, "charges")) == ("Charge?", [])
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada", edit={"cents": 4})
        assert (await result(handle))["response"] == "sold"
        names = [name for name in scheduled(await events(handle)) if "." not in name]
    assert names == ["call_model", "price", "call_model", "charge", "call_model"]
    assert noted(tmp_path, "charges") == ["4"]


@pytest.mark.parametrize("change", ["changed", "removed"])
async def test_a_tool_that_its_server_changes_while_a_call_waits_at_a_gate_is_not_called(
    temporal: Temporal, place: Path, change: str
) -> None:
    agent = as_agent(await shop(place, CHARGE, PRICE, SOLD), approval={"charge": Approval()})
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        (place / change).touch()
        (place / "added").touch()
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada")
        assert (await result(handle))["response"] == "sold"
    results = [message.content for message in await temporal.messages() if message.role == "tool"]
    assert "since it was read" in results[0]
    assert (noted(place, "charges"), len(noted(place, "prices"))) == ([], 1)


async def test_a_tool_of_an_open_session_is_compared_in_it(tmp_path: Path) -> None:
    async with MultiServerMCPClient({"till": connection(tmp_path)}).session("till") as session:
        graph = create_agent(ScriptedModel(messages=iter([CHARGE, SOLD])), await load_mcp_tools(session), name="shop")
        agent = as_agent(graph, approval={"charge": Approval()})
        asked = await run(agent, message="Sell it.")
        assert is_interrupted(asked)
        (tmp_path / "changed").touch()
        [gate] = asked.approvals
        decided = {"gate": gate.gate, "decision": "approve", "by": "ada", "digest": gate.digest}
        done = await resume(agent, asked.checkpoint, decisions=[decided])
    assert "since it was read" in done.messages[-2].content
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == ([], 1)


async def test_headers_that_an_interceptor_adds_come_with_the_question_and_the_call(tmp_path: Path) -> None:
    async def for_ada(request: Any, handler: Any) -> Any:
        return await handler(request.override(headers={"X-Who": "ada"}))

    async with over_http(tmp_path):
        client = MultiServerMCPClient({"till": connection(tmp_path)}, tool_interceptors=[for_ada])
        script = ScriptedModel(messages=iter([CHARGE, SOLD]))
        done = await run(create_agent(script, await client.get_tools(), name="shop"), message="Sell it.")
    assert (done.response, noted(tmp_path, "charges")) == ("sold", ["5"])
    heard = [one for one in noted(tmp_path, "heard") if one.startswith("tools/")]
    assert heard == ["tools/list ", "tools/list ada", "tools/call ada"]


async def test_a_call_whose_server_cannot_be_reached_was_not_made(tmp_path: Path) -> None:
    async with over_http(tmp_path):
        graph = await shop(tmp_path, CHARGE, SOLD)
    done = await run(graph, message="Sell it.")
    assert "cannot list its tools" in done.messages[-2].content


async def test_a_call_that_the_server_did_not_answer_is_not_made_again_and_the_model_is_told(tmp_path: Path) -> None:
    done = await run(await shop(tmp_path, CHARGE, SOLD, modes=("gone",)), message="Sell it.")
    told = json.loads(done.messages[-2].content)
    assert (told["kind"], noted(tmp_path, "charges")) == ("tool-durability-error", ["5"])


async def test_what_a_server_says_of_a_failure_is_what_the_model_reads(tmp_path: Path) -> None:
    done = await run(await shop(tmp_path, asks("fail"), SOLD), message="Sell it.")
    assert "out of stock" in done.messages[-2].content
    assert done.messages[-2].status != "completed"


async def test_a_servers_word_that_a_tool_is_safe_counts_only_with_trust(tmp_path: Path) -> None:
    graph = await shop(tmp_path)
    for options, safe in (
        ({}, {"charge": False, "price": False}),
        ({"safe_to_retry": ["price"]}, {"charge": False, "price": True}),
        ({"trust_hints": True}, {"charge": True, "price": False}),
    ):
        tools = as_agent(graph, **options).tools
        assert {tool.name: tool.safe_to_retry for tool in tools if tool.name in safe} == safe
