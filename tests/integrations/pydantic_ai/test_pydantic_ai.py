"""A pydantic-ai tool with effects runs at most once, even if its process dies after it, and the model is told."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelRetry,
    RunContext,
    Tool,
    ToolApproved,
    ToolReturn,
)
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.mortal_programs import Completed, bare_and_guarded, run_until_complete

from standfast import DefinitionError, InputError, MemoryStoreNotDurableError, memory_store, run
from standfast.effects import effect
from standfast.integrations.pydantic_ai import StandfastDurability, as_agent, guarded
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.pydantic_ai.shop"


def is_told(read: Any) -> bool:
    return (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_1")


async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == {"charged": 5}
    assert is_told(told)


@pytest.mark.parametrize("age", ["new", "old"])
async def test_on_temporal_a_tool_whose_worker_dies_charges_each_time_and_with_the_guard_once(
    temporal_server: DevServer, tmp_path: Path, age: str
) -> None:
    async def run(folder: Path, kind: str) -> Completed:
        return await run_until_complete(SHOP, folder, kind, "2", temporal_server.address, uuid4().hex, age)

    bare, told = await bare_and_guarded(tmp_path, run)
    assert bare == {"charged": 5}
    assert is_told(told)


# --- in one process ---


class Shop:
    """An agent whose model calls one tool, and says what it read of it."""

    def __init__(self, store: SQLiteStore, function: Any, *, trust_hints: bool = False, **options: Any) -> None:
        self.count = 0
        self.agent: Any = Agent(FunctionModel(self.model), output_type=[str, DeferredToolRequests], name="shop")

        async def charge(context: RunContext[None]) -> Any:
            self.count += 1
            found = function(context)
            return await found if asyncio.iscoroutine(found) else found

        self.agent.tool(name="charge", **options)(charge)
        guarded(self.agent, store=store, trust_hints=trust_hints)

    def model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        read = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
        if read:
            return ModelResponse([TextPart(json.dumps(read[0].content))])
        return ModelResponse([ToolCallPart("charge", {}, tool_call_id="call_1")])

    async def sell(self, **options: Any) -> Any:
        return (await self.agent.run("Sell it.", conversation_id="order-7", **options)).output


def failing(error: BaseException) -> Any:
    def function(context: Any) -> Any:
        raise error

    return function


async def test_an_approval_is_asked_for_and_what_is_approved_runs_once(store: SQLiteStore) -> None:
    def function(context: RunContext[None]) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired
        return "charged"

    shop = Shop(store, function)
    asked = await shop.agent.run("Sell it.", conversation_id="order-7")
    assert [call.tool_call_id for call in asked.output.approvals] == ["call_1"]
    approved = DeferredToolResults(approvals={"call_1": ToolApproved()})
    for _ in range(2):  # the second is one that repeats the first, as after a crash
        result = await shop.agent.run(message_history=asked.all_messages(), deferred_tool_results=approved)
        assert result.output == '"charged"'
    assert shop.count == 2  # it asked, and charged


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    shop = Shop(store, failing(ConnectionResetError("the connection broke behind the request")))
    told = json.loads(await shop.sell())
    assert (told["kind"], "the connection broke" in told["error"]) == ("tool-durability-error", True)
    assert shop.count == 1


async def test_calls_that_look_alike_are_asked_about_and_run_one_after_the_other(store: SQLiteStore) -> None:
    charged = list[str]()

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(charged) == 3:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("charge", {}, tool_call_id="call_1")])

    agent: Any = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests], name="shop")

    @agent.tool_plain(requires_approval=True)
    def charge() -> str:
        charged.append("5")
        return "charged"

    guarded(agent, store=store)
    result = await agent.run("Sell it.", conversation_id="order-7")
    yes = DeferredToolResults(approvals={"call_1": True})
    for times in range(3):
        assert (isinstance(result.output, DeferredToolRequests), len(charged)) == (True, times)
        said = {"message_history": result.all_messages(), "deferred_tool_results": yes}
        result = await agent.run(conversation_id="order-7", **said)
    assert (result.output, len(charged)) == ("done", 3)


async def test_a_tool_that_requires_approval_is_not_called_before(store: SQLiteStore) -> None:
    shop = Shop(store, lambda context: "charged", requires_approval=True)
    asked = await shop.agent.run("Sell it.", conversation_id="order-7")
    assert shop.count == 0
    approved = DeferredToolResults(approvals={"call_1": True})
    result = await shop.agent.run(message_history=asked.all_messages(), deferred_tool_results=approved)
    assert (result.output, shop.count) == ('"charged"', 1)


async def test_a_deferred_call_passes(store: SQLiteStore) -> None:
    shop = Shop(store, failing(CallDeferred()))
    assert [call.tool_call_id for call in (await shop.sell()).calls] == ["call_1"]
    assert [call.tool_call_id for call in (await shop.sell()).calls] == ["call_1"]
    assert shop.count == 2


async def test_a_retry_that_a_tool_asks_for_is_read_by_the_model_again_and_the_call_is_not_made_again(
    store: SQLiteStore,
) -> None:
    shop = Shop(store, failing(ModelRetry("another card, please")))
    assert [await shop.sell(), await shop.sell()] == ['"another card, please"'] * 2
    assert shop.count == 1


async def test_a_tool_that_timed_out_is_not_one_to_try_again(store: SQLiteStore) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    shop = Shop(store, lambda context: slow(), timeout=0.05)
    assert "Timed out" in json.loads(await shop.sell())["error"]
    assert is_told(json.loads(await shop.sell()))
    assert shop.count == 1


async def test_what_a_tool_raises_ends_the_run_and_is_read_by_the_model_after_that(store: SQLiteStore) -> None:
    shop = Shop(store, failing(ValueError("no such card")))
    with pytest.raises(ValueError, match="no such card"):
        await shop.sell()
    assert json.loads(await shop.sell()) == {"error": "ValueError: no such card"}
    assert shop.count == 1


async def test_what_is_cancelled_is_unknown(store: SQLiteStore) -> None:
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(60)

    shop = Shop(store, lambda context: slow())
    sale = asyncio.ensure_future(shop.sell())
    await started.wait()
    sale.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sale
    assert is_told(json.loads(await shop.sell()))
    assert shop.count == 1


async def test_a_safe_tool_is_not_guarded(store: SQLiteStore) -> None:
    shop = Shop(store, lambda context: "looked", metadata={"safe_to_retry": True})
    assert [await shop.sell(), await shop.sell()] == ['"looked"'] * 2
    assert shop.count == 2


async def test_an_mcp_servers_hints_say_what_is_safe_only_where_it_is_trusted(store: SQLiteStore) -> None:
    for hints, count in (
        ({"readOnlyHint": True}, 2), ({"idempotentHint": True}, 2), ({"readOnlyHint": False}, 1),
        ({"safe_to_retry": True}, 1),
    ):  # fmt: skip
        for trusts in (True, False):
            shop = Shop(store, lambda context: "found", trust_hints=trusts, metadata={"annotations": hints})
            for _ in range(2):
                await shop.agent.run("Sell it.", conversation_id=f"{hints} {trusts}")
            assert shop.count == (count if trusts else 1)


async def test_an_id_that_a_model_uses_again_is_another_call(store: SQLiteStore) -> None:
    shop = Shop(store, lambda context: "charged")
    first = await shop.agent.run("Sell it.", conversation_id="order-7")
    await shop.agent.run("Again.", message_history=first.all_messages())
    assert shop.count == 2


async def test_other_conversations_are_other_calls(store: SQLiteStore) -> None:
    shop = Shop(store, lambda context: "charged")
    await shop.agent.run("Sell it.")
    await shop.agent.run("Sell it.")
    assert shop.count == 2


async def test_pictures_and_structured_results_are_there_again(store: SQLiteStore) -> None:
    picture = BinaryContent(b"\x00\xff", media_type="image/png")
    seen = BinaryContent.narrow_type(picture)
    shop = Shop(store, lambda context: ToolReturn("receipt", content=["see", picture], metadata={"page": 1}))
    parts = []
    for _ in range(2):
        result = await shop.agent.run("Sell it.", conversation_id="order-7")
        request = result.all_messages()[2]
        parts.append([(part.content, getattr(part, "metadata", None)) for part in request.parts])
    assert parts[0] == parts[1] == [("receipt", {"page": 1}), (["see", seen], None)]
    assert shop.count == 1


async def test_a_result_that_is_not_json_is_lost_and_the_model_reads_that_it_ran(store: SQLiteStore) -> None:
    shop = Shop(store, lambda context: object())
    assert "its result was lost" in json.loads(await shop.sell())["error"]
    assert "its result was lost" in json.loads(await shop.sell())["error"]
    assert shop.count == 1


async def test_toolsets_that_wrap_others_or_are_made_for_a_run_are_guarded_once(store: SQLiteStore) -> None:
    charged = []
    tools = FunctionToolset[None]()
    tools.add_function(lambda: charged.append(1) or "charged", name="charge")
    agent: Any = Agent(FunctionModel(Shop.model.__get__(object())), toolsets=[guarded(tools, store=store)])
    for _ in range(2):
        await agent.run("Sell it.", conversation_id="order-7")
    assert charged == [1]
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded(agent, store=store)

    made: Any = Agent(FunctionModel(Shop.model.__get__(object())))
    made.toolset(lambda context: FunctionToolset[None]([*tools.tools.values()]))
    guarded(made, store=store)
    for _ in range(2):
        await made.run("Sell it.", conversation_id="order-8")
    assert charged == [1, 1]


async def test_two_guards_that_meet_at_run_time_are_one(store: SQLiteStore) -> None:
    charged = []
    inner = FunctionToolset[None]()
    inner.add_function(lambda: charged.append(1) or "charged", name="charge")
    guarded(inner, store=store)
    agent: Any = Agent(FunctionModel(Shop.model.__get__(object())))
    agent.toolset(lambda context: inner)
    guarded(agent, store=store)
    assert (await agent.run("Sell it.", conversation_id="order-7")).output == '"charged"'
    assert charged == [1]


async def test_what_cannot_be_guarded_is_refused(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match="an agent or a toolset"):
        guarded(lambda: None, store=store)
    with pytest.raises(MemoryStoreNotDurableError):
        guarded(FunctionToolset[None](), store=memory_store())  # type: ignore[arg-type]
    tools = guarded(FunctionToolset[None](), store=store)
    tools.add_function(lambda: "charged", name="charge")
    context: Any = RunContext(deps=None, model=None, usage=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it has no id"):
        await tools.call_tool("charge", {}, context, (await tools.get_tools(context))["charge"])


async def test_two_guards_around_one_function_are_refused_before_anything_runs(store: SQLiteStore) -> None:
    charged: list[int] = []

    def charge(cents: int) -> None:
        charged.append(cents)

    effected = effect(store, "charge", key=lambda cents: "order-7")(charge)
    model = FunctionModel(Shop.model.__get__(object()))
    with pytest.raises(DefinitionError, match="tool 'charge' is already guarded"):
        guarded(Agent(model, name="shop", tools=[effected]), store=store)
    durable = Agent(model, name="shop", tools=[effected], capabilities=[StandfastDurability(store)])
    with pytest.raises(DefinitionError, match="tool 'charge' is guarded by @effect, and StandfastDurability"):
        await durable.run("Charge it.", conversation_id="order-7")
    prefixed = FunctionToolset([effected]).prefixed("till")
    for agent in (Agent(model, name="shop", tools=[effected]), Agent(model, name="shop", toolsets=[prefixed])):
        with pytest.raises(DefinitionError, match="charge' has a guard, by guarded"):
            await run(agent, message="Charge it.")
    once = guarded(Agent(model, name="shop", tools=[charge]), store=store)
    with pytest.raises(DefinitionError, match=r"remove guarded\(…\). Nothing was run"):
        await run(once, message="Charge it.")
    safe = Tool(effected, metadata={"safe_to_retry": True})
    assert guarded(Agent(model, name="shop", tools=[safe]), store=store)
    assert as_agent(Agent(model, name="shop", tools=[safe]))
    assert charged == []


async def test_durability_and_a_guard_on_one_agent_are_refused_before_anything_runs(store: SQLiteStore) -> None:
    charged: list[int] = []
    durability = StandfastDurability(store)
    agent: Any = Agent(FunctionModel(Shop.model.__get__(object())), name="shop", capabilities=[durability])
    agent.tool_plain(lambda cents: charged.append(cents), name="charge")
    guarded(agent, store=store)
    with pytest.raises(DefinitionError, match=r"remove guarded\(…\). Nothing was run"):
        await agent.run("Charge it.", conversation_id="order-7")
    assert charged == []
