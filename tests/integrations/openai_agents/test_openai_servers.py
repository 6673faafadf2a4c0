"""MCP tools of an OpenAI agent are dispatched by us; tools that OpenAI hosts wait for people here."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from agents import Agent, HostedMCPTool, set_tracing_disabled
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel as TheirModel
from agents.testing import assistant_message
from integrations.openai_agents.test_openai_runs import scripted
from openai.types.responses.response_output_item import McpApprovalRequest
from support import foreign_mcp_server
from support.foreign_shops import noted
from support.mortal_programs import run_until_complete
from support.temporal_runs import Temporal, events, pending, result, scheduled

from standfast import DefinitionError, StandfastError, is_interrupted, resume, run
from standfast.agents import adopted
from standfast.integrations.openai_agents import as_agent
from standfast.stores import SQLiteStore
from standfast.temporal import connect
from standfast.testing import DevServer

set_tracing_disabled(True)
CHARGE, PRICE = ("charge", {"cents": 5}), ("price", {})


@pytest_asyncio.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    shop = Temporal(await connect(temporal_server.address), store, uuid4().hex[:12])
    yield shop
    await shop.end_all()


def till(folder: Path, *modes: str, **options: Any) -> MCPServerStdio:
    command = [str(Path(foreign_mcp_server.__file__)), str(folder), *modes]
    return MCPServerStdio({"command": sys.executable, "args": command}, name="till", **options)


def shop(server: Any, *turns: Any, **options: Any) -> tuple[Agent[Any], TheirModel]:
    model = scripted(*turns)
    return Agent[Any]("shop", instructions="Sell.", mcp_servers=[server], model=model, **options), model


def read(model: TheirModel) -> Any:
    """Return what the model was told last of a call."""
    return list(model.calls[-1].input)[-1]["output"]


async def test_a_servers_tools_are_found_when_a_run_begins_and_each_call_is_ours(
    store: SQLiteStore, tmp_path: Path
) -> None:
    agent, model = shop(till(tmp_path), CHARGE, "sold")
    done = await run(agent, message="Sell it.", session_id="s", store=store)
    assert (done.response, noted(tmp_path, "charges"), done.tool_call_summary) == ("sold", ["5"], {"charge": 1})
    assert [tool.name for tool in model.calls[0].tools] == ["charge", "price", "fail"]
    assert read(model) == [{"type": "input_text", "text": "charged 5"}]


@pytest.mark.parametrize("where", ["here", "on temporal"])
async def test_a_process_that_is_killed_in_a_servers_tool_charges_once_and_the_model_is_told(
    temporal_server: DevServer, tmp_path: Path, where: str
) -> None:
    words = [temporal_server.address, uuid4().hex] if where == "on temporal" else []
    done = await run_until_complete("integrations.openai_agents.server_desk", tmp_path, *words)
    assert (done.said["status"], done.deaths, noted(tmp_path, "charges")) == ("complete", 1, ["5"])
    assert json.loads(done.said["response"])["kind"] == "tool-durability-error"


async def test_on_temporal_a_servers_call_is_an_activity_and_its_approval_a_gate(
    temporal: Temporal, tmp_path: Path
) -> None:
    agent, _ = shop(till(tmp_path, require_approval={"charge": "always"}), PRICE, CHARGE, "sold")
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        assert (waits["message"], noted(tmp_path, "charges")) == ("Run charge?", [])
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada", edit={"cents": 4})
        assert (await result(handle))["response"] == "sold"
        names = [name for name in scheduled(await events(handle)) if "." not in name]
    assert names == ["call_model", "price", "call_model", "charge", "call_model"]
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == (["4"], 1)


async def test_a_connection_that_was_lost_between_calls_is_made_again(tmp_path: Path) -> None:
    def kill(context: Any, agent: Any) -> str:
        if len(model.calls) == 1:
            os.kill(int(noted(tmp_path, "starts")[0]), signal.SIGKILL)
        return "Sell."

    agent, model = shop(till(tmp_path), PRICE, CHARGE, "sold")
    agent.instructions = kill
    assert (await run(agent, message="Sell it.")).response == "sold"
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == (["5"], 2)


async def test_a_call_that_the_server_did_not_answer_is_not_made_again_and_the_model_is_told(tmp_path: Path) -> None:
    agent, model = shop(till(tmp_path, "gone", max_retry_attempts=3, retry_backoff_seconds_base=0.01), CHARGE, "lost")
    await run(agent, message="Sell it.")
    told = json.loads(read(model))
    assert (told["kind"], noted(tmp_path, "charges")) == ("tool-durability-error", ["5"])
    assert "gave no answer" in told["error"]


async def test_a_tool_that_is_described_otherwise_on_a_new_connection_is_not_called(tmp_path: Path) -> None:
    agent, model = shop(till(tmp_path, "gone", "changed"), CHARGE, CHARGE, "sold")
    await run(agent, message="Sell it.")
    assert noted(tmp_path, "charges") == ["5"]
    assert "since it was read" in str(read(model))


@pytest.mark.parametrize("change", ["changed", "removed"])
async def test_a_tool_that_its_server_changes_while_a_call_waits_at_a_gate_is_not_called(
    temporal: Temporal, tmp_path: Path, change: str
) -> None:
    agent, model = shop(till(tmp_path, require_approval={"charge": "always"}), CHARGE, PRICE, "sold")
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        (tmp_path / change).touch()
        (tmp_path / "added").touch()
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada")
        assert (await result(handle))["response"] == "sold"
    assert "since it was read" in str(list(model.calls[1].input)[-1]["output"])
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "prices")), len(noted(tmp_path, "starts"))) == ([], 1, 1)
    assert {tuple(tool.name for tool in call.tools) for call in model.calls} == {("charge", "price", "fail")}


async def test_a_tool_is_safe_if_its_user_says_so_and_by_its_servers_word_only_with_trust(tmp_path: Path) -> None:
    for options, safe in (
        ({}, {"charge": False, "price": False}),
        ({"safe_to_retry": ["price"]}, {"charge": False, "price": True}),
        ({"trust_hints": True}, {"charge": True, "price": False}),
    ):
        agent, _ = shop(till(tmp_path))
        [toolset] = as_agent(agent, **options).toolsets
        async with toolset.opened(None) as tools:
            assert {tool.name: tool.safe_to_retry for tool in tools if tool.name in safe} == safe


async def test_what_a_server_says_of_a_failure_is_what_the_model_reads(tmp_path: Path) -> None:
    agent, model = shop(till(tmp_path), ("fail", {}), ("charge", {"cents": "five"}), "not sold")
    await run(agent, message="Sell it.")
    [first, second] = [item["output"] for item in model.calls[-1].input if item.get("type") == "function_call_output"]
    assert first == [{"type": "input_text", "text": "out of stock"}]
    assert "'five' is not of type 'integer'" in second
    assert noted(tmp_path, "charges") == []


async def test_filters_prefixes_and_agents_that_share_a_server_act_as_in_the_sdk(tmp_path: Path) -> None:
    async def for_ada(context: Any, tool: Any) -> bool:
        return bool(tool.name == "price" or context.run_context.context == "ada")

    model = scripted(("transfer_to_desk", {}), ("mcp_till__charge", {"cents": 5}), "sold", "no")
    server = till(tmp_path, tool_filter=for_ada)
    desk = Agent[Any]("desk", mcp_servers=[server], mcp_config={"include_server_in_tool_names": True}, model=model)
    door = Agent[Any]("door", mcp_servers=[server], handoffs=[desk], model=model)
    agent = as_agent(door, context=lambda ctx: ctx.user_id)
    assert (await run(agent, message="Sell it.", user_id="ada")).response == "sold"
    await run(agent, message="Sell it.", user_id="eve")
    shown = [[tool.name for tool in call.tools] for call in model.calls]
    assert shown == [
        ["charge", "price", "fail", "transfer_to_desk"],
        ["mcp_till__charge", "mcp_till__price", "mcp_till__fail"],
        ["mcp_till__charge", "mcp_till__price", "mcp_till__fail"],
        ["price", "transfer_to_desk"],
    ]
    assert noted(tmp_path, "charges") == ["5"]


async def test_wrong_names_are_found_when_the_tools_are_known_and_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    agent, _ = shop(till(tmp_path), "hello")
    with pytest.raises(DefinitionError, match="name 'pay', which it does not have; its tools are charge, price, fail"):
        await run(as_agent(agent, safe_to_retry=["pay"]), message="?")
    away, _ = shop(MCPServerStdio({"command": str(tmp_path / "nothing")}, name="away"), "hello")
    with pytest.raises(StandfastError, match="MCP server away cannot be reached"):
        await run(away, message="?")


# --- servers that OpenAI calls ---


def asks(number: int) -> Any:
    return McpApprovalRequest(
        type="mcp_approval_request", id=f"mcpr_{number}", name="pay", server_label="bank", arguments='{"cents": 5}'
    )


def bank(**options: Any) -> HostedMCPTool:
    return HostedMCPTool({"type": "mcp", "server_label": "bank", "server_url": "https://bank.example"}, **options)


@pytest.mark.parametrize(("decision", "approve"), [("approve", True), ("reject", False)])
async def test_a_call_of_a_hosted_server_waits_for_people_here(decision: str, approve: bool) -> None:
    model = TheirModel([[asks(1)], [assistant_message("paid")]])
    agent = Agent[Any]("payer", tools=[bank()], model=model)
    asked = await run(agent, message="Pay.")
    assert is_interrupted(asked)
    [gate] = asked.approvals
    assert gate.message == "Run pay of bank?"
    assert gate.arguments == {"server": "bank", "name": "pay", "arguments": {"cents": 5}}
    given = {"gate": gate.gate, "decision": decision, "by": "ada", "digest": gate.digest}
    assert (await resume(adopted(agent), asked.checkpoint, decisions=[given])).response == "paid"
    *_, request, response = model.calls[-1].input
    assert (request["id"], response["approval_request_id"]) == ("mcpr_1", "mcpr_1")
    assert (response["type"], response["approve"]) == ("mcp_approval_response", approve)


async def test_a_function_may_decide_about_the_calls_of_a_hosted_server() -> None:
    seen = []

    def small(request: Any) -> Any:
        seen.append((request.ctx_wrapper.context, request.data.name, request.data.arguments))
        return {"approve": False, "reason": "too dear"}

    model = TheirModel([[asks(1)], [assistant_message("not paid")]])
    agent = as_agent(Agent[Any]("payer", tools=[bank(on_approval_request=small)], model=model), context="ada")
    assert (await run(agent, message="Pay.")).response == "not paid"
    response = list(model.calls[-1].input)[-1]
    assert (response["approve"], response["reason"]) == (False, "too dear")
    assert seen == [("ada", "pay", '{"cents": 5}')]
