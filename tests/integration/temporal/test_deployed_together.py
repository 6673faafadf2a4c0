"""Deploys that change names, types and tools together, under a nested pipeline at an open gate; and rollbacks."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from support.deploys import waits_for
from support.temporal_runs import Run, Temporal, check_healthy, events, pending, result, until, waiting

from standfast import Agent, Approval, Pipeline, Step, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

# The events of a run that one version carries: some 80, and more where workflow tasks time out under load.
STRAIGHT = 130
# Chance decides which of two versions gets a task, so the wrong one may get it any number of times. Each time costs
# the attempt, its settling and the search for a worker, each with three events and three of a workflow task;
# a timer, with two and three; and two changes of the waiting items.
DETOUR = 3 * (3 + 3) + (2 + 3) + 2


class Draft(BaseModel):
    title: str


class Report(BaseModel):
    title: str
    pages: int


class Application:
    def __init__(self) -> None:
        self.effects: list[str] = []

    def before(self) -> tuple[Pipeline, Agent]:
        return self._version("line", "writer", "send", Draft)

    def after(self) -> tuple[Pipeline, Agent]:
        return self._version("flow", "author", "post", Report, formerly=["line"])

    def _version(self, name: str, agent: str, called: str, output: Any, **options: Any) -> tuple[Pipeline, Agent]:
        @tool(name=called)
        async def send(number: int) -> str:
            """Send."""
            self.effects.append(f"sent {number}")
            return f"sent {number}"

        writer = Agent(agent, formerly=["writer"] if agent != "writer" else [])
        part = (
            pipeline("part")
            .step("draft", agent=writer, output=output)
            .step("check", approval=Approval(message="Send it?"))
            .step("send", run=send, input=lambda ctx: {"number": len(ctx.prev["draft"].title)})
            .build()
        )
        first = Step("first", run=send, input=lambda ctx: {"number": 0})
        whole = pipeline(name, **options).step(first).step("below", pipeline=part).step("tell", agent=writer)
        return whole.build(), writer


def model(messages: Any, tools: Any) -> str:
    return "told" if "tell" in messages[-1].content else '{"title": "x"}'


async def parked(temporal: Temporal, application: Application) -> Run:
    """Return a run that waits at the gate of its nested pipeline, with no worker."""
    before, writer = application.before()
    async with temporal.worker(writer, pipelines=[before], llm=ScriptedModel(model)):
        run = await start_pipeline(
            temporal.client, "line", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        assert [item["name"] for item in await pending(run)] == ["below/check"]
    return run


async def test_what_the_new_version_cannot_read_continues_after_a_rollback(temporal: Temporal) -> None:
    application = Application()
    run = await parked(temporal, application)
    after, author = application.after()
    async with temporal.worker(author, pipelines=[after], llm=ScriptedModel(model)):
        await temporal.people.decide(run.id, "below/check", "approve", by="ada")
        await until(partial(waits_for, run, "pause"))
        (item,) = await waiting(run)
        assert (item["name"], "does not fit today's Report" in item["message"]) == ("below/send", True)
    before, writer = application.before()
    async with temporal.worker(writer, pipelines=[before], llm=ScriptedModel(model)):
        ended = await result(run)
    assert (ended["status"], application.effects) == ("complete", ["sent 0", "sent 1"])
    await check_healthy(run)


@pytest.mark.slow
async def test_two_versions_at_once_carry_a_run_to_its_end(temporal: Temporal) -> None:
    application = Application()
    run, other = await parked(temporal, application), await temporal.elsewhere()
    (before, writer), (after, author) = application.before(), application.after()
    async with (
        temporal.worker(writer, pipelines=[before], llm=ScriptedModel(model)),
        other.worker(author, pipelines=[after], llm=ScriptedModel(model)),
    ):
        await temporal.people.decide(run.id, "below/check", "approve", by="ada")
        ended = await result(run)
    assert (ended["status"], ended["outputs"]["tell"]) == ("complete", {"response": "told"})
    assert Counter(application.effects) == {"sent 0": 1, "sent 1": 1}
    found = await events(run)
    detours = sum(event.HasField("activity_task_failed_event_attributes") for event in found)
    assert len(found) <= STRAIGHT + detours * DETOUR
    await check_healthy(run)


@pytest.mark.slow
async def test_runs_begun_under_the_new_name_continue_when_that_is_back_after_a_rollback(temporal: Temporal) -> None:
    application = Application()
    (before, writer), (after, author) = application.before(), application.after()
    async with temporal.worker(author, pipelines=[after], llm=ScriptedModel(lambda *_: '{"title": "x", "pages": 1}')):
        run = await start_pipeline(
            temporal.client, after, input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        await pending(run)
    async with temporal.worker(writer, pipelines=[before], llm=ScriptedModel(model)):
        await run.signal("approve", {"gate": "below/check", "by": "ada"})
        await until(partial(_waits_for_a_worker, run))
    async with temporal.worker(author, pipelines=[after], llm=ScriptedModel(model)):
        assert (await result(run))["status"] == "complete"
    assert application.effects == ["sent 0", "sent 1"]
    await check_healthy(run)


async def _waits_for_a_worker(run: Run) -> bool:
    return any(item["kind"] == "worker" for item in await waiting(run))
