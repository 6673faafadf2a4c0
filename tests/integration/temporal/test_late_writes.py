"""Late writes by an ended run's activities do not disturb the session's next run."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.any_store import KINDS, opener_of
from support.doubles import poster
from support.held_activities import Hold, Holding
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, result, until
from support.transcripts import asks_for, call, shape
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.worker import Worker

from standfast import Agent, Message, RunResult, SessionConflictError, run
from standfast.stores import AtWork
from standfast.temporal import StandfastPlugin
from standfast.temporal.activities.sessions.session_marks import LATE, drop_ended
from standfast.testing import ScriptedModel

CALL = call("post", "c1", text="hi")
clerk = Agent("clerk", tools=[poster([])])


@dataclass
class Sessions:
    """A session with a run whose activity is held, ended, and followed by another run that the model keeps waiting."""

    temporal: Temporal
    held: Hold
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    late: Any = "too late"

    async def answer(self, messages: list[Message], tools: Any) -> Any:
        if messages[-1].content == "next":
            self.asked.set()
            while not self.go_on.is_set():  # models are called on another loop
                await asyncio.sleep(0.01)
            return "next done"
        if messages[-1].role == "user":
            return asks_for(CALL)
        if isinstance(self.late, Exception):
            raise self.late
        return self.late

    async def first(self, how: str) -> Run:
        """Start a run, and end it when its activity is held."""
        timeout = timedelta(seconds=3) if how == "execution_timeout" else None
        given = {"message": "go", "session_id": self.temporal.session()}
        run = await self.temporal.start_raw(
            "clerk", given, id=f"clerk/{self.temporal.session()}", execution_timeout=timeout
        )
        await until(self.held.inside.is_set)
        if how == "terminate":
            await run.terminate()

        async def is_over() -> bool:
            return (await run.describe()).status is not WorkflowExecutionStatus.RUNNING

        await until(is_over)
        return run

    async def finish_in_process(self, store: Any) -> RunResult:
        """Do the same with an in-process run, which may begin once a worker has seen that the first run ended."""

        async def follow() -> RunResult:
            while True:
                try:
                    return await run(
                        clerk,
                        message="next",
                        llm=ScriptedModel(self.answer),
                        session_id=self.temporal.session(),
                        store=store,
                    )
                except SessionConflictError as error:
                    if "has a run in flight on Temporal" not in str(error):
                        raise
                    await asyncio.sleep(0.1)

        following = asyncio.create_task(follow())
        await until(lambda: self.asked.is_set() or following.done())
        self.held.go_on.set()
        await until(self.held.over.is_set)
        self.go_on.set()
        return await following

    async def finish(self) -> dict[str, Any]:
        """Start the next run, let the activity of the first one end before it writes, and return its result."""
        following = await self.temporal.start(clerk, "next")
        await until(self.asked.is_set)
        self.held.go_on.set()
        await until(self.held.over.is_set)
        self.go_on.set()
        ended = await result(following)
        await check_healthy(following)
        return ended


@asynccontextmanager
async def sessions(temporal: Temporal, *holds: Hold, store: Any = None, late: Any = "late") -> AsyncIterator[Sessions]:
    made, holding = Sessions(temporal, holds[0], late=late), Holding()
    holding.holds.update({(f"clerk/{temporal.session()}", hold.activity): hold for hold in holds})
    model = ScriptedModel(made.answer)
    plugin = StandfastPlugin(agents=[clerk], store=store or temporal.store, llm=model)
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], interceptors=[holding]):
        try:
            yield made
        finally:
            for hold in holds:
                hold.go_on.set()
            made.go_on.set()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_answer_of_a_terminated_run_does_not_break_the_next(
    temporal: Temporal, kind: str, request: pytest.FixtureRequest, folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener_of(kind, request, folder)()
    with caplog.at_level(logging.WARNING, "standfast"):
        async with sessions(temporal, Hold("call_model", after=1, beats=False), store=store) as session:
            await session.first("terminate")
            ended = await session.finish()
        written = shape(await store.load_messages(temporal.session()))
        await store.close()
    assert (ended["status"], ended["response"]) == ("complete", "next done")
    assert written == ["user go", "calls c1", "result c1", "user next", "assistant next done"]
    assert [line for line in caplog.messages if "this run has ended" in line]
    assert not [record for record in caplog.records if record.exc_info and "Completing activity" in record.message]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_answer_of_a_terminated_run_does_not_break_the_next_in_process(
    temporal: Temporal, kind: str, request: pytest.FixtureRequest, folder: Any
) -> None:
    open_store = opener_of(kind, request, folder)
    store, other = open_store(), open_store()
    async with sessions(temporal, Hold("call_model", after=2, beats=False), store=store, late="done") as session:
        await result(await temporal.start(clerk))
        await session.first("terminate")
        ended = await session.finish_in_process(other)
    written = shape(await other.load_messages(temporal.session()))
    await store.close()
    await other.close()
    assert (ended.status, ended.response) == ("complete", "next done")
    assert written == ["user go", "calls c1", "result c1", "assistant done", "user next", "assistant next done"]


@pytest.mark.parametrize("then", ["goes on", "is cancelled"])
async def test_a_run_that_is_reset_after_its_end_was_seen_writes_again(temporal: Temporal, then: str) -> None:
    async with sessions(temporal, Hold("post", is_done=True, beats=False)) as session:
        ended = await session.first("terminate")

        async def end_was_seen() -> bool:
            return all(work.ended_at is not None for work in await temporal.store.find_work(temporal.session()))

        await until(end_was_seen)
        session.held.go_on.set()
        again = await reset(temporal, ended, -1)
        if then == "goes on":
            assert (await result(again))["response"] == "late"
        else:
            await again.cancel()
            with pytest.raises(WorkflowFailureError):
                await result(again)
        await check_healthy(again)
    written = ["user go", "calls c1", "result c1", "assistant late"]
    assert shape(await temporal.messages()) == (written if then == "goes on" else written[:-1])


async def test_marks_of_ended_runs_are_removed_when_no_late_write_is_left(temporal: Temporal) -> None:
    old = datetime.now(UTC) - LATE - timedelta(seconds=1)
    ended = AtWork(session_id="s", namespace="default", workflow_id="a/s", journal_key="r").ended()
    for mark in (ended.model_copy(update={"session_id": "old", "journal_key": f"ended at {old}"}), ended):
        await temporal.store.begin_work(mark)
    await drop_ended(temporal.client, temporal.store, "")
    assert await temporal.store.find_work() == [ended]


@pytest.mark.parametrize("how", ["terminate", "execution_timeout"])
async def test_late_results_of_an_ended_run_do_not_break_the_next(temporal: Temporal, how: str) -> None:
    """The model raises, so the results of the calls before are written alone."""
    async with sessions(temporal, Hold("call_model", after=1, beats=False), late=ValueError("no")) as session:
        await session.first(how)
        assert (await session.finish())["response"] == "next done"
    written = shape(await temporal.messages())
    assert written == ["user go", "calls c1", "result c1", "user next", "assistant next done"]


async def test_a_late_first_answer_of_an_ended_run_does_not_create_the_session(temporal: Temporal) -> None:
    async with sessions(temporal, Hold("call_model", beats=False)) as session:
        await session.first("terminate")
        assert (await session.finish())["response"] == "next done"
    assert shape(await temporal.messages()) == ["user next", "assistant next done"]


async def test_a_late_message_to_an_ended_run_does_not_create_the_session(temporal: Temporal) -> None:
    asking, keeping = Hold("call_model", beats=False), Hold("standfast.keep", is_local=True, beats=False)
    async with sessions(temporal, keeping, asking) as session:
        run = await temporal.start(clerk)
        await until(asking.inside.is_set)
        await run.signal("message", {"text": "more"})
        await until(keeping.inside.is_set)
        await run.terminate()
        assert (await session.finish())["response"] == "next done"
    assert shape(await temporal.messages()) == ["user next", "assistant next done"]


async def test_an_ended_run_takes_no_session_from_the_next(temporal: Temporal) -> None:
    """The activity of a run that was reset marks its session before it asks the model."""
    async with sessions(temporal, Hold("call_model", after=2, beats=False), late="done") as session:
        run = await temporal.start(clerk)
        await result(run)
        again = await reset(temporal, run, -2)
        await until(session.held.inside.is_set)
        await again.terminate()
        assert (await session.finish())["response"] == "next done"
    assert shape(await temporal.messages())[-2:] == ["user next", "assistant next done"]


async def test_a_tool_that_ends_late_tells_the_next_run_what_it_did(temporal: Temporal) -> None:
    async with sessions(temporal, Hold("post", is_done=True, beats=False)) as session:
        await session.first("terminate")
        assert (await session.finish())["response"] == "next done"
    written = await temporal.messages()
    assert shape(written) == ["user go", "calls c1", "result c1", "user next", "assistant next done"]
