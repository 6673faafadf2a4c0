"""Workers of one task queue with different stores: no session begins twice, and a run waits for its store."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands import standfast
from support.doubles import echo
from support.postgres import PostgresServer, new_schema
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    pending,
    result,
    until,
    waiting,
)
from support.transcripts import asks_for, call, shape
from temporalio.client import WorkflowFailureError

from standfast import Agent, Approval, Loop, SessionStoreError, pipeline, sqlite_store
from standfast.stores import SQLiteStore
from standfast.temporal import start_pipeline
from standfast.temporal.client.board.boards import kept_mark
from standfast.temporal.client.queues import queue_stores
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel

helper = Agent("helper")
TWO_RUNS = ["user one", "assistant done", "user two", "assistant done"]


def done(*_: Any) -> str:
    return "done"


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with sqlite_store(tmp_path / "other.db") as store:
        await store.list_sessions()  # makes it
        yield store


def rows(store: SQLiteStore) -> dict[str, int]:
    """Return the number of rows that runs and workers have left in each table of a store."""
    with contextlib.closing(sqlite3.connect(store._path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
        looked = database.execute("SELECT count(*) FROM model_replies WHERE run_key = ?", (kept_mark("default"),))
        found["model_replies"] -= looked.fetchone()[0]  # its workers look after its board
    ours = ("standfast_schema", "store_identity", "workers")
    return {name: count for name, count in found.items() if count and name not in ours and "sqlite" not in name}


async def waits_for_a_worker(run: Run) -> dict[str, Any] | None:
    return next((item for item in await waiting(run) if item["kind"] == "worker"), None)


# --- a queue has one store ---


async def test_a_worker_with_another_store_is_refused_and_no_session_begins_again(
    temporal: Temporal, other: SQLiteStore
) -> None:
    sessions = [f"s{number}" for number in range(8)]
    async with temporal.worker(helper, llm=ScriptedModel(done)):
        for session in sessions:
            await temporal.run(helper, "one", session=session)
        refused = None
        try:
            async with (await temporal.elsewhere()).worker(helper, llm=ScriptedModel(done), store=other):
                for session in sessions:
                    await temporal.run(helper, "two", session=session)
        except SessionStoreError as error:
            refused = str(error)
            for session in sessions:
                await temporal.run(helper, "two", session=session)
    assert [shape(await temporal.messages(session)) for session in sessions] == [TWO_RUNS] * len(sessions)
    assert rows(other) == {}
    assert refused is not None
    assert await temporal.store.identity() in refused
    assert await other.identity() in refused
    assert f"temporal workflow terminate --workflow-id standfast-store/{temporal.name}" in refused


async def test_a_session_does_not_begin_again_either_when_no_other_worker_runs(
    temporal: Temporal, other: SQLiteStore
) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(done)):
        await temporal.run(helper, "one")
    with pytest.raises(SessionStoreError):
        async with temporal.worker(helper, llm=ScriptedModel(done), store=other):
            await temporal.run(helper, "two")
    assert rows(other) == {}


async def test_of_workers_that_start_at_once_those_with_one_store_are_taken(temporal: Temporal, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(sqlite_store(tmp_path / f"{number % 2}.db")) for number in range(6)]
        workers = [
            (await temporal.elsewhere()).worker(helper, llm=ScriptedModel(done), store=store) for store in stores
        ]
        taken = await asyncio.gather(*map(_is_taken, workers))
        assert sorted({*taken[::2], *taken[1::2]}) == [False, True]
        assert len({*taken[::2]}) == len({*taken[1::2]}) == 1


async def _is_taken(worker: Any) -> bool:
    try:
        async with worker:
            return True
    except SessionStoreError:
        return False


async def test_stores_of_two_schemas_are_two_stores(temporal: Temporal, postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as one, postgres.store() as two:
        async with temporal.worker(helper, llm=ScriptedModel(done), store=one):
            await temporal.run(helper, "one")
            with pytest.raises(SessionStoreError) as refused:
                async with (await temporal.elsewhere()).worker(helper, llm=ScriptedModel(done), store=two):
                    await temporal.run(helper, "two")
            async with (
                postgres.store(schema) as same,
                (await temporal.elsewhere()).worker(helper, llm=ScriptedModel(done), store=same),
            ):
                await temporal.run(helper, "two")
        assert shape(await one.load_messages(temporal.session())) == TWO_RUNS
        assert await two.list_sessions() == []
        assert {await one.identity() in str(refused.value), await two.identity() in str(refused.value)} == {True}


async def test_a_copy_that_takes_the_place_of_a_store_has_its_queue(temporal: Temporal, tmp_path: Path) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(done)):
        await temporal.run(helper, "one")
    with (
        contextlib.closing(sqlite3.connect(temporal.store._path)) as original,
        contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
    ):
        original.backup(copy)
    async with (
        sqlite_store(tmp_path / "copy.db") as store,
        temporal.worker(helper, llm=ScriptedModel(done), store=store),
    ):
        await temporal.run(helper, "two")
        assert shape(await store.load_messages(temporal.session())) == TWO_RUNS


# --- a queue that was moved ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("how", ["a question", "after it has gone on as new", "cancelled"])
async def test_a_run_waits_in_sight_for_a_worker_with_its_store(
    temporal: Temporal, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    agent, llm = clerk, ScriptedModel(ask_once)
    if how == "after it has gone on as new":
        monkeypatch.setattr(agent_workflows, "STEPS", 3)
        agent = Agent("clerk", tools=[echo, *clerk.tools], loop=Loop(max_iterations=20))
        steps = [asks_for(call("echo", f"e{number}", text="x")) for number in range(4)]
        llm = ScriptedModel([*steps, asks_for(call("ask", "c1", question="Who?")), "done"])
    async with temporal.worker(agent, llm=llm):
        run = await temporal.start(agent)
        await pending(run)
    before = await temporal.messages()
    await temporal.move_queue()
    async with temporal.worker(agent, llm=llm, store=other):
        if how == "cancelled":
            await run.cancel()
        else:
            await run.signal("answer", {"text": "Ada"})
        shown = await until(partial(waits_for_a_worker, run))
        assert await other.identity() in shown["message"]
        assert "opened with another one" in shown["message"]
        await temporal.move_queue()
        assert (await temporal.messages(), rows(other)) == (before, {})
        async with (await temporal.elsewhere()).worker(agent, llm=llm):
            if how == "cancelled":
                with pytest.raises(WorkflowFailureError):
                    await result(run)
            else:
                assert (await result(run))["response"] == "done"
    await check_healthy(run)
    assert rows(other) == {}


async def test_a_decision_at_a_gate_is_recorded_by_a_worker_with_the_store_of_its_run(
    temporal: Temporal, other: SQLiteStore
) -> None:
    line = pipeline("line").step("ok", approval=Approval()).build()
    async with temporal.worker(pipelines=[line]):
        run = await start_pipeline(temporal.client, line, run_key=temporal.session(), task_queue=temporal.name)
        (gate,) = await pending(run)
    await temporal.move_queue()
    async with temporal.worker(pipelines=[line], store=other):
        await run.signal("approve", {"gate": gate["name"], "by": "ada"})
        await until(partial(waits_for_a_worker, run))
        assert rows(other) == {}
        await temporal.move_queue()
        async with (await temporal.elsewhere()).worker(pipelines=[line]):
            assert (await result(run))["status"] == "complete"
    await check_healthy(run)
    assert rows(other) == {}


@pytest.mark.slow
async def test_a_worker_whose_queue_was_given_to_another_store_begins_no_runs(
    temporal: Temporal, other: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_stores, "LOOK_EVERY", 0.05)
    line = pipeline("line").step("ok", approval=Approval()).build()
    async with temporal.worker(helper, pipelines=[line], llm=ScriptedModel(done)) as worker:
        plugin = worker.config()["plugins"][0]
        await temporal.move_queue()
        await queue_stores.check_queue(temporal.client, temporal.name, other)
        await until(lambda: plugin._host.misplaced)
        runs = [
            await temporal.start(helper, "one"),
            await start_pipeline(temporal.client, line, run_key=temporal.session("p"), task_queue=temporal.name),
        ]
        for run in runs:
            shown = await until(partial(waits_for_a_worker, run))
            assert await other.identity() in shown["message"]
        assert await temporal.messages() == []
        async with (await temporal.elsewhere()).worker(helper, pipelines=[line], llm=ScriptedModel(done), store=other):
            assert (await result(runs[0]))["response"] == "done"
            await until(partial(_is_at_its_gate, runs[1]))
    assert shape(await other.load_messages(temporal.session())) == ["user one", "assistant done"]


async def _is_at_its_gate(run: Run) -> bool:
    return [item["kind"] for item in await waiting(run)] == ["approval"]


# --- doctor ---


async def test_the_doctor_says_which_store_the_workers_have(temporal: Temporal, other: SQLiteStore) -> None:
    async def found(*store: str) -> dict[str, Any]:
        words = ("doctor", "--task-queue", temporal.name, "-o", "json", *store)
        said = json.loads((await standfast(temporal, *words)).stdout)
        return next(row for row in said if row["check"] == "their store")

    assert "none is recorded" in (await found())["found"]
    async with temporal.worker(helper, llm=ScriptedModel(done)):
        identity = await temporal.store.identity()
        everyone = f"all workers of queue '{temporal.name}' have the store {identity}"
        assert await found() == {"check": "their store", "ok": True, "found": everyone}
        ours = await found("--store", temporal.store._path)
        assert ours == {"check": "their store", "ok": True, "found": f"{everyone}, which is {temporal.store._path}"}
        wrong = await found("--store", other._path)
        assert not wrong["ok"]
        assert f"{other._path} is a different one, {await other.identity()}" in wrong["found"]
        assert f"temporal workflow terminate --workflow-id standfast-store/{temporal.name}" in wrong["found"]
