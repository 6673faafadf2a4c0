"""Steps' dependencies when gates wait, steps run concurrently, factories fail or hang, and deploys change them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.pipeline_drivers import InProcess, PipelineDriver
from support.temporal_runs import Temporal, pending, result

from standfast import Approval, Step, StepContext, ToolContext, pipeline, run_pipeline, tool
from standfast.temporal import start_pipeline


@tool
def say(ctx: ToolContext[Any]) -> Any:
    """Say what the step depends on."""
    return ctx.deps


def opens(log: list[str]) -> Any:
    @asynccontextmanager
    async def till(ctx: StepContext) -> AsyncIterator[str]:
        log.append("opened")
        try:
            yield f"till of {ctx.input}"
        finally:
            log.append("closed")

    return till


YES = {"gate": "ok", "decision": "approve", "by": "ann"}


async def test_nothing_is_opened_while_a_gate_waits(pipelines: PipelineDriver) -> None:
    log: list[str] = []
    flow = pipeline("p", deps=opens(log)).step("ok", approval=Approval()).step("say", run=say).build()
    assert (await pipelines.run(flow, None, "ann")).status == "pending"
    assert log == []
    went = await pipelines.run(flow, None, "bob", decisions=[YES])
    assert went.outputs["say"] == "till of bob"
    assert log == ["opened", "closed"]


async def test_a_gate_that_was_passed_elsewhere_leaves_steps_what_they_depend_on() -> None:
    log: list[str] = []
    flow = pipeline("p", deps=opens(log)).step("first", run=say).step("ok", approval=Approval()).step("say", run=say)
    waits = await run_pipeline(flow.build(), input="ann")
    assert (waits.status, log) == ("pending", ["opened", "closed"])
    went = await run_pipeline(flow.build(), input="ann", resume_after="ok", previous_results=waits.step_results)
    assert (went.status, went.outputs["say"]) == ("complete", "till of ann")
    assert log == ["opened", "closed"] * 2


async def test_steps_that_run_together_each_close_what_they_opened(pipelines: PipelineDriver) -> None:
    log: list[str] = []

    @tool
    async def meet(ctx: ToolContext[str]) -> str:
        log.append("met")
        while log.count("met") < 3:
            await asyncio.sleep(0.01)
        return ctx.deps

    flow = pipeline("p", deps=opens(log)).map("each", Step("meet", run=meet), over=lambda ctx: [1, 2, 3]).build()
    went = await pipelines.run(flow, None, "ann")
    assert went.outputs["each"] == ["till of ann"] * 3
    assert (log.count("opened"), log.count("closed")) == (3, 3)


async def test_a_factory_that_hangs_takes_no_longer_than_its_tool_may_or_its_caller_waits(
    pipelines: PipelineDriver,
) -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def hangs(ctx: StepContext) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    @tool(timeout="1s")
    def charge(ctx: ToolContext[str]) -> None:
        ran.append(ctx.deps)

    flow = pipeline("p", deps=hangs).step("charge", run=charge).build()
    if isinstance(pipelines, InProcess):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await pipelines.run(flow, None, "ann")
    else:
        went = await pipelines.run(flow, None, "ann")
        assert (went.status, went.error_reason) == ("error", "tool-failed")
        assert "that took more than 1 s" in str(went.error)
    assert ran == []


async def test_a_deploy_changes_what_a_step_behind_a_gate_depends_on(temporal: Temporal) -> None:
    def flow(deps: Any) -> Any:
        return (
            pipeline("p", deps=deps).step("one", run=say).step("ok", approval=Approval()).step("two", run=say).build()
        )

    def raises(ctx: StepContext) -> str:
        raise LookupError("the till is gone")

    before, after = flow(lambda ctx: "old"), flow(lambda ctx: f"new of {ctx.user_id}")
    given: dict[str, Any] = {"task_queue": temporal.name, "user_id": "eve"}
    runs = []
    async with temporal.worker(pipelines=[before]):
        for name in ("a", "b"):
            runs.append(await start_pipeline(temporal.client, "p", run_key=temporal.session(name), **given))
            await pending(runs[-1])
    async with temporal.worker(pipelines=[flow(raises)]):
        await temporal.people.decide(runs[0].id, "ok", "approve", by="ann")
        ended = await result(runs[0])
        assert (ended["failed_step"], ended["error_reason"]) == ("two", "tool-failed")
        assert "could not be made: the till is gone" in ended["error"]
    async with temporal.worker(pipelines=[after]):
        await temporal.people.decide(runs[1].id, "ok", "approve", by="ann")
        assert (await result(runs[1]))["outputs"] | {"ok": 0} == {"one": "old", "ok": 0, "two": "new of eve"}
