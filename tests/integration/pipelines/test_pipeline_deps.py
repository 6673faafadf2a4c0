"""Dependencies of the tools of a pipeline's steps, and the steps' view of their run; the same with both drivers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.mortal_pipeline import shop
from support.mortal_programs import run_until_complete
from support.pipeline_drivers import InProcess, PipelineDriver
from support.temporal_runs import Temporal, pending, result

from standfast import (
    Agent,
    Approval,
    DefinitionError,
    Step,
    StepContext,
    ToolContext,
    pipeline,
    run_pipeline,
    tool,
)
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


class Order(BaseModel):
    shop: str


class Till:
    """What a shop's tools depend on."""

    def __init__(self, ctx: StepContext, log: list[str]) -> None:
        self.ctx, self._log, self.is_open = ctx, log, True

    def close(self) -> None:
        self.is_open = False
        self._log.append("closed")


@tool
def look(ctx: ToolContext[Till]) -> list[Any]:
    """Look at what the till was opened with."""
    assert ctx.deps.is_open
    known = ctx.deps.ctx
    return [known.input.shop, known.user_id, known.tenant_id, dict(known.prev)]


def opens(log: list[str]) -> Any:
    @asynccontextmanager
    async def open_till(ctx: StepContext) -> AsyncIterator[Till]:
        till = Till(ctx, log)
        try:
            yield till
        finally:
            till.close()

    return open_till


async def test_a_tool_that_is_a_step_has_what_the_pipeline_makes_of_its_input(pipelines: PipelineDriver) -> None:
    log: list[str] = []
    flow = pipeline("p", input=Order, deps=opens(log)).step("one", run=look).step("two", run=look).build()
    went = await pipelines.run(flow, None, {"shop": "Mill"}, user_id="ann", tenant_id="acme")
    seen = ["Mill", "ann", "acme", {}]
    assert (went.status, went.outputs) == ("complete", {"one": seen, "two": seen})
    assert log == ["closed", "closed"]


async def test_dependencies_may_be_a_value_or_awaited_and_reach_every_kind_of_stage(pipelines: PipelineDriver) -> None:
    async def later(ctx: StepContext) -> str:
        return f"{ctx.input}!"

    @tool
    def say(ctx: ToolContext[str]) -> str:
        return ctx.deps

    step = Step("say", run=say)
    flow = (
        pipeline("p", deps=later)
        .parallel("both", step, Step("other", run=say))
        .map("each", Step("each-one", run=say), over=lambda ctx: [1, 2], concurrency=1)
        .branch("which", on=lambda ctx: "a", cases={"a": Step("a", run=say)})
        .loop("again", Step("once", run=say), until=lambda ctx: True)
        .build()
    )
    went = await pipelines.run(flow, None, "hi")
    assert went.outputs == {
        "both": {"say": "hi!", "other": "hi!"},
        "each": ["hi!", "hi!"],
        "which": "hi!",
        "again": "hi!",
    }


async def test_a_nested_pipeline_has_dependencies_of_its_own_input(pipelines: PipelineDriver) -> None:
    @tool
    def say(ctx: ToolContext) -> Any:
        return ctx.deps

    inner = pipeline("inner", deps=lambda ctx: [ctx.input, ctx.run_key]).step("say", run=say).build()
    bare = pipeline("bare").step("say", run=say).build()
    flow = (
        pipeline("outer", deps=lambda ctx: "outer")
        .step("first", run=say)
        .step("second", pipeline=inner, input=lambda ctx: f"in {ctx.input}")
        .map("each", Step("one", pipeline=inner, input=lambda ctx: ctx.item), over=lambda ctx: ["x", "y"])
        .step("third", pipeline=bare)
        .build()
    )
    went = await pipelines.run(flow, None, "house")
    key = went.run_key
    assert went.outputs == {
        "first": "outer",
        "second": ["in house", key],
        "each": [["x", key], ["y", key]],
        "third": None,
    }


