"""Resetting a pipeline to any point of its history repeats no effect, and the run ends."""

import asyncio
import random
from typing import Any

import pytest
from support.resets import tasks
from support.temporal_runs import Run, Temporal, events, result, wedges
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from standfast import Agent, Step, Tool, ToolContext, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


def payer(name: str, effects: list[str]) -> Tool[..., Any]:
    @tool(name=name)
    async def pay(to: str, ctx: ToolContext) -> str:
        """Pay, sooner or later than those beside it."""
        await asyncio.sleep(random.random() / 20)
        effects.append(f"{ctx.tool_call_id} {to}")
        return f"paid {to} by {ctx.tool_call_id}"

    return pay


async def reset(temporal: Temporal, run: Run, event: int) -> Run:
    again = await temporal.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.result_run_id or run.run_id or ""),
            workflow_task_finish_event_id=event,
            request_id=f"{temporal.name}.{event}",
        )
    )
    return temporal.client.get_workflow_handle(run.id, run_id=again.run_id, result_type=dict[str, Any])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", range(3))
async def test_a_reset_of_pipelines_beside_each_other_pays_nobody_twice(temporal: Temporal, seed: int) -> None:
    effects: list[str] = []
    one, two = payer("pay_one", effects), payer("pay_two", effects)

    def nested(name: str) -> Any:
        return (
            pipeline(name, input=str)
            .step("first", run=one, input=lambda ctx: {"to": f"{name} first"})
            .step("second", run=two, input=lambda ctx: {"to": f"{name} second"})
            .build()
        )

    flow = (
        pipeline("payments", input=str)
        .parallel("both", *(Step(name, pipeline=nested(name), input=lambda ctx: "x") for name in ("left", "right")))
        .step("last", run=one, input=lambda ctx: {"to": "last"})
        .build()
    )
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, input="x", run_key=temporal.name, task_queue=temporal.name)
        before = await result(run)
        assert (before["status"], len(effects)) == ("complete", 5)
        for event in (await tasks(run))[:-1]:
            again = await reset(temporal, run, event)
            assert (await result(again))["outputs"] == before["outputs"]
            assert [why for why in wedges(await events(again)) if "RESET_WORKFLOW" not in why] == []
    assert len(effects) == len(set(effects)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["nobody", "item 1", "round 1"])
async def test_a_reset_within_a_map_or_a_loop_pays_nobody_twice_not_even_who_was_lost(
    temporal: Temporal, lost: str
) -> None:
    effects: list[str] = []

    @tool(timeout=0.5)
    async def pay(to: str) -> str:
        """Pay, and be lost with the first of them."""
        effects.append(to)
        if to == lost:
            await asyncio.Event().wait()
        return f"paid {to}"

    writer, model = Agent("writer"), ScriptedModel(lambda messages, _: f"<{messages[-1].content}>")
    flow = (
        pipeline("payments")
        .map("written", Step("line", agent=writer, input=lambda ctx: f"line {ctx.index}"), over=lambda ctx: [1, 2])
        .loop("drafted", Step("draft", agent=writer), until=lambda ctx: ctx.iteration == 1)
        .map("each", Step("one", run=pay, input=lambda ctx: {"to": f"item {ctx.index}"}), over=lambda ctx: [1, 2, 3])
        .loop(
            "rounds",
            Step("again", run=pay, input=lambda ctx: {"to": f"round {ctx.iteration}"}),
            until=lambda ctx: ctx.iteration == 2,
            max=3,
        )
        .build()
    )
    async with temporal.worker(writer, pipelines=[flow], llm=model):
        run = await start_pipeline(temporal.client, flow, run_key=temporal.name, task_queue=temporal.name)
        before, paid = await result(run), sorted(effects)
        assert before["status"] == ("complete" if lost == "nobody" else "error")
        assert before.get("error_reason") == (None if lost == "nobody" else "tool-failed")
        for event in (await tasks(run))[:-1]:
            again = await result(await reset(temporal, run, event))
            assert (again["outputs"], again["status"]) == (before["outputs"], before["status"])
    assert len(set(paid)) == len(paid) > 2
    assert sorted(effects) == paid
    assert len(model.calls) == 4
