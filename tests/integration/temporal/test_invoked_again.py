"""Every run of a session finds an agent that a tool invoked, under any workflow id."""

import asyncio
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, result, until
from support.transcripts import DURABILITY, asks_for, call, says, tool_results

from standfast import Agent, ToolContext, Usage, tool
from standfast.testing import ScriptedModel


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_an_agent_that_a_tool_invoked_charges_once_though_the_next_run_has_another_workflow_id(
    temporal: Temporal, tenant: str | None
) -> None:
    charged: list[str] = []
    attempts: list[int] = []

    @tool
    async def charge() -> str:
        """Charge."""
        charged.append("once")
        return "charged"

    payer = Agent("payer", tools=[charge], instructions="pay")

    @tool(safe_to_retry=True)
    async def delegate(ctx: ToolContext) -> str:
        """Have it paid."""
        answer = await ctx.agents.invoke(payer, message="pay")
        attempts.append(len(attempts))
        if len(attempts) == 1:
            await asyncio.sleep(30)
        return answer["response"]

    boss = Agent("boss", tools=[delegate], instructions="lead")

    def answer(messages: list[Any], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        name = tools[0].name
        return asks_for(call(name, f"{name}1"))

    async with temporal.worker(boss, payer, llm=ScriptedModel(answer)):
        first = await temporal.start(boss, id=f"desk/{temporal.name}", tenant_id=tenant)
        await until(lambda: attempts)
        await first.terminate()
        again = await temporal.start(boss, None, id=f"batch/{temporal.name}", tenant_id=tenant)
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert charged == ["once"]
    session = temporal.session() if tenant is None else f"@{tenant}/{temporal.session()}"
    assert tool_results(await temporal.store.load_messages(session))[0].content == "done"


@pytest.mark.parametrize("is_completed", [False, True], ids=["lost", "completed by hand"])
async def test_the_tokens_of_an_invoked_agent_are_counted_though_its_call_is_lost(
    temporal: Temporal, is_completed: bool
) -> None:
    """The report of the call, which counts them otherwise, never arrives."""
    advised: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay as advised."""
        advised.append((await ctx.agents.invoke(adviser, message="how?"))["response"])
        advised.append((await ctx.agents.invoke(adviser, message="when?"))["response"])
        await asyncio.sleep(60)
        return "paid"

    adviser = Agent("adviser", instructions="advise")
    boss = Agent("boss", tools=[pay], instructions="lead")

    def answer(messages: list[Any], tools: list[Any]) -> Any:
        if not tools:
            return says("in cash", 10 if messages[-1].content == "how?" else 100)
        return says("done", 1_000) if messages[-1].role == "tool" else asks_for(call("pay", "p1"), tokens=1)

    async with temporal.worker(boss, adviser, llm=ScriptedModel(answer)):
        run = await temporal.start(boss)
        await until(lambda: len(advised) == 2)
        pending = (await run.describe()).raw_description.pending_activities
        held = next(one.activity_id for one in pending if one.activity_type.name == "pay")
        handle = temporal.client.get_async_activity_handle(workflow_id=run.id, run_id=None, activity_id=held)
        await (handle.complete("paid before") if is_completed else handle.fail(RuntimeError("its machine is gone")))
        ended = await result(run)
    lost = tool_results(await temporal.messages())[0]
    assert ("paid before" if is_completed else DURABILITY) in lost.content
    assert lost.usage == Usage(input_tokens=110)
    assert Usage(**ended["usage"]) == Usage(input_tokens=1_111)