async def test_the_functions_of_steps_know_the_key_of_their_run(pipelines: PipelineDriver) -> None:
    seen: list[tuple[str, str | None]] = []

    def note(what: str, gives: Any) -> Any:
        def function(ctx: StepContext) -> Any:
            seen.append((what, ctx.run_key))
            return gives

        return function

    @tool
    def nothing() -> None:
        pass

    inner = pipeline("inner").step("deep", run=nothing, input=note("deep", {})).build()
    flow = (
        pipeline("p")
        .step("a", agent=Agent("a", model="m"), input=note("input", "hi"))
        .step("in", pipeline=inner)
        .step("then", run=nothing, input=note("then", {}))
        .step("ok", approval=Approval(message=note("message", "Well?"), show=note("show", {})))
        .build()
    )
    went = await pipelines.run(flow, ScriptedModel(["hello"]))
    assert went.status == "pending"
    assert {what for what, _ in seen} == {"input", "deep", "then", "message", "show"}
    assert {key for _, key in seen} == {went.run_key}


async def test_a_run_without_a_store_has_no_key() -> None:
    seen: list[str | None] = []

    @tool
    def nothing() -> None:
        pass

    def note(ctx: StepContext) -> dict[str, Any]:
        seen.append(ctx.run_key)
        return {}

    await run_pipeline(pipeline("p").step("a", run=nothing, input=note).build())
    assert seen == [None]


async def test_dependencies_that_cannot_be_made_raise_in_process_and_fail_the_step_on_temporal(
    pipelines: PipelineDriver,
) -> None:
    ran: list[str] = []
    tries: list[str] = []

    def broken(ctx: StepContext) -> Till:
        tries.append(ctx.input)
        raise ConnectionError("no till")

    @tool
    def charge(ctx: ToolContext[Till]) -> None:
        ran.append("charged")

    flow = pipeline("p", deps=broken).step("charge", run=charge).build()
    if isinstance(pipelines, InProcess):
        with pytest.raises(ConnectionError, match="no till"):
            await pipelines.run(flow, None, "hi")
        assert tries == ["hi"]
    else:
        went = await pipelines.run(flow, None, "hi")
        assert (went.status, went.failed_step, went.error_reason) == ("error", "charge", "tool-failed")
        assert "Not run: the dependencies of 'p' could not be made: no till" in str(went.error)
        assert tries == ["hi"] * 3
    assert ran == []


async def test_a_step_in_process_runs_once_its_dependencies_can_be_made(temporal: Temporal) -> None:
    works: list[bool] = []

    def shaky(ctx: StepContext) -> str:
        if not works:
            raise ConnectionError("no till")
        return "till"

    @tool
    def charge(ctx: ToolContext[str]) -> str:
        return ctx.deps

    flow = pipeline("p", deps=shaky).step("charge", run=charge).build()
    options: dict[str, Any] = {"store": temporal.store, "run_key": "k"}
    with pytest.raises(ConnectionError, match="no till"):
        await run_pipeline(flow, input="hi", **options)
    works.append(True)
    assert (await run_pipeline(flow, **options)).outputs == {"charge": "till"}


async def test_dependencies_that_cannot_be_closed_leave_the_outcome_of_a_step_unknown(temporal: Temporal) -> None:
    ran: list[str] = []
    mended: list[bool] = []

    @asynccontextmanager
    async def leaky(ctx: StepContext) -> AsyncIterator[str]:
        yield "till"
        if not mended:
            raise ConnectionError("not committed")

    @tool
    def charge(ctx: ToolContext[str]) -> str:
        ran.append(ctx.deps)
        return ctx.deps

    flow = pipeline("p", deps=leaky).step("charge", run=charge).build()
    options: dict[str, Any] = {"store": temporal.store, "run_key": "in-process"}
    with pytest.raises(ConnectionError, match="not committed"):
        await run_pipeline(flow, input="hi", **options)
    mended.append(True)
    assert (await run_pipeline(flow, **options)).outputs == {"charge": "till"}
    assert ran == ["till"]
    mended.clear()
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, task_queue=temporal.name, run_key=temporal.session("k"))
        ended = await result(run)
    assert (ended["status"], ended["error_reason"]) == ("error", "tool-failed")
    assert "could not be closed: not committed" in ended["error"]
    assert ran == ["till", "till"]


