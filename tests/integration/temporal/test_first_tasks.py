"""Queries and signals while a run is being opened: its history replays, and nothing is lost."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from support.questions import ask
from support.temporal_runs import Run, Temporal, ask_once, check_healthy, clerk, events, pending, result, until
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType
from temporalio.worker import Replayer

from integration.temporal.test_temporal_stuck import rescue
from standfast import Agent, InputError, Message, tool
from standfast.temporal import StandfastPlugin, plugin
from standfast.temporal.client.runs.stuck import find_stuck
from standfast.temporal.workflows.board.run_board import Board
from standfast.testing import ScriptedModel


async def _say(run: Run) -> None:
    await run.signal("message", {"text": "And hurry"})


async def _cancel(run: Run) -> None:
    await run.cancel()


async def _has_closed(run: Run) -> bool:
    return (await run.describe()).close_time is not None


class SlowLook:
    """A query of the first task that is answered when something has arrived and the run was opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self._sent, seen = threading.Event(), threading.Event(), Board.seen

        def slow(board: Board) -> object:
            if not self.asked.is_set():
                self.asked.set()
                self._sent.wait(5)
                self._sent.clear()
                self._sent.wait(0.3)  # the run is opened in the meantime
            return seen(board)

        monkeypatch.setattr(Board, "seen", slow)

    async def begin(self, temporal: Temporal, agent: Agent) -> tuple[Run, "asyncio.Task[Any]"]:
        """Start a run before it has a worker, with a query that waits for the first task."""
        run = await temporal.start(agent)
        asking = asyncio.create_task(temporal.people.status(run.id))
        await asyncio.sleep(0.3)
        return run, asking

    async def meanwhile(self, sending: Awaitable[None]) -> None:
        await until(self.asked.is_set)
        await sending
        self._sent.set()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("send", [_say, _cancel])
async def test_what_arrives_while_the_first_task_answers_a_query_does_not_wedge_the_run(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, send: Callable[[Run], Awaitable[None]]
) -> None:
    """The SDK ends that task at once, with the marker of the opening, of which the workflow hears in the next one."""
    look = SlowLook(monkeypatch)
    run, asking = await look.begin(temporal, clerk)
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        await look.meanwhile(send(run))
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
    ours = StandfastPlugin(agents=[clerk], store=temporal.store, llm=ScriptedModel(ask_once))
    await Replayer(workflows=[], plugins=[ours]).replay_workflow(history)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == (["go", "And hurry"] if send is _say else [])


@pytest.mark.slow
async def test_a_run_that_was_wedged_so_begins_again_as_the_doctor_says_and_charges_once(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[str] = []

    @tool
    def charge(text: str) -> str:
        """Charge."""
        charged.append(text)
        return "charged"

    def model(messages: Sequence[Message], tools: Any) -> Any:
        done = sum(message.role == "tool" for message in messages)
        return [asks_for(call("charge", "c1", text="5")), asks_for(call("ask", "c2", question="Who?")), "done"][done]

    agent, look = Agent("a", tools=[charge, ask]), SlowLook(monkeypatch)
    run, asking = await look.begin(temporal, agent)
    with monkeypatch.context() as before:
        before.setattr(plugin, "keep_order_beside_queries", lambda worker: None)
        async with temporal.worker(agent, llm=ScriptedModel(model)):
            await look.meanwhile(_say(run))
            await asking
            await pending(run)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(model)):
        await run.signal("answer", {"text": "Ada"})
        (stuck,) = await until(lambda: find_stuck(temporal.client, temporal.name, 100))
        assert "[TMPRL1100]" in stuck.why
        await rescue(temporal, "temporal workflow reset" + stuck.rescue.partition("temporal workflow reset")[2])
        anew: Run = temporal.client.get_workflow_handle(run.id, result_type=dict)
        await pending(anew)

        async def answers() -> bool:
            with contextlib.suppress(InputError):  # it looks up what was answered before
                await temporal.people.answer(run.id, "Ada")
                return True
            return False

        await until(answers)
        assert (await result(anew))["status"] == "complete"
        await check_healthy(anew)
    assert charged == ["5"]
    assert await find_stuck(temporal.client, temporal.name, 100) == []
