"""A deleted session leaves no text in its store, and no returning run repeats its effects."""

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from support.doubles import poster
from support.questions import ask
from support.resets import resets
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result, until
from support.transcripts import asks_for, call, shape
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ActivityError, ApplicationError

from standfast import Agent, Message, tool
from standfast.testing import ScriptedModel

SECRET = "Ada Lovelace"


def texts(temporal: Temporal) -> list[str]:
    """Return every row of the store that has the secret, by table."""
    found = []
    with sqlite3.connect(temporal.store._path) as db:
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (table,) in tables:
            found += [f"{table} {row}" for row in db.execute(f"SELECT * FROM {table}") if SECRET in str(row)]
    db.close()
    return found


async def refusal(run: Run) -> ApplicationError:
    """Return why a run has failed, or one of its activities."""
    with pytest.raises(WorkflowFailureError) as failed:
        await result(run)
    cause = failed.value.cause
    error = cause.cause if isinstance(cause, ActivityError) else cause
    assert isinstance(error, ApplicationError), error
    return error


def greeter(effects: list[str]) -> tuple[Agent, ScriptedModel]:
    def answer(messages: Sequence[Message], tools: Any) -> Any:
        if messages[-1].role == "tool":
            return f"Greeted {SECRET}"
        return asks_for(call("post", "p1", text=f"Hello {SECRET}"))

    return Agent("poster", tools=[poster(effects)]), ScriptedModel(answer)


async def test_a_run_of_a_deleted_session_that_is_reset_to_any_task_repeats_nothing(temporal: Temporal) -> None:
    effects: list[str] = []
    agent, model = greeter(effects)
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent, f"greet {SECRET}")
        await result(run)
        assert {row.split()[0] for row in texts(temporal)} == {"agent_messages", "model_replies", "tool_ledger"}
        asked = len(model.calls)
        await temporal.store.delete_session(temporal.session())
        assert texts(temporal) == []
        async for again in resets(temporal, run):
            error = await refusal(again)
            assert (error.type, "was deleted" in error.message) == ("SessionConflictError", True)
            await check_healthy(again)
        assert texts(temporal) == []
    assert (effects, len(model.calls)) == ([f"Hello {SECRET}"], asked)


async def test_a_run_after_another_worker_has_come_finds_that_its_session_was_deleted(temporal: Temporal) -> None:
    effects: list[str] = []
    agent, model = greeter(effects)
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent, f"greet {SECRET}")
        await result(run)
    await temporal.store.delete_session(temporal.session())
    async with temporal.worker(agent, llm=model):  # which remembers nothing of it
        async for again in resets(temporal, run):
            assert (await refusal(again)).type == "SessionConflictError"
        assert texts(temporal) == []
        assert (await temporal.run(agent, "greet again"))["status"] == "complete"
    assert effects == [f"Hello {SECRET}"] * 2
    assert shape(await temporal.messages()) == [
        "user greet again",
        "calls p1",
        "result p1",
        f"assistant Greeted {SECRET}",
    ]


async def test_a_run_that_waits_when_its_session_is_deleted_ends_and_leaves_no_text(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask])
    model = ScriptedModel([asks_for(call("ask", "a1", question=f"Is it {SECRET}?")), "done"])
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent, f"find {SECRET}")
        await pending(run)
        await temporal.store.delete_session(temporal.session())
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("answer", {"text": SECRET})
        assert (await failure(run)).type == "SessionConflictError"
        await check_healthy(run)
    assert texts(temporal) == []


class Slow:
    """A tool, or a model, that returns when it is let go."""

    def __init__(self) -> None:
        self.began, self.may_return, self.effects = threading.Event(), threading.Event(), 0

        @tool
        async def send() -> str:
            """Send it."""
            self.effects += 1
            await self.wait()
            return f"sent to {SECRET}"

        self.tool = send

    async def wait(self) -> None:
        self.began.set()
        while not self.may_return.is_set():
            await asyncio.sleep(0.01)

    async def ends_after_deletion(self, temporal: Temporal, run: Run) -> None:
        await until(self.began.is_set)
        await temporal.store.delete_session(temporal.session())
        self.may_return.set()
        assert (await refusal(run)).type == "SessionConflictError"
        await check_healthy(run)
        assert texts(temporal) == []


async def test_a_tool_that_runs_when_its_session_is_deleted_leaves_no_result(temporal: Temporal) -> None:
    slow = Slow()
    agent = Agent("a", tools=[slow.tool])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("send", "c1")), "done"])):
        await slow.ends_after_deletion(temporal, await temporal.start(agent, f"write to {SECRET}"))
    assert slow.effects == 1


async def test_calls_that_have_not_begun_when_their_session_is_deleted_are_not_run(temporal: Temporal) -> None:
    slow, effects = Slow(), list[str]()
    agent = Agent("a", tools=[slow.tool, poster(effects)])
    turn = asks_for(call("send", "c1"), call("post", "p1", text=SECRET))  # one after the other
    async with temporal.worker(agent, llm=ScriptedModel([turn, "done"])):
        await slow.ends_after_deletion(temporal, await temporal.start(agent, f"write to {SECRET}"))
    assert (slow.effects, effects) == (1, [])


async def test_a_model_that_answers_when_its_session_is_deleted_leaves_no_answer(temporal: Temporal) -> None:
    slow = Slow()

    class Thinking:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
            if messages[-1].role == "tool":
                await slow.wait()
            return asks_for(call("look", "c1")) if messages[-1].role == "user" else f"It was {SECRET}"

    @tool(safe_to_retry=True)
    async def look() -> str:
        """Look."""
        return "there"

    agent = Agent("a", tools=[look])
    async with temporal.worker(agent, llm=Thinking()):
        await slow.ends_after_deletion(temporal, await temporal.start(agent, f"who was {SECRET}?"))


async def test_agents_that_were_called_are_deleted_with_their_caller(temporal: Temporal) -> None:
    writer = Agent("writer", model="writer")
    caller = Agent("boss", model="boss", tools=[writer])

    def model(name: str) -> ScriptedModel:
        if name == "writer":
            return ScriptedModel(lambda messages, tools: f"Dear {SECRET}")
        return ScriptedModel([asks_for(call("writer", "w1", message=f"to {SECRET}")), "sent"])

    models = {name: model(name) for name in ("writer", "boss")}
    async with temporal.worker(caller, writer, llm=lambda name: models[name]):
        await temporal.run(caller, "write")
        assert len(await temporal.store.list_sessions()) == 2
        await temporal.store.delete_session(temporal.session())
    assert (await temporal.store.list_sessions(), texts(temporal)) == ([], [])
