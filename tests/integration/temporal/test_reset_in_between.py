"""Runs are reset while one of their tools runs, or after continue-as-new: each effect happens once."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, chain, check_healthy, result, until
from support.transcripts import asks_for, call, shape, tool_contents

from standfast import Agent, Happened, Message, NotHappened, ToolContext, tool
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel


class SlowTools:
    """Tools that have their effect, and return when they are let go."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.began, self.may_return = threading.Event(), threading.Event()

        async def work(call_id: str) -> str:
            self.effects.append(call_id)
            self.began.set()
            while not self.may_return.is_set():
                await asyncio.sleep(0.01)
            return f"did {call_id}"

        async def look(ctx: ToolContext) -> Happened | NotHappened:
            return Happened(f"did {ctx.tool_call_id}") if ctx.tool_call_id in self.effects else NotHappened()

        @tool
        async def unsafe(ctx: ToolContext) -> str:
            """Work once."""
            return await work(ctx.tool_call_id)

        @tool(verify=look)
        async def verified(ctx: ToolContext) -> str:
            """Work once, and tell whether it was done."""
            return await work(ctx.tool_call_id)

        @tool(safe_to_retry=True)
        async def safe(ctx: ToolContext) -> str:
            """Work as often as it takes."""
            return await work(ctx.tool_call_id)

        self.tools = [unsafe, verified, safe]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["unsafe", "verified", "safe"])
async def test_a_run_that_is_reset_to_each_of_its_tasks_while_a_tool_runs_has_its_result(
    temporal: Temporal, kind: str
) -> None:
    slow = SlowTools()
    agent = Agent("a", tools=slow.tools)
    script = [asks_for(call(kind, "c1")), *["done"] * 9]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await until(slow.began.is_set)
        for task in range(len(await tasks(run))):

            async def has_gone_on(task: int = task, again: Run = run) -> bool:
                return len(await tasks(again)) > task

            await until(has_gone_on)
            run = await reset(temporal, run, task)
        slow.may_return.set()
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert tool_contents(await temporal.messages()) == [("c1", "did c1")]
    assert kind == "safe" or slow.effects == ["c1"]


@pytest.mark.slow
async def test_a_run_that_has_gone_on_as_new_is_reset_to_any_task_of_its_chain_and_comes_to_the_same(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 2)
    paid: Counter[int] = Counter()

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        paid[n] += 1
        return f"paid {n}"

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        count = sum(message.role == "tool" for message in messages)
        return asks_for(call("pay", f"c{count}", n=count)) if count < 5 else "done"

    async with temporal.worker(Agent("a", tools=[pay]), llm=ScriptedModel(answer)):
        run = await temporal.start("a")
        first, told = await result(run), shape(await temporal.messages())
        runs = [
            temporal.client.get_workflow_handle(
                run.id, run_id=history[0].workflow_execution_started_event_attributes.original_execution_run_id,
                result_type=dict[str, Any],
            )
            for history in await chain(temporal.client, run)
        ]  # fmt: skip
        assert len(runs) == 3
        for one in runs:
            for task in range(0, len(await tasks(one)), 2):
                again = await reset(temporal, one, task)
                assert await result(again) == first
                await check_healthy(again)
    assert shape(await temporal.messages()) == told
    assert paid == dict.fromkeys(range(5), 1)
