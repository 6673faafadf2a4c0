"""Every run of a session finds an agent that a tool invoked, under any workflow id."""

import asyncio
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, result, until
from support.transcripts import asks_for, call, tool_results

from standfast import Agent, ToolContext, tool
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
