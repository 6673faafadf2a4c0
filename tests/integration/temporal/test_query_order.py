"""Queries that waited for a worker, and what came after them: the history replays, whatever a worker takes in first."""

import asyncio

import pytest
from support.temporal_runs import Temporal, ask_once, check_healthy, clerk, events, pending, question, result
from temporalio import workflow
from temporalio.api.enums.v1 import EventType

from standfast.temporal.workflows.inbox import Inbox
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


async def test_who_goes_on_after_a_query_has_taken_in_everything_with_its_task(
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
