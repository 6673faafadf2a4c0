"""A session exported from Temporal continues alone, since the run's later effects would happen twice."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.doubles import poster
from support.questions import ask
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, events, failure, pending, result, until
from support.transcripts import asks_for, call, shape
from temporalio.client import WorkflowExecutionStatus

from integration.local.test_tool_approvals import approve, posts, world
from standfast import (
    Agent,
    Approval,
    Checkpoint,
    InputError,
    Message,
    SessionAccessDeniedError,
    SessionConflictError,
    assert_complete,
    resume,
    run,
    sqlite_store,
)
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel

WHOLE = ["user go", "calls a1", "result a1", "calls p1", "result p1", "assistant done"]


async def _asks_and_posts(messages: Sequence[Message], tools: Any) -> Any:
    turn = sum(message.role == "assistant" for message in messages)
    return [asks_for(call("ask", "a1", question="Who?")), asks_for(call("post", "p1", text="hi")), "done"][turn]


def model() -> ScriptedModel:
    return ScriptedModel(_asks_and_posts)


def clerk() -> tuple[list[str], Agent]:
    """Return what was posted, and an agent that asks, posts, and is done."""
    effects: list[str] = []
    return effects, Agent("clerk", tools=[ask, poster(effects)])


async def go_on(temporal: Temporal, checkpoint: Checkpoint, session: str | None = None) -> Run:
    """Start a run from a checkpoint, as `standfast import` does."""
    return await start_agent(
        temporal.client, "clerk", checkpoint=checkpoint, session_id=session, task_queue=temporal.name
    )


async def terminated(handle: Run) -> None:
    await handle.terminate()
    await until(lambda: _status_is(handle, WorkflowExecutionStatus.TERMINATED))


async def export_and_terminate(temporal: Temporal, agent: Agent, **options: Any) -> tuple[Run, Checkpoint]:
    """Start a run, export it when it waits, and terminate it."""
    handle = await temporal.start(agent, **options)
    await pending(handle)
    exported = await temporal.people.export(handle.id)
    await terminated(handle)
    return handle, exported


async def timed_out(handle: Run) -> None:
    await until(lambda: _status_is(handle, WorkflowExecutionStatus.TIMED_OUT))


async def _status_is(handle: Run, status: WorkflowExecutionStatus) -> bool:
    return (await handle.describe()).status == status


async def test_an_export_has_what_the_user_said_to_the_run_and_nobody_has_answered(temporal: Temporal) -> None:
    """It continues with that, and not with the user's earlier wish."""
    _, agent = clerk()
    handle = await temporal.start(agent, "go")
    exporting = asyncio.create_task(temporal.people.export(handle.id))
    await until(lambda: _has_signal(handle))
    async with temporal.worker(agent, llm=model()):
        exported = await exporting
        await pending(handle)
        await check_healthy(handle)
        await terminated(handle)
    assert shape(exported.messages) == ["user go"]


async def _has_signal(handle: Run) -> bool:
    return any(event.HasField("workflow_execution_signaled_event_attributes") for event in await events(handle))


async def test_an_export_of_a_session_that_is_not_written_yet_begins_none_beside_it(temporal: Temporal) -> None:
    effects, agent = clerk()
    handle = await temporal.start(agent)
    exporting = asyncio.create_task(temporal.people.export(handle.id))
    await until(lambda: _has_signal(handle))
    goes = asyncio.Event()

    async def answers(messages: Sequence[Message], tools: Any) -> Any:
        await until(goes.is_set)
        return await _asks_and_posts(messages, tools)

    async with temporal.worker(agent, llm=ScriptedModel(answers)):
        exported = await exporting
        assert await temporal.store.load_session(temporal.session()) is None
        for session in (None, "beside"):
            with pytest.raises(SessionConflictError, match="in flight on Temporal"):
                await resume(agent, exported, llm=model(), store=temporal.store, session_id=session)
        error = await failure(await go_on(temporal, exported, temporal.session("beside")))
        assert (error.type, handle.id in error.message) == ("SessionConflictError", True)
        goes.set()
        await pending(handle)
        await temporal.people.answer(handle.id, "Ada")
        await result(handle)
    assert (effects, shape(await temporal.messages())) == (["hi"], WHOLE)


