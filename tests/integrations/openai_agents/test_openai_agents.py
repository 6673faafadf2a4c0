"""An OpenAI Agents SDK tool with effects runs at most once, even if its process dies after it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import Agent, RunConfig, Runner, ToolOutputImage, ToolOutputText, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from support.mortal_programs import Completed, bare_and_guarded, run_until_complete

from standfast import DefinitionError, InputError, MemoryStoreNotDurableError, memory_store, run
from standfast.effects import effect
from standfast.integrations.openai_agents import as_agent, guarded, guarded_activity
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.openai_agents.shop"


async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == "{'charged': 5}"
    read = json.loads(told)
    assert (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_1")


async def test_on_temporal_a_tool_whose_worker_dies_charges_each_time_and_with_the_guard_once(
    temporal_server: DevServer, tmp_path: Path
) -> None:
    async def run(folder: Path, kind: str) -> Completed:
        return await run_until_complete(SHOP, folder, kind, "2", temporal_server.address, uuid4().hex)

    bare, told = await bare_and_guarded(tmp_path, run)
    assert bare == "{'charged': 5}"
    read = json.loads(told)
    assert (read["kind"], read["toolName"]) == ("tool-durability-error", "charge")


# --- in one process ---


class Shop:
    """An agent whose model calls one tool."""

    def __init__(self, store: SQLiteStore, function: Any, *, arguments: Any = None, **options: Any) -> None:
        self.count = 0

        async def charge(cents: int = 5) -> Any:
            self.count += 1
            return function()

        self.arguments = {"cents": 5} if arguments is None else arguments
        self.tool = function_tool(name_override="charge", **options)(charge)
        self.agent = guarded(
            Agent[Any]("shop", tools=[self.tool]), store=store, key=lambda call: f"order-7/{call.tool_call_id}"
        )

    async def read(self, agent: Any = None) -> Any:
        """Return what the model reads of a call."""
        model = ScriptedModel([[function_call("charge", self.arguments, call_id="call_1")], [assistant_message("ok")]])
        config = RunConfig(model=model, tracing_disabled=True)
        result = await Runner.run(agent or self.agent, "Sell it.", run_config=config)
        return next(item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output")


async def test_a_call_runs_once_and_is_read_as_it_was_without_a_guard(store: SQLiteStore) -> None:
    parts = [ToolOutputText(text="receipt"), ToolOutputImage(image_url="data:image/png;base64,AA==")]
    for number, result in enumerate(("charged", {"cents": 5}, 5, None, [1, 2], (1, 2), True, parts[0], parts)):
        bare = Shop(store, lambda result=result: result)
        bare.agent.tools = [function_tool(name_override="charge")(lambda cents, result=result: result)]
        shop = Shop(store, lambda result=result: result)
        shop.tool.on_invoke_tool._key = lambda call, number=number: f"order-{number}"
        read = [await shop.read(), await shop.read()]
        if not isinstance(result, tuple):  # JSON has lists alone
            assert read[0] == await bare.read()
        assert read[0] == read[1]
        assert shop.count == 1


async def test_a_tool_that_failed_is_read_again_and_not_run(store: SQLiteStore) -> None:
    def failing() -> None:
        raise ValueError("no such card")

    shop = Shop(store, failing, failure_error_function=lambda context, error: f"failed: {error}")
    assert [await shop.read(), await shop.read()] == ["failed: no such card"] * 2
    assert shop.count == 1


@pytest.mark.parametrize("copied", [False, True])
async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore, copied: bool) -> None:
    def resetting() -> None:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, resetting)
    agent = shop.agent.clone(tools=[replace(shop.agent.tools[0])]) if copied else shop.agent
    for _ in range(2):
        read = json.loads(await shop.read(agent))
        assert (read["kind"], "the connection broke" in read["error"]) == ("tool-durability-error", True)
    assert shop.count == 1


async def test_what_a_tool_raises_ends_the_run_and_is_read_by_the_model_after_that(store: SQLiteStore) -> None:
    def failing() -> None:
        raise ValueError("no such card")

    shop = Shop(store, failing, failure_error_function=None)
    with pytest.raises(Exception, match="no such card"):
        await shop.read()
    assert json.loads(await shop.read())["error"].endswith("no such card")
    assert shop.count == 1


async def test_a_copy_of_a_tool_is_guarded_too(store: SQLiteStore) -> None:
    import copy
    import dataclasses

    shop = Shop(store, lambda: "charged")
    for tool in (shop.tool, copy.copy(shop.tool), dataclasses.replace(shop.tool)):
        assert await shop.read(Agent[Any]("shop", tools=[tool])) == "charged"
    assert shop.count == 1


async def test_a_tool_that_timed_out_is_unknown_after_that(store: SQLiteStore) -> None:
    import asyncio

    shop = Shop(store, lambda: "charged", timeout=0.05)

    async def slow(context: Any, arguments: str) -> str:
        shop.count += 1
        await asyncio.sleep(60)
        return "charged"

    shop.tool.on_invoke_tool._invoke = slow
    while not shop.count:  # the SDK may cut the call off before it is claimed, and it may be made again then
        told = await shop.read()
        assert "timed out" in told
        assert json.loads(told)["kind"] == "tool-durability-error"
    assert json.loads(await shop.read())["kind"] == "tool-durability-error"
    assert shop.count == 1


async def test_other_arguments_under_the_same_key_are_refused(store: SQLiteStore) -> None:
    shop = Shop(store, lambda: "charged")
    assert await shop.read() == "charged"
    shop.arguments = {"cents": 7}
    with pytest.raises(Exception, match="other arguments"):
        await shop.read()
    assert shop.count == 1


async def test_a_key_that_is_not_a_text_is_refused_with_the_tool_before_anything_runs(store: SQLiteStore) -> None:
    for given in (7, None, ""):
        shop = Shop(store, lambda: "charged")
        shop.tool.on_invoke_tool._key = lambda call, given=given: given
        with pytest.raises(Exception, match=f"Tool 'charge': key= must return a different text .* got {given!r}"):
            await shop.read()
        assert shop.count == 0


async def test_what_cannot_be_guarded_is_refused(store: SQLiteStore) -> None:
    key = str
    shop = Shop(store, lambda: "charged")
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded(shop.agent, store=store, key=key)
    with pytest.raises(DefinitionError, match="an agent or a function tool"):
        guarded(lambda: None, store=store, key=key)
    with pytest.raises(DefinitionError, match="key must be a function"):
        guarded(shop.agent, store=store, key="order-7")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="agent 'idle' has no function tool to guard"):
        guarded(Agent[Any]("idle"), store=store, key=key)
    with pytest.raises(DefinitionError, match="safe_to_retry names price"):
        guarded(shop.agent, store=store, key=key, safe_to_retry=["price"])
    with pytest.raises(DefinitionError, match="safe_to_retry lists names, got the text 'charge'"):
        guarded(shop.agent, store=store, key=key, safe_to_retry="charge")
    with pytest.raises(MemoryStoreNotDurableError):
        guarded(shop.agent, store=memory_store(), key=key)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="guarded_activity: '<lambda>' must be an async function"):
        guarded_activity(store)(lambda: None)
    with pytest.raises(DefinitionError, match="guarded_activity needs an async function, got the tool 'charge'"):
        guarded_activity(store)(shop.tool)

    async def charge() -> None:
        pass

    guarded_once = guarded_activity(store)(charge)
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded_activity(store)(guarded_once)
    with pytest.raises(InputError, match="outside an activity"):
        await guarded_once()
    effected = effect(store, "charge", key=lambda: "order-7")(charge)
    with pytest.raises(DefinitionError, match="already guarded"):
        guarded_activity(store)(effected)
    with pytest.raises(DefinitionError, match="already guarded"):
        effect(store)(guarded_once)
    twice = function_tool(effected)
    with pytest.raises(DefinitionError, match="tool 'charge' is already guarded"):
        guarded(twice, store=store, key=key)
    for tool in (twice, shop.tool):
        with pytest.raises(DefinitionError, match="tool 'charge' has a guard, by guarded"):
            await run(Agent[Any]("shop", tools=[tool]), message="Sell it.")
        assert as_agent(Agent[Any]("shop", tools=[tool]), safe_to_retry=["charge"])
    unkeyed = guarded(Agent[Any]("shop", tools=[function_tool(lambda: "x", name_override="charge")]), store=store,
                      key=lambda call: "")  # fmt: skip
    shop.arguments = {}
    with pytest.raises(Exception, match="key= must return a different text for each call"):
        await shop.read(unkeyed)


async def test_safe_tools_and_agents_that_are_tools_are_not_guarded(store: SQLiteStore) -> None:
    price = function_tool(lambda: 5, name_override="price")
    other = Agent[Any]("other").as_tool("other", "Ask the other.")
    before = price.on_invoke_tool, other.on_invoke_tool
    guarded(Agent[Any]("shop", tools=[price, other]), store=store, key=str, safe_to_retry=["price"])
    assert (price.on_invoke_tool, other.on_invoke_tool) == before
