"""A session keeps its context however much of its transcript is pruned or shortened; the same with both drivers."""

from typing import Any

from pydantic import BaseModel
from support.drivers import Driver, OnTemporal
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, tool_results

from integration.local.test_tool_states import Basket, add, adds, kept
from standfast import Agent, Approval, ContextCompression, Loop, Message, ToolContext, tool
from standfast.testing import ScriptedModel


class Shop(BaseModel):
    shop: str = "anybody's"


@tool(safe_to_retry=True)
def look(ctx: ToolContext[Shop]) -> str:
    """Say whose shop it is."""
    return ctx.deps.shop


LOOKS = asks_for(call("look", "c1"))
MILL = {"shop": "Mill"}


async def shop_seen(driver: Driver, agent: Agent[Any]) -> str:
    """Return the shop that a later run of the session sees, which is given none."""
    ended = await driver.run(agent, ScriptedModel([LOOKS, "5"]))
    assert ended.status == "complete"
    return tool_results(ended.messages)[-1].content


async def test_the_context_outlives_the_pruned_message_if_the_model_was_corrected(driver: Driver) -> None:
    agent = Agent("clerk", context=Shop, tools=[look], output=int)
    await driver.run(agent, ScriptedModel(["five", "5"]), context=MILL, max_stored_messages=2)
    assert len(await driver.temporal.store.load_messages(driver.temporal.session())) == 2
    assert await shop_seen(driver, agent) == "Mill"


async def test_the_context_outlives_the_pruned_message_if_a_person_has_answered_the_loop(driver: Driver) -> None:
    @tool
    def fail() -> None:
        raise ValueError("no")

    agent = Agent("clerk", context=Shop, tools=[look, fail], loop=Loop(on_stuck="escalate", stuck_threshold=1))
    await driver.run(agent, ScriptedModel(["hello"]), context=MILL)
    model = ScriptedModel([asks_for(call("fail", "f1")), "done"])
    await driver.run(agent, model, answers=["Go on"], max_stored_messages=2)
    assert len(await driver.temporal.store.load_messages(driver.temporal.session())) == 2
    assert await shop_seen(driver, agent) == "Mill"


async def test_the_context_outlives_the_pruned_message_if_a_run_was_told_more(temporal: Temporal) -> None:
    @tool(approval=Approval())
    def post() -> str:
        return "posted"

    agent = Agent("clerk", context=Shop, tools=[look, post])
    script = ScriptedModel([asks_for(call("post", "p1")), "done"])
    async with temporal.worker(agent, llm=script, max_stored_messages=2):
        handle = await temporal.start(agent, context=MILL)
        (gate,) = await pending(handle)
        await handle.execute_update("message", {"text": "and then?"})
        await temporal.people.decide(handle.id, gate["name"], "approve")
        assert (await result(handle))["status"] == "complete"
    assert len(await temporal.messages()) == 2
    assert await shop_seen(OnTemporal(temporal), agent) == "Mill"


async def test_context_and_state_outlive_what_is_compressed_and_pruned(driver: Driver) -> None:
    def shorter(messages: list[Message]) -> list[Message]:
        return messages[-1:]

    loop = Loop(context_compression=ContextCompression(shorter, max_messages=3))
    agent = Agent("shop", state=Basket, tools=[add, look], context=Shop, loop=loop)
    turns = [adds("a"), LOOKS, adds("b"), asks_for(call("look", "c2")), adds("c"), "done"]
    ended = await driver.run(agent, ScriptedModel(turns), context=MILL, max_stored_messages=3)
    said = [one.content for one in tool_results(ended.messages)]
    assert said == ['["a"]', "Mill", '["a","b"]', "Mill", '["a","b","c"]']
    assert await kept(driver.temporal) == {"items": ["a", "b", "c"]}
    assert await shop_seen(driver, agent) == "Mill"
