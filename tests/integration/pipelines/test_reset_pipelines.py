"""A reset of a pipeline to any point of its history repeats no effect and ends, whatever ran beside what."""

import asyncio
import random
from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, events, result, wedges
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from standfast import Step, Tool, ToolContext, pipeline, tool
from standfast.temporal import start_pipeline


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
        completed = [
            event.event_id
            for event in await events(run)
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        for event in completed[:-1]:
            again = await reset(temporal, run, event)
            assert (await result(again))["outputs"] == before["outputs"]
            assert [why for why in wedges(await events(again)) if "RESET_WORKFLOW" not in why] == []
    assert len(effects) == len(set(effects)) == 5
