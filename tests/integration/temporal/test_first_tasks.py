"""What is asked and sent while a run is being opened: its history replays, and nothing is lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from support.temporal_runs import Run, Temporal, ask_once, clerk, events, pending, until
from temporalio.api.enums.v1 import EventType
from temporalio.worker import Replayer

from standfast.temporal import StandfastPlugin
from standfast.temporal.workflows.board import Board
from standfast.testing import ScriptedModel


async def _say(run: Run) -> None:
    await run.signal("message", {"text": "And hurry"})


async def _cancel(run: Run) -> None:
    await run.cancel()


async def _has_closed(run: Run) -> bool:
    return (await run.describe()).close_time is not None


@pytest.mark.parametrize("send", [_say, _cancel])
async def test_what_arrives_while_the_first_task_answers_a_query_does_not_wedge_the_run(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, send: Callable[[Run], Awaitable[None]]
) -> None:
    """The SDK ends that task at once, with the marker of the opening, of which the workflow hears in the next one."""
    asked, sent = threading.Event(), threading.Event()
    seen = Board.seen

    def slow(self: Board) -> object:
        if not asked.is_set():
            asked.set()
            sent.wait(5)
            sent.clear()
            sent.wait(0.3)  # meanwhile the run is opened
        return seen(self)

    monkeypatch.setattr(Board, "seen", slow)
    run = await temporal.start(clerk)
    asking = asyncio.create_task(temporal.people.status(run.id))
    await asyncio.sleep(0.3)  # the query waits for the first task
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        await until(asked.is_set)
        await send(run)
        sent.set()
        await asking
        if send is _say:
            await pending(run)
            await temporal.people.answer(run.id, "Ada")
        await until(lambda: _has_closed(run))
    history = await run.fetch_history()
    marked = [event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED]
    arrived = (
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
    )
    assert marked[0] < next(event.event_id for event in await events(run) if event.event_type in arrived)
    plugin = StandfastPlugin(agents=[clerk], store=temporal.store, llm=ScriptedModel(ask_once))
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == (["go", "And hurry"] if send is _say else [])