async def test_a_killed_process_leaves_a_step_whose_dependencies_are_made_again(tmp_path: Path) -> None:
    ended = await run_until_complete("support.mortal_pipeline", tmp_path)
    assert ended.said == ["complete", {"charge": {"charged": 7}, "look": [7]}]
    assert (ended.deaths, ended.charges) == (1, [7])
    assert set((tmp_path / "opened").read_text().splitlines()) == {"ann eve k"}


@pytest.mark.slow
async def test_a_killed_worker_leaves_a_step_whose_dependencies_are_made_again(
    temporal: Temporal, tmp_path: Path
) -> None:
    run = await start_pipeline(
        temporal.client,
        shop(tmp_path),
        input={"customer": "ann", "cents": 7},
        task_queue=temporal.name,
        run_key=f"{temporal.name}-k",
        user_id="eve",
    )
    address = temporal.client.service_client.config.target_host
    ended = await run_until_complete("support.mortal_pipeline", tmp_path, address, temporal.name, run.id)
    assert ended.said == ["complete", {"charge": {"charged": 7}, "look": [7]}]
    assert (ended.deaths, ended.charges) == (1, [7])
    opened = (tmp_path / "opened").read_text().splitlines()
    assert len(opened) >= 3  # for the charge, to find out whether it has happened, and to look
    assert set(opened) == {f"ann eve {temporal.name}-k"}


async def test_a_run_continues_when_a_deploy_brings_the_dependencies_of_its_step(temporal: Temporal) -> None:
    @tool
    def say(ctx: ToolContext) -> Any:
        return ctx.deps

    def flow(**options: Any) -> Any:
        return pipeline("p", **options).step("ok", approval=Approval()).step("say", run=say).build()

    async with temporal.worker(pipelines=[flow()]):
        run = await start_pipeline(temporal.client, "p", task_queue=temporal.name, run_key=temporal.session("k"))
        await pending(run)
    async with temporal.worker(pipelines=[flow(deps=lambda ctx: "till")]):
        await temporal.people.decide(run.id, "ok", "approve", by="ann")
        assert (await result(run))["outputs"]["say"] == "till"


def needs(kind: Any) -> Any:
    def say(ctx: ToolContext[Any]) -> None:
        pass

    say.__annotations__["ctx"] = kind
    return tool(say)


@pytest.mark.parametrize("kind", [ToolContext[Till], ToolContext[list[Till]], ToolContext[Till] | None])
def test_a_tool_whose_dependencies_nothing_makes_is_not_a_step(kind: Any) -> None:
    step = Step("say", run=needs(kind))
    for builder in (pipeline("p").step(step), pipeline("p").parallel("both", step)):
        with pytest.raises(DefinitionError, match=r"Pipeline 'p', step 'say': its tool needs a ToolContext\["):
            builder.build()
    inner = pipeline("inner", deps=lambda ctx: Till(ctx, [])).step(step).build()
    assert pipeline("p").step("in", pipeline=inner).build()


@pytest.mark.parametrize(
    "kind", [ToolContext, ToolContext[Any], ToolContext[None], ToolContext[object], ToolContext[Till | None]]
)
def test_a_tool_that_can_do_without_dependencies_is_a_step_of_any_pipeline(kind: Any) -> None:
    assert pipeline("p").step("say", run=needs(kind)).build()


def test_what_makes_no_dependencies_is_refused_when_it_is_declared() -> None:
    wrong: Any = "till"
    with pytest.raises(DefinitionError, match="Pipeline 'p': deps must be callable, got 'till'"):
        pipeline("p", deps=wrong).step("look", run=look).build()


def yields(ctx: Any) -> Iterator[Till]:
    yield Till(ctx, [])


async def yields_later(ctx: Any) -> AsyncIterator[Till]:
    yield Till(ctx, [])


@pytest.mark.parametrize("opens", [yields, yields_later, contextmanager(yields)])
def test_what_opens_dependencies_that_nothing_would_close_is_refused_when_it_is_declared(opens: Any) -> None:
    with pytest.raises(DefinitionError, match="Pipeline 'p': deps yields what nothing would close again"):
        pipeline("p", deps=opens).step("look", run=look).build()
    with pytest.raises(DefinitionError, match="Agent 'a': deps yields what nothing would close again"):
        Agent("a", deps=opens)
    assert Agent("a", deps=asynccontextmanager(yields_later))
