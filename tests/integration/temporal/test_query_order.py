"""Queries that wait for a worker, followed by other input: the history replays in any order of processing."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from support.temporal_runs import (
    SECONDS,
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    events,
    pending,
    question,
    result,
    until,
)
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.worker import Replayer, Worker

from standfast import Agent
from standfast.temporal import StandfastPlugin, approval
from standfast.temporal.workflows.inbox.arrivals import Inbox
from standfast.testing import ScriptedModel

RUNS = 8  # of which a worker gets the query first with one in two


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Inbox, str, int]]:
    """Note who takes in a signal, of which name, and where the history ends for it."""
    noted: list[tuple[Inbox, str, int]] = []
    count = Inbox._count

    def noting(self: Inbox, name: str, data: object) -> object:
        noted.append((self, name, workflow.info().get_current_history_length()))
        return count(self, name, data)

    monkeypatch.setattr(Inbox, "_count", noting)
    return noted


@pytest.mark.slow
async def test_a_run_that_continues_after_a_query_has_read_everything_with_its_task(
    temporal: Temporal, taken: list[tuple[Inbox, str, int]]
) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        runs = [await temporal.start(clerk, session=f"s{number}") for number in range(RUNS)]
        for run in runs:
            await pending(run)
    asking = [asyncio.create_task(temporal.people.status(run.id)) for run in runs]
    await asyncio.sleep(0.3)  # a query that comes after the signal waits for the signal's task
    for run in runs:
        await run.signal("message", {"text": "Be quick"})
    async with (await temporal.elsewhere()).worker(clerk, llm=ScriptedModel(ask_once)):
        assert {seen["status"] for seen in await asyncio.gather(*asking)} == {"waiting"}
        for run in runs:
            taken_before = len(taken)
            await run.signal("answer", {"text": "Ada", "tool_call_id": "c1"})
            assert (await result(run))["status"] == "complete"
            await check_healthy(run)
            kinds = {event.event_id: event.event_type for event in await events(run)}
            who = next(inbox for inbox, name, _ in taken[taken_before:] if name == "answer")
            lengths = {name: length for inbox, name, length in taken if inbox is who}
            assert {name: kinds[length] for name, length in lengths.items()} == {
                "message": EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
                "answer": EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
            }


async def test_a_run_that_ended_before_it_took_something_in_can_still_be_asked(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    await run.signal("message", {"text": "Be quick"})
    await run.terminate()
    async with (await temporal.elsewhere()).worker(clerk, llm=ScriptedModel(ask_once)):
        assert (await temporal.people.status(run.id))["status"] == "waiting"  # it was, when it was terminated


async def test_a_parked_run_is_not_read_again_each_time_it_is_asked(
    temporal: Temporal, taken: list[tuple[Inbox, str, int]]
) -> None:
    async with question(temporal) as run:
        await run.signal("message", {"text": "Be quick"})
        for _ in range(30):
            await temporal.people.status(run.id)
        assert len(taken) <= 5  # with its task, and once more after each task that was followed by a query


# --- at a gate of a custom workflow ---


@activity.defn
async def first() -> None: ...


@activity.defn
async def second() -> None: ...


@workflow.defn(sandboxed=False)
class Release:
    """Waits at a gate, and meanwhile for two activities, of which the first has its own queue."""

    @workflow.run
    async def run(self, queue: str) -> list[str]:
        gate = asyncio.ensure_future(approval("ship"))
        soon = timedelta(seconds=SECONDS)
        await workflow.execute_activity(first, task_queue=queue, start_to_close_timeout=soon)
        await workflow.execute_activity(second, start_to_close_timeout=soon)
        return (await gate)["by"]


def releases(temporal: Temporal) -> Worker:
    plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
    queue = temporal.name
    return Worker(temporal.client, task_queue=queue, workflows=[Release], activities=[second], plugins=[plugin])


async def has_done(run: Run, kind: "EventType.ValueType") -> bool:
    return any(event.event_type == kind for event in await events(run))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("order", [("query", "update"), ("update", "query")])
async def test_an_update_at_a_gate_of_a_users_workflow_that_waits_beside_a_query_replays(
    temporal: Temporal, order: tuple[str, str]
) -> None:
    """Of histories that a worker without the plugin writes, two of three do not replay if the query came first."""
    queue, runs = f"{temporal.name}-first", list[Run]()
    async with releases(temporal):
        for number in range(RUNS):
            run_id, of_it = temporal.session(str(number)), {"task_queue": temporal.name}
            runs.append(await temporal.client.start_workflow("Release", queue, id=run_id, **of_it))
        for run in runs:
            await until(lambda run=run: has_done(run, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED))
    waiting: list[asyncio.Future[Any]] = []
    for run in runs:
        for kind in order:
            given = {"gate": "ship", "decision": "approve", "by": "ada"}
            sent = run.query("pending") if kind == "query" else run.execute_update("decide", given)
            waiting.append(asyncio.ensure_future(sent))
            await asyncio.sleep(0.01)  # the order in which they reach the server matters
    async with Worker(temporal.client, task_queue=queue, activities=[first]):
        for run in runs:
            await until(lambda run=run: has_done(run, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED))
    async with releases(await temporal.elsewhere()):
        await asyncio.gather(*waiting)
        for run in runs:
            ended: Any = await result(run)
            assert ended == ["ada"]
            await check_healthy(run)
            await Replayer(workflows=[Release]).replay_workflow(await run.fetch_history())
