"""Deploys under parked pipelines: errors of the new version pause the run, and finished work is kept."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from support.deploys import waits_for
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result, until, waiting

from standfast import Agent, Approval, InputError, Pipeline, RetryPolicy, Step, pipeline, run_pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

writer = Agent("writer")


class Draft(BaseModel):
    title: str


class Report(BaseModel):
    title: str
    pages: int


def line(
    output: Any = Draft, say: Callable[[Any], str] = lambda ctx: "go", first: str = "draft", message: Any = "Publish?"
) -> Pipeline:
    return (
        pipeline("line")
        .step(first, agent=writer, output=output, input=lambda ctx: "draft it")
        .step("check", approval=Approval(message="Go on?"))
        .step("publish", agent=writer, input=say)
        .step("done", approval=Approval(message=message))
        .build()
    )


def model(messages: Any, tools: Any) -> str:
    return '{"title": "x"}' if messages[-1].content == "draft it" else f"heard {messages[-1].content}"


async def parked(temporal: Temporal, version: Pipeline) -> Run:
    """Return a run that waits at its first gate, with no worker."""
    async with temporal.worker(writer, pipelines=[version], llm=ScriptedModel(model)):
        run = await start_pipeline(
            temporal.client, "line", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        assert [item["name"] for item in await pending(run)] == ["check"]
    return run


async def approve(run: Run, gate: str) -> None:
    await run.execute_update("decide", {"gate": gate, "decision": "approve", "by": "ada"})


async def paused(run: Run) -> tuple[str, str]:
    """Return the name and the words of the pause that a run is in."""
    await until(partial(waits_for, run, "pause"))
    (item,) = await waiting(run)
    return item["name"], item["message"]


def raising(ctx: Any) -> str:
    raise KeyError("nothing")


def reading(name: str) -> Callable[[Any], str]:
    return lambda ctx: f"publish {ctx.prev[name].title}"


VERSIONS: dict[str, tuple[Pipeline, str, str]] = {
    "a function raises": (line(say=raising), "publish", "Step 'publish': input raised KeyError: "),
    "an output type changed": (
        line(output=Report, say=lambda ctx: "x"), "publish",
        "Step 'draft': its output does not match: pages: Field required. It was stored earlier, and does not fit",
    ),
    "a done step was renamed": (line(first="sketch", say=reading("sketch")), "publish", "raised KeyError: "),
    "a function returns something else than a message": (line(say=lambda ctx: 5), "publish", "input must give a text"),  # type: ignore[arg-type, return-value]
    "a gate's message raises": (line(message=raising), "done", "message raised KeyError: "),
}  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("what", VERSIONS)
async def test_what_a_new_version_raises_pauses_the_run_until_the_next(temporal: Temporal, what: str) -> None:
    broken, step, words = VERSIONS[what]
    run = await parked(temporal, line())
    async with temporal.worker(writer, pipelines=[broken], llm=ScriptedModel(model)):
        await approve(run, "check")
        name, message = await paused(run)
        assert (name, words in message) == (step, True), message
        before = await waiting(run)
        await temporal.people.resume(run.id)  # it is tried again, and raises again
        await until(partial(_is_another_pause, run, before))
    async with temporal.worker(writer, pipelines=[line(say=reading("draft"))], llm=ScriptedModel(model)):
        await until(partial(waits_for, run, "approval"))
        await approve(run, "done")
        ended = await result(run)
    assert ended["status"] == "complete"
    assert ended["outputs"]["draft"] == {"title": "x"}
    assert ended["outputs"]["check"]["by"] == ["ada"]
    await check_healthy(run)


async def _is_another_pause(run: Run, before: list[dict[str, Any]]) -> bool:
    found = await waiting(run)
    return [item["kind"] for item in found] == ["pause"] and found != before


async def test_a_run_that_somebody_gives_up_at_a_pause_fails_at_that_step(temporal: Temporal) -> None:
    run = await parked(temporal, line())
    async with temporal.worker(writer, pipelines=[line(say=raising)], llm=ScriptedModel(model)):
        await approve(run, "check")
        await paused(run)
        await temporal.people.resume(run.id, "abort", by="ada")
        failed = await failure(run)
    assert (failed.type, failed.details) == ("KeyError", ({"failed_step": "publish"},))
    assert "Step 'publish': input raised KeyError" in failed.message


async def test_all_that_is_paused_continues_with_one_resume(temporal: Temporal) -> None:
    """The steps of a map raise beside each other: none is given up because another one continued."""
    mended = threading.Event()  # not a bool: a plain value of a function is part of its pipeline's version

    def each(ctx: Any) -> str:
        if not mended.is_set():
            raise ValueError(f"item {ctx.item}")
        return f"item {ctx.item}"

    items = (
        pipeline("line").map("all", Step("one", agent=writer, input=each), over=lambda ctx: [1, 2, 3]).build()
    )  # fmt: skip
    async with temporal.worker(writer, pipelines=[items], llm=ScriptedModel(model)):
        run = await start_pipeline(
            temporal.client, "line", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        assert {item["name"] for item in await pending(run, 3)} == {"all/0", "all/1", "all/2"}
        with pytest.raises(InputError, match=r"all/7 does not wait for that; waiting: all/\d, all/\d, all/\d"):
            await temporal.people.resume(run.id, name="all/7")
        mended.set()
        await temporal.people.resume(run.id, name="all/1")
        await until(partial(_are_left, run, 2))
        await temporal.people.resume(run.id)
        assert (await result(run))["status"] == "complete"
    await check_healthy(run)


async def _are_left(run: Run, count: int) -> bool:
    return len(await waiting(run)) == count


async def test_the_input_of_a_caller_that_does_not_fit_still_fails_at_once(temporal: Temporal) -> None:
    typed = pipeline("line", input=Draft).step("say", agent=writer).build()
    async with temporal.worker(writer, pipelines=[typed], llm=ScriptedModel(model)):
        run = await start_pipeline(
            temporal.client, "line", input={"x": 1}, run_key=temporal.session(), task_queue=temporal.name
        )
        assert (await failure(run)).type == "InputError"


async def test_in_process_what_a_new_version_raises_reaches_the_caller_and_nothing_is_lost(temporal: Temporal) -> None:
    options: dict[str, Any] = {"store": temporal.store, "run_key": temporal.session(), "llm": ScriptedModel(model)}
    assert (await run_pipeline(line(), input={}, **options)).status == "pending"
    decided = [{"gate": "check", "decision": "approve", "by": "ada"}]
    with pytest.raises(KeyError, match="nothing"):
        await run_pipeline(line(say=raising), decisions=decided, **options)
    with pytest.raises(InputError, match="It was stored earlier, and does not fit today's Report"):
        await run_pipeline(line(output=Report), **options)
    went = await run_pipeline(line(say=reading("draft")), **options)
    assert (went.status, went.pending_step) == ("pending", "done")
    assert went.outputs["check"]["by"] == ["ada"]


# --- the tool of a step ---


async def test_a_steps_tool_is_run_by_what_the_new_version_says_of_it(temporal: Temporal) -> None:
    """It raises once: a tool that is safe to retry by now is retried."""
    tries: list[int] = []

    def version(**options: Any) -> Pipeline:
        @tool(**options)
        async def send(number: int) -> str:
            """Send."""
            tries.append(number)
            if len(tries) < 2:
                raise ValueError("busy")
            return "sent"

        step = Step("send", run=send, input=lambda ctx: {"number": 1})
        return pipeline("line").step("check", approval=Approval(message="Go on?")).step(step).build()

    run = await parked(temporal, version())
    safe = version(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01))
    async with temporal.worker(writer, pipelines=[safe], llm=ScriptedModel(model)):
        await approve(run, "check")
        ended = await result(run)
    assert (ended["status"], ended["outputs"]["send"], tries) == ("complete", "sent", [1, 1])
