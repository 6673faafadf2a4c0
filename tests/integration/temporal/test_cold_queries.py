"""Queries that waited for a worker, and what came after them: the history replays, whatever the worker gets first."""

import asyncio

import pytest
from support.temporal_runs import Temporal, ask_once, check_healthy, clerk, events, pending, result
from temporalio import workflow
from temporalio.api.enums.v1 import EventType

from standfast.temporal.workflows.inbox import Inbox
from standfast.testing import ScriptedModel

RUNS = 8  # of which a worker gets the query first with one in two


async def test_what_came_after_a_query_is_taken_in_by_its_task_alone(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int]] = []  # where the history ended when a signal was taken in for the first time
    count = Inbox._count

    def noting(self: Inbox, name: str, data: object) -> object:
        if not workflow.unsafe.is_replaying():
            taken.append((workflow.info().run_id, workflow.info().get_current_history_length()))
        return count(self, name, data)

    monkeypatch.setattr(Inbox, "_count", noting)
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
            await run.signal("answer", {"text": "Ada", "tool_call_id": "c1"})
            assert (await result(run))["status"] == "complete"
            await check_healthy(run)
    histories = {run.result_run_id: {event.event_id: event.event_type for event in await events(run)} for run in runs}
    assert len(taken) >= 2 * RUNS
    assert {histories[run][length] for run, length in taken} == {EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED}


async def test_a_run_that_ended_before_it_took_something_in_can_still_be_asked(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    await run.signal("message", {"text": "Be quick"})
    await run.terminate()
    async with (await temporal.elsewhere()).worker(clerk, llm=ScriptedModel(ask_once)):
        assert (await temporal.people.status(run.id))["status"] == "waiting"  # it was, when it was terminated