async def test_an_export_is_refused_while_its_run_is_in_flight(temporal: Temporal) -> None:
    effects, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        handle = await temporal.start(agent)
        await pending(handle)
        exported = await temporal.people.export(handle.id)
        with pytest.raises(SessionConflictError, match="in flight on Temporal"):
            await resume(agent, exported, "Ada", llm=model(), store=temporal.store)
        with pytest.raises(SessionConflictError, match="in flight on Temporal"):
            await resume(agent, exported, "Ada", llm=model(), store=temporal.store, session_id="beside")
        with pytest.raises(SessionConflictError, match="in flight"):
            await go_on(temporal, exported)
        error = await failure(await go_on(temporal, exported, temporal.session("beside")))
        assert (error.type, handle.id in error.message) == ("SessionConflictError", True)
        await temporal.people.answer(handle.id, "Ada")
        assert (await result(handle))["status"] == "complete"
    assert (effects, shape(await temporal.messages())) == (["hi"], WHOLE)


@pytest.mark.parametrize("again", ["in process", "on Temporal"])
async def test_an_export_of_a_run_that_continued_does_nothing_a_second_time(temporal: Temporal, again: str) -> None:
    effects, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        handle = await temporal.start(agent)
        await pending(handle)
        exported = await temporal.people.export(handle.id)
        await temporal.people.answer(handle.id, "Ada")
        await result(handle)
        if again == "on Temporal":
            assert (await result(await go_on(temporal, exported)))["response"] == "done"
        else:
            with pytest.raises(InputError, match="it was answered"):
                await resume(agent, exported, "Bob", llm=model(), store=temporal.store)
    assert (effects, shape(await temporal.messages())) == (["hi"], WHOLE)


async def _is_free(temporal: Temporal) -> bool:
    """Whether a worker has seen that the session is free again."""
    return all(work.ended_at is not None for work in await temporal.store.find_work(temporal.session()))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("end", [terminated, timed_out])
async def test_exports_of_a_run_that_was_cut_off_continue_in_its_session_and_once(
    temporal: Temporal, end: Callable[[Run], Any]
) -> None:
    effects, agent = clerk()
    options: Any = {"execution_timeout": timedelta(seconds=3)} if end is timed_out else {}
    async with temporal.worker(agent, llm=model()):
        handle = await temporal.start(agent, **options)
        await pending(handle)
        first, second = [await temporal.people.export(handle.id) for _ in range(2)]
        await end(handle)
        await until(lambda: _is_free(temporal))
        ended = assert_complete(await resume(agent, first, "Ada", llm=model(), store=temporal.store))
        assert (ended.session_id, ended.response) == (temporal.session(), "done")
        with pytest.raises(InputError, match="it was answered"):
            await resume(agent, second, "Ada", llm=model(), store=temporal.store)
    assert (effects, shape(await temporal.messages())) == (["hi"], WHOLE)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("task", [1, -1], ids=["to its beginning", "to its question"])
async def test_a_run_that_is_reset_after_its_export_has_gone_on_does_nothing_a_second_time(
    temporal: Temporal, task: int
) -> None:
    effects, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        handle, exported = await export_and_terminate(temporal, agent)
        await until(lambda: _is_free(temporal))
        assert_complete(await resume(agent, exported, "Ada", llm=model(), store=temporal.store))
        error = await failure(await reset(temporal, handle, task))
        assert error.type == "SessionConflictError", error
    assert (effects, shape(await temporal.messages())) == (["hi"], WHOLE)


