"""The context of a run on Temporal survives resets, other workers and drivers, and later messages."""

from typing import Any

from support.resets import resets
from support.temporal_runs import Temporal, has_ended, pending, result, until
from support.transcripts import asks_for, call, tool_results

from integration.local.test_run_contexts import LOOKS, Shop, clerk
from standfast import Agent, Approval, ToolContext, run, tool
from standfast.testing import ScriptedModel


def looking() -> ScriptedModel:
    return ScriptedModel(lambda messages, tools: "done" if messages[-1].role == "tool" else LOOKS)


async def test_a_run_that_is_reset_to_any_point_has_its_context(temporal: Temporal) -> None:
    async with temporal.worker(clerk([]), llm=looking()):
        handle = await temporal.start(clerk([]), context={"shop": "Bakery"})
        assert (await result(handle))["status"] == "complete"
        async for again in resets(temporal, handle):
            assert (await result(again))["status"] == "complete"
            assert {said.content for said in tool_results(await temporal.messages())} == {"Bakery"}


async def test_another_worker_finds_the_context_of_a_run_that_waits(temporal: Temporal) -> None:
    @tool(approval=Approval())
    def post(ctx: ToolContext[Shop]) -> str:
        return ctx.deps.shop

    agent = Agent("clerk", context=Shop, tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1"))])):
        handle = await temporal.start(agent, context={"shop": "Bakery"})
        (gate,) = await pending(handle)
    later = Agent("clerk", context=Shop, tools=[post])
    async with temporal.worker(later, llm=ScriptedModel(["done"])):
        await temporal.people.decide(handle.id, gate["name"], "approve")
        assert (await result(handle))["status"] == "complete"
    assert [said.content for said in tool_results(await temporal.messages())] == ["Bakery"]


async def test_a_session_has_its_context_in_both_drivers(temporal: Temporal) -> None:
    here: dict[str, Any] = {"session_id": temporal.session(), "store": temporal.store, "llm": looking()}
    await run(clerk([]), message="one", context={"shop": "Bakery"}, **here)
    async with temporal.worker(clerk([]), llm=looking()):
        await temporal.run(clerk([]), "two")
        await temporal.run(clerk([]), "three", context={"shop": "Mill"})
    await run(clerk([]), message="four", **here)
    shops = [said.content for said in tool_results(await temporal.messages())]
    assert shops == ["Bakery", "Bakery", "Mill", "Mill"]


async def test_a_message_to_a_run_is_heard_in_its_context(temporal: Temporal) -> None:
    @tool(approval=Approval())
    def post(ctx: ToolContext[Shop]) -> str:
        return ctx.deps.shop

    agent = Agent("clerk", context=Shop, tools=[post])
    script = ScriptedModel([asks_for(call("post", "c1")), asks_for(call("post", "c2")), "done"])
    async with temporal.worker(agent, llm=script):
        handle = await temporal.start(agent, context={"shop": "Bakery"})
        (gate,) = await pending(handle)
        await handle.execute_update("message", {"text": "and then?"})
        await temporal.people.decide(handle.id, gate["name"], "approve")
        await until(lambda: _asks_again(handle))
        await temporal.people.decide(handle.id, "c2", "approve")
        assert (await result(handle))["status"] == "complete"
    assert [said.content for said in tool_results(await temporal.messages())] == ["Bakery", "Bakery"]


async def _asks_again(handle: Any) -> bool:
    return await has_ended(handle) or [item["name"] for item in await pending(handle)] == ["c2"]


async def test_the_longest_context_goes_with_a_long_message(temporal: Temporal) -> None:
    shop = "é" * 32_000
    async with temporal.worker(clerk([]), llm=looking()):
        handle = await temporal.start(clerk([]), "x" * 900_000, context={"shop": shop})
        assert (await result(handle))["status"] == "complete"
    assert [said.content for said in tool_results(await temporal.messages())] == [shop]


async def test_a_type_that_a_deploy_has_changed_pauses_the_run_until_another_has_mended_it(temporal: Temporal) -> None:
    @tool(approval=Approval())
    def post(ctx: ToolContext) -> str:
        return str(ctx.deps)

    def agent(kind: Any) -> Agent[Any]:
        return Agent("clerk", context=kind, tools=[post])

    async with temporal.worker(agent(dict[str, str]), llm=ScriptedModel([asks_for(call("post", "c1"))])):
        handle = await temporal.start(agent(dict[str, str]), context={"shop": "Bakery"})
        (gate,) = await pending(handle)
    async with temporal.worker(agent(dict[str, int]), llm=ScriptedModel(["done"])):
        await temporal.people.decide(handle.id, gate["name"], "reject")
        item = await until(lambda: pause_of(handle))
        assert "the run's context does not fit its type: shop: Input should be a valid integer" in item["message"]
    async with temporal.worker(agent(dict[str, str]), llm=ScriptedModel(["done"])):
        await temporal.people.resume(handle.id, "retry")
        assert (await result(handle))["status"] == "complete"


async def pause_of(handle: Any) -> Any:
    return next((item for item in await pending(handle) if item["kind"] == "pause"), None)
