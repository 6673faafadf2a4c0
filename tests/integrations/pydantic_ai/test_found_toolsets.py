"""Tools of pydantic-ai toolsets, such as MCP servers, are found when a run begins, and dispatched by us."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from fastmcp.client.transports import StdioTransport
from integrations.pydantic_ai.test_conversations import Script, calls, reads, says
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    ExternalToolset,
    FunctionToolset,
    RunContext,
    Tool,
    ToolDefinition,
    UsageLimits,
)
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import PreparedToolset, WrapperToolset
from pydantic_ai.toolsets._dynamic import DynamicToolset
from support import foreign_mcp_server
from support.foreign_shops import noted
from support.mortal_programs import run_until_complete
from support.temporal_runs import Temporal, events, pending, result, scheduled

from standfast import Approval, DefinitionError, StandfastError, is_interrupted, resume, run
from standfast.integrations.pydantic_ai import as_agent
from standfast.stores import SQLiteStore
from standfast.temporal import connect
from standfast.testing import DevServer

CHARGE, PRICE = calls(("charge", {"cents": 5})), calls(("price", {}))


@pytest_asyncio.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    shop = Temporal(await connect(temporal_server.address), store, uuid4().hex[:12])
    yield shop
    await shop.end_all()


def till(folder: Path, *modes: str, **options: Any) -> MCPToolset[Any]:
    command = [str(Path(foreign_mcp_server.__file__)), str(folder), *modes]
    return MCPToolset(StdioTransport(sys.executable, command), **options)


def shop_of(script: Script, *toolsets: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(FunctionModel(script), name="shop", toolsets=toolsets, **options)


def shown(info: Any) -> list[str]:
    return [tool.name for tool in info.function_tools]


def watched(script: Script, seen: list[list[str]]) -> FunctionModel:
    """Return a model that notes which tools each request shows."""

    def model(messages: Any, info: Any) -> Any:
        seen.append(shown(info))
        return script(messages, info)

    return FunctionModel(model)


async def test_a_servers_tools_are_found_when_a_run_begins_and_each_call_is_ours(
    store: SQLiteStore, tmp_path: Path
) -> None:
    agent = shop_of(Script(CHARGE, reads), till(tmp_path, include_instructions=True))
    done = await run(agent, message="Sell it.", session_id="s", store=store)
    assert (done.response, noted(tmp_path, "charges"), done.tool_call_summary) == (
        '["charged 5"]', ["5"], {"charge": 1},
    )  # fmt: skip
    assert len(noted(tmp_path, "starts")) == 1  # one connection for the run


@pytest.mark.parametrize("where", ["here", "on temporal"])
async def test_a_process_that_is_killed_in_a_servers_tool_charges_once_and_the_model_is_told(
    temporal_server: DevServer, tmp_path: Path, where: str
) -> None:
    words = [temporal_server.address, uuid4().hex] if where == "on temporal" else []
    done = await run_until_complete("integrations.pydantic_ai.server_desk", tmp_path, *words)
    assert (done.said["status"], done.deaths, noted(tmp_path, "charges")) == ("complete", 1, ["5"])
    [told] = json.loads(done.said["response"])
    assert told["kind"] == "tool-durability-error"


async def test_on_temporal_a_servers_call_is_an_activity_and_its_approval_a_gate(
    temporal: Temporal, tmp_path: Path
) -> None:
    agent = shop_of(Script(calls(("till_price", {})), calls(("till_charge", {"cents": 5})), reads), (
        till(tmp_path).prefixed("till").approval_required(lambda ctx, tool, given: tool.name == "till_charge")
    ))  # fmt: skip
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        assert (waits["message"], noted(tmp_path, "charges")) == ("Run till_charge?", [])
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada", edit={"cents": 4})
        told = {"note": "ada changed the arguments before it ran", "arguments": {"cents": 4}, "result": "charged 4"}
        assert json.loads((await result(handle))["response"]) == [told]
        names = [name for name in scheduled(await events(handle)) if "." not in name]
    assert names == ["call_model", "till_price", "call_model", "till_charge", "call_model"]
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == (["4"], 1)


async def test_a_connection_that_was_lost_between_calls_is_made_again(tmp_path: Path) -> None:
    def killing(messages: Any, info: Any) -> Any:
        if len(script.asked) == 1:
            os.kill(int(noted(tmp_path, "starts")[0]), signal.SIGKILL)
        return script(messages, info)

    script = Script(PRICE, CHARGE, reads)
    agent = Agent(FunctionModel(killing), name="shop", toolsets=[till(tmp_path)])
    assert (await run(agent, message="Sell it.")).response == '["charged 5"]'
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == (["5"], 2)


async def test_a_call_that_the_server_did_not_answer_is_not_made_again_and_the_model_is_told(tmp_path: Path) -> None:
    done = await run(shop_of(Script(CHARGE, reads), till(tmp_path, "gone")), message="Sell it.")
    [told] = json.loads(done.response)
    assert (told["kind"], noted(tmp_path, "charges")) == ("tool-durability-error", ["5"])
    assert "gave no answer" in told["error"]


async def test_a_tool_that_is_described_otherwise_on_a_new_connection_is_not_called(tmp_path: Path) -> None:
    done = await run(shop_of(Script(CHARGE, CHARGE, reads), till(tmp_path, "gone", "changed")), message="Sell it.")
    assert noted(tmp_path, "charges") == ["5"]
    assert "since it was read" in done.response


@pytest.mark.parametrize("change", ["changed", "removed"])
async def test_a_tool_that_its_server_changes_while_a_call_waits_at_a_gate_is_not_called(
    temporal: Temporal, tmp_path: Path, change: str
) -> None:
    seen: list[list[str]] = []
    asks = till(tmp_path).approval_required(lambda ctx, tool, given: tool.name == "charge")
    agent = Agent(watched(Script(CHARGE, PRICE, reads), seen), name="shop", toolsets=[asks])
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        (tmp_path / change).touch()
        (tmp_path / "added").touch()
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada")
        await result(handle)
    told = [message.content for message in await temporal.messages() if message.role == "tool"]
    assert ("since it was read" in told[0], told[1]) == (True, "500")
    assert (noted(tmp_path, "charges"), len(noted(tmp_path, "starts"))) == ([], 1)
    assert seen == [["charge", "price", "fail"]] * 3


async def test_a_tool_is_safe_if_its_user_says_so_and_by_its_servers_word_only_with_trust(tmp_path: Path) -> None:
    metadata = till(tmp_path).with_metadata(safe_to_retry=True)
    for toolset, options, safe in (
        (till(tmp_path), {}, {"charge": False, "price": False}),
        (till(tmp_path), {"safe_to_retry": ["price"]}, {"charge": False, "price": True}),
        (till(tmp_path), {"trust_hints": True}, {"charge": True, "price": False}),
        (metadata, {}, {"charge": True, "price": True}),
    ):
        [ours] = as_agent(shop_of(Script(), toolset), **options).toolsets
        async with ours.opened(None) as tools:
            assert {tool.name: tool.safe_to_retry for tool in tools if tool.name in safe} == safe


async def test_what_a_server_says_of_a_failure_is_what_the_model_reads(tmp_path: Path) -> None:
    done = await run(shop_of(Script(calls(("fail", {})), reads), till(tmp_path)), message="Sell it.")
    assert json.loads(done.response) == [{"error": "out of stock"}]


async def test_filters_and_preparations_are_asked_in_each_request_for_whom_it_is(tmp_path: Path) -> None:
    async def prepared(ctx: RunContext[str], tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return [tool for tool in tools if tool.name != "fail"]

    seen: list[list[str]] = []
    filtered = till(tmp_path).filtered(lambda ctx, tool: tool.name != "charge" or ctx.deps == "ada")
    model = watched(Script(CHARGE, reads, CHARGE, reads), seen)
    agent = Agent(model, name="shop", deps_type=str, toolsets=[PreparedToolset(filtered, prepared)])
    ours = as_agent(agent, deps=lambda ctx: ctx.user_id)
    assert (await run(ours, message="Sell it.", user_id="ada")).response == '["charged 5"]'
    refused = await run(ours, message="Sell it.", user_id="eve")
    assert "Unknown tool name" in refused.response
    assert (seen, noted(tmp_path, "charges")) == ([["charge", "price"]] * 2 + [["price"]] * 2, ["5"])


async def test_a_toolset_that_a_function_makes_is_made_for_whom_it_is(tmp_path: Path) -> None:
    made: list[Any] = []
    agent = Agent(FunctionModel(Script(calls(("greet", {})), CHARGE, reads)), name="shop", deps_type=str)

    @agent.toolset
    def personal(ctx: RunContext[str]) -> Any:
        made.append(ctx.deps)

        def greet() -> str:
            return f"Hello, {ctx.deps}!"

        return FunctionToolset([greet])

    @agent.toolset(per_run_step=False)
    async def server(ctx: RunContext[str]) -> Any:
        return till(tmp_path)

    done = await run(as_agent(agent, deps=lambda ctx: ctx.user_id), message="Sell it.", user_id="ada")
    assert (done.response, done.messages[2].content) == ('["charged 5"]', "Hello, ada!")
    assert (made[0], set(made[1:])) == (None, {"ada"})


async def test_a_call_that_a_made_toolsets_server_did_not_answer_is_unknown_too(tmp_path: Path) -> None:
    agent = Agent(FunctionModel(Script(CHARGE, reads)), name="shop")

    @agent.toolset
    async def server(ctx: RunContext[Any]) -> Any:
        return till(tmp_path, "gone")

    [told] = json.loads((await run(agent, message="Sell it.")).response)
    assert (told["kind"], noted(tmp_path, "charges")) == ("tool-durability-error", ["5"])


async def test_people_are_asked_if_it_depends_on_the_user_whether_a_call_has_to_be_approved() -> None:
    def small(ctx: RunContext[Any], tool: ToolDefinition, given: dict[str, Any]) -> bool:
        return bool(given["cents"] > 10)

    def pay(cents: int) -> str:
        return f"paid {cents}"

    for deps, cents, waits in ((None, 5, False), (None, 50, True), (lambda ctx: ctx.user_id, 5, True)):
        toolset = FunctionToolset([pay]).approval_required(small).renamed({"buy": "pay"})
        agent = shop_of(Script(calls(("buy", {"cents": cents})), reads), toolset)
        assert is_interrupted(await run(as_agent(agent, deps=deps), message="Buy it.")) is waits
    toolset = FunctionToolset([pay]).approval_required()
    done = await run(
        as_agent(shop_of(Script(calls(("pay", {"cents": 5})), reads), toolset), approval={"pay": None}), message="?"
    )
    assert done.response == '["paid 5"]'


PAY = calls(("pay", {"cents": 50}))


async def test_what_needs_approval_only_since_the_tools_were_found_does_not_run_unasked() -> None:
    paid: list[int] = []
    has_begun = False

    def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    def raising(ctx: RunContext[Any], cents: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return pay(cents)

    async def stricter(ctx: RunContext[Any], tool: ToolDefinition) -> ToolDefinition:
        return replace(tool, kind="unapproved") if has_begun else tool

    async def strict(ctx: RunContext[Any], tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return [await stricter(ctx, tool) for tool in tools]

    def wrapped(ctx: RunContext[Any]) -> Any:
        toolset = FunctionToolset[Any]([pay])
        return toolset.approval_required() if has_begun else toolset

    def begins(messages: Any, info: Any) -> Any:
        nonlocal has_begun
        has_begun = True
        return script(messages, info)

    own = FunctionToolset[Any]([Tool(raising, name="pay")])
    prepared = FunctionToolset[Any]([Tool(pay, prepare=stricter)])
    for toolset in (own, prepared, FunctionToolset([pay]).prepared(strict), DynamicToolset(wrapped)):
        script, has_begun = Script(PAY, reads, PAY, reads), False
        agent = Agent(FunctionModel(begins), name="shop", toolsets=[toolset])
        [told] = json.loads((await run(agent, message="Pay.")).response)
        assert ("as_agent(…, approval={'pay'" in told["error"], paid) == (True, [])
        asked = await run(as_agent(agent, approval={"pay": Approval()}), message="Pay.")
        assert is_interrupted(asked)
        [gate] = asked.approvals
        yes = {"gate": gate.gate, "decision": "approve", "by": "ada", "digest": gate.digest}
        await resume(as_agent(agent, approval={"pay": Approval()}), asked.checkpoint, decisions=[yes])
        assert paid.pop() == 50


async def test_a_toolset_may_differ_from_step_to_step(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[list[str]] = []

    class Steps(WrapperToolset[Any]):
        async def get_tools(self, ctx: RunContext[Any]) -> Any:
            tools = await super().get_tools(ctx)
            steps = [["look", "pay"], ["look"], ["look", "refund"]]  # as read at first; for the request; for its call
            asked.append("")
            return {name: tools[name] for name in steps[min(len(asked), 3) - 1]}

    def look() -> str:
        return "seen"

    asked: list[str] = []
    toolset = Steps(FunctionToolset([look, Tool(look, name="pay"), Tool(look, name="refund")]))
    both = calls(("look", {}), ("pay", {}))
    agent = Agent(watched(Script(both, reads), seen), name="shop", toolsets=[toolset])
    done = await run(agent, message="Look.")
    assert seen == [["look"], ["look"]]
    assert "'refund' did not exist when this run or worker began" in caplog.text
    assert "Unknown tool name" in done.response or "not there for this call" in done.response


async def test_limits_of_usage_are_those_of_a_turn(store: SQLiteStore) -> None:
    def look() -> str:
        return "seen"

    look_ = calls(("look", {}))
    for limits, said in (
        (UsageLimits(request_limit=2), "request_limit of 2"),
        (UsageLimits(tool_calls_limit=1), "tool_calls_limit of 1"),
    ):
        script = Script(look_, says("first"), look_, look_, says("never"))
        agent = Agent(FunctionModel(script), name="shop", tools=[look])
        ours, session = as_agent(agent, usage_limits=limits), uuid4().hex
        assert (await run(ours, message="1", session_id=session, store=store)).response == "first"
        done = await run(ours, message="2", session_id=session, store=store)
        assert (done.status, said in str(done.error)) == ("error", True)
    script = Script(look_, look_, says("done"))
    done = await run(
        as_agent(Agent(FunctionModel(script), name="shop", tools=[look]), usage_limits=UsageLimits()), message="?"
    )
    alone = await run(Agent(FunctionModel(Script(look_, look_, says("done"))), name="shop", tools=[look]), message="?")
    assert done.usage == alone.usage  # no request is counted twice


async def test_what_cannot_be_guarded_is_refused_and_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="run elsewhere"):
        as_agent(shop_of(Script(), ExternalToolset([ToolDefinition(name="pay")])))
    with pytest.raises(DefinitionError, match="name 'pay', which it does not have; its tools are charge, price, fail"):
        await run(as_agent(shop_of(Script(), till(tmp_path)), safe_to_retry=["pay"]), message="?")
    away = MCPToolset(StdioTransport(str(tmp_path / "nothing"), []), id="away")
    with pytest.raises(StandfastError, match="MCPToolset 'away' cannot be reached"):
        await run(shop_of(Script(), away), message="?")
