"""Deploys that fix a paused pipeline: it continues automatically, and tries each version once."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from support.deploys import QUESTION, by_turn, clerk, waits_for
from support.deploys import parked as agent_parked
from support.questions import ask
from support.temporal_runs import Run, Temporal, check_healthy, events, failure, pending, result, until, waiting

from standfast import Agent, Approval, InputError, Loop, Pipeline, Step, pipeline, run_pipeline, tool
from standfast.runtime import pipeline_steps
from standfast.temporal import start_pipeline
from standfast.temporal.activities.runs import pipeline_activities
from standfast.testing import ScriptedModel

writer = Agent("writer", tools=[ask])


class Draft(BaseModel):
    title: str


class Report(BaseModel):
    title: str
    pages: int


def raises_key(ctx: Any) -> str:
    raise KeyError("nothing")


def raises_value(ctx: Any) -> str:
    raise ValueError("odd")


def line(say: Callable[[Any], str], output: Any = None, name: str = "line", **options: Any) -> Pipeline:
    return (
        pipeline(name, **options)
        .step("check", approval=Approval(message="Go on?"))
        .step("write", agent=writer, input=say, output=output)
        .build()
    )


def writes(messages: Any, tools: Any) -> str:
    return '{"title": "x"}'


async def begun(temporal: Temporal, name: str = "line") -> Run:
    return await start_pipeline(temporal.client, name, input={}, run_key=temporal.session(), task_queue=temporal.name)


async def paused(temporal: Temporal, broken: Pipeline) -> Run:
    """Return a run that is paused at its step, with no worker."""
    async with temporal.worker(writer, pipelines=[broken], llm=ScriptedModel(writes)):
        run = await begun(temporal)
        await pending(run)
        await temporal.people.decide(run.id, "check", "approve", by="ada")
        await until(partial(waits_for, run, "pause"))
    return run


async def offered(run: Run) -> int:
    """Return how often the step that waits was offered to a worker."""
    found = (await run.describe()).raw_description.pending_activities
    return max((item.attempt for item in found if item.activity_type.name == "standfast.step"), default=0)


async def test_a_deploy_that_mends_a_paused_pipeline_ends_the_pause(temporal: Temporal) -> None:
    run = await paused(temporal, line(raises_key))
    async with temporal.worker(writer, pipelines=[line(lambda ctx: "go")], llm=ScriptedModel(writes)):
        assert (await result(run))["status"] == "complete"
    await check_healthy(run)


@pytest.mark.slow
async def test_a_paused_pipeline_has_no_events_while_workers_have_what_raised_alone(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_activities, "LOOKS_EVERY", 0.05)
    broken, calls = line(raises_key), list[int]()
    run = await paused(temporal, broken)
    before = len(await events(run))
    async with temporal.worker(writer, pipelines=[broken], llm=ScriptedModel(writes)):  # a restart
        await until(lambda: _is_more(offered(run), 6))
        assert await waits_for(run, "pause")
    async with temporal.worker(clerk(), llm=ScriptedModel(writes)):  # one that has not the pipeline
        await until(lambda: _is_more(offered(run), 12))
        assert [item["kind"] for item in await waiting(run)] == ["pause"]
    assert len(await events(run)) == before, calls


async def _is_more(count: Any, than: int) -> bool:
    return bool(await count > than)


@pytest.mark.slow
async def test_each_version_is_tried_once_also_where_two_are_at_work(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_activities, "LOOKS_EVERY", 0.05)
    run, other = await paused(temporal, line(raises_key)), await temporal.elsewhere()
    async with (
        temporal.worker(writer, pipelines=[line(raises_key)], llm=ScriptedModel(writes)),
        other.worker(writer, pipelines=[line(raises_value)], llm=ScriptedModel(writes)),
    ):
        await until(lambda: _says(run, "raised ValueError"))
        before = len(await events(run))
        await until(lambda: _is_more(offered(run), 6))
        assert len(await events(run)) == before
        await temporal.people.resume(run.id, "abort")
        assert (await failure(run)).details == ({"failed_step": "write"},)
    await check_healthy(run)


async def _says(run: Run, words: str) -> bool:
    return any(words in item["message"] for item in await waiting(run))


# --- an output whose type changes while the step runs ---


@pytest.mark.slow
async def test_an_answer_that_was_asked_for_as_another_type_pauses_the_run_until_it_fits(temporal: Temporal) -> None:
    script = by_turn(QUESTION, '{"title": "x"}')
    async with temporal.worker(writer, pipelines=[line(lambda ctx: "go", Draft)], llm=ScriptedModel(script)):
        run = await begun(temporal)
        await pending(run)
        await temporal.people.decide(run.id, "check", "approve", by="ada")
        asked = temporal.client.get_workflow_handle(f"{run.id}/write", result_type=dict[str, Any])
        await until(lambda: _asks(asked))
    model = ScriptedModel(script)
    async with temporal.worker(writer, pipelines=[line(lambda ctx: "go", Report)], llm=model):
        await asked.execute_update("answer", {"text": "yes"})
        await until(partial(waits_for, run, "pause"))
        (item,) = await waiting(run)
        assert item["name"] == "write"
        assert "pages: Field required. Its answer is stored. It began with another type" in item["message"]
    async with temporal.worker(writer, pipelines=[line(lambda ctx: "go", Draft)], llm=model):
        ended = await result(run)
    assert (ended["status"], ended["outputs"]["write"], len(model.calls)) == ("complete", {"title": "x"}, 1)
    await check_healthy(run)


async def _asks(run: Run) -> bool:
    try:
        return bool(await waiting(run))
    except Exception:  # it is not there yet
        return False


async def test_an_answer_that_never_fitted_still_fails_its_step(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[line(lambda ctx: "go", Report)], llm=ScriptedModel(writes)):
        run = await begun(temporal)
        await pending(run)
        await temporal.people.decide(run.id, "check", "approve", by="ada")
        assert (await result(run))["error_reason"] == "schema-mismatch"


async def test_what_a_tool_came_to_is_kept_when_its_type_has_changed_in_the_meantime(temporal: Temporal) -> None:
    """In process: it ran, the process ended before its output was read, and the next version reads another type."""
    ran: list[int] = []

    def version(output: Any, **options: Any) -> Pipeline:
        @tool
        async def send() -> dict[str, str]:
            """Send."""
            ran.append(1)
            return {"title": "x"}

        return pipeline("line").step(Step("send", run=send, output=output)).build()

    options: dict[str, Any] = {"store": temporal.store, "run_key": temporal.session()}
    await run_to_its_result(temporal, version(Draft), options)
    with pytest.raises(InputError, match=r"Its answer is stored\. It began with another type, and today's is Report"):
        await run_pipeline(version(Report), input={}, **options)
    went = await run_pipeline(version(Draft), input={}, **options)
    assert (went.status, went.outputs["send"], ran) == ("complete", Draft(title="x"), [1])


class _DiesError(BaseException):
    """The process ends."""


async def run_to_its_result(temporal: Temporal, version: Pipeline, options: dict[str, Any]) -> None:
    def dies(*_: Any) -> Any:
        raise _DiesError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_steps, "read_in_time", dies)
        with pytest.raises(_DiesError):
            await run_pipeline(version, input={}, **options)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("before", [Draft, None])
async def test_an_agent_whose_output_changes_is_corrected_by_todays_type(temporal: Temporal, before: Any) -> None:
    script, seen = by_turn(QUESTION, '{"title": "x"}', '{"title": "x", "pages": 2}'), list[str]()

    def model(messages: Any, tools: Any) -> Any:
        seen.append(messages[0].content)
        return script(messages, tools)

    once = Loop(output_retries=1)
    run = await agent_parked(temporal, clerk(output=before, loop=once), model)
    async with temporal.worker(clerk(output=Report, loop=once), llm=ScriptedModel(model)):
        await run.execute_update("answer", {"text": "yes"})
        ended = await result(run)
    assert (ended["status"], ended["output"]) == ("complete", {"title": "x", "pages": 2})
    assert ["pages" in prompt for prompt in seen] == [False, True, True]
    assert "pages" in (await temporal.messages())[-2].content
    await check_healthy(run)