async def test_an_export_of_a_gate_pays_once_whoever_continues_from_it(temporal: Temporal) -> None:
    posted, post = world(Approval())
    agent = Agent("clerk", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start(agent)
        await pending(handle)
        exported = await temporal.people.export(handle.id)
        with pytest.raises(SessionConflictError, match="in flight on Temporal"):
            await resume(agent, exported, llm=posts(), store=temporal.store, decisions=[approve()])
        await terminated(handle)
        await until(lambda: _is_free(temporal))
        with pytest.raises(InputError, match="start the session on Temporal again"):
            await resume(agent, exported, llm=posts(), store=temporal.store, decisions=[approve()])
        again = await go_on(temporal, exported)
        await pending(again)
        await temporal.people.decide(again.id, "c1", "approve", by="ada")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
        once_more = assert_complete(
            await resume(agent, exported.model_copy(update=DECIDED), llm=posts(), store=temporal.store)
        )
        assert once_more.response == "done"
    assert (posted, shape(await temporal.messages())) == (
        ["hi"],
        ["user go", "calls c1", "result c1", "assistant done"],
    )


DECIDED: dict[str, Any] = {"questions": None, "pending_tool_use_id": None}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("again", ["in process", "on Temporal"])
async def test_what_was_said_to_a_run_that_was_cut_off_before_it_answered_is_heard_once(
    temporal: Temporal, again: str
) -> None:
    _, agent = clerk()
    handle = await temporal.start(agent, "go")
    exporting = asyncio.create_task(temporal.people.export(handle.id))
    await until(lambda: _has_signal(handle))
    asked, down = asyncio.Event(), asyncio.Event()

    async def hangs(messages: Sequence[Message], tools: Any) -> Any:
        asked.set()
        await until(down.is_set)

    async with temporal.worker(agent, llm=ScriptedModel(hangs)):
        exported = await exporting
        await until(asked.is_set)
        await temporal.people.message(handle.id, "and more")
        await terminated(handle)
        down.set()
    says_done = ScriptedModel(["done"])
    if again == "in process":
        assert_complete(await resume(agent, exported, llm=says_done, store=temporal.store))
    else:
        async with temporal.worker(agent, llm=says_done):
            await result(await go_on(temporal, exported))
    assert sorted(shape(await temporal.messages())) == ["assistant done", "user and more", "user go"]


async def test_an_export_is_complete_in_itself_where_its_session_is_not(temporal: Temporal, tmp_path: Path) -> None:
    effects, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        _, exported = await export_and_terminate(temporal, agent)
    async with sqlite_store(tmp_path / "other.db") as other:
        ended = assert_complete(await resume(agent, exported, "Ada", llm=model(), store=other))
    assert (ended.session_id, effects) == (temporal.session(), ["hi"])


@pytest.mark.parametrize("again", ["in process", "on Temporal"])
async def test_an_export_is_refused_where_its_session_has_its_own_messages(
    temporal: Temporal, tmp_path: Path, again: str
) -> None:
    _, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        _, exported = await export_and_terminate(temporal, agent)
    async with sqlite_store(tmp_path / "other.db") as other:
        told = ScriptedModel(["hello"])
        await run(agent, message="hi", llm=told, store=other, session_id=temporal.session())
        if again == "in process":
            with pytest.raises(InputError) as refused:
                await resume(agent, exported, "Ada", llm=model(), store=other)
            why = str(refused.value)
        else:
            await temporal.move_queue()
            async with temporal.worker(agent, llm=model(), store=other):
                error = await failure(await go_on(temporal, exported))
            assert error.type == "InputError"
            why = error.message
        kept = shape(await other.load_messages(temporal.session()))
    assert why == f"Session {temporal.session()} has its own messages: give the checkpoint another session_id"
    assert kept == ["user hi", "assistant hello"]


async def test_an_export_of_a_tenants_session_is_not_gone_on_from_in_anothers(temporal: Temporal) -> None:
    _, agent = clerk()
    async with temporal.worker(agent, llm=model()):
        _, exported = await export_and_terminate(temporal, agent, tenant_id="acme")
        for tenant in (None, "other"):
            with pytest.raises(SessionAccessDeniedError):
                await resume(agent, exported, "Ada", llm=model(), store=temporal.store, tenant_id=tenant)


async def test_an_export_without_a_signature_asks_in_its_session_only_about_what_is_not_decided(
    temporal: Temporal,
) -> None:
    posted, post = world(Approval())
    agent = Agent("clerk", tools=[post])
    async with temporal.worker(agent, llm=posts("one", "two")):
        handle = await temporal.start(agent)
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada", edit={"text": "TWO"})
        exported = await temporal.people.export(handle.id)
        assert exported.signature is None
        await terminated(handle)
        await until(lambda: _is_free(temporal))
        again = await go_on(temporal, exported)
        assert [item["name"] for item in await pending(again)] == ["c1"]
        await temporal.people.decide(again.id, "c1", "approve", by="bob")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert posted == ["one", "TWO"]
