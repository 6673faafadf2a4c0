"""A store that is locked, missing or newer in the middle of a run: the run waits, loses nothing, and continues."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from support.doubles import echo, poster
from support.resets import reset
from support.stores import Refusing
from support.temporal_runs import (
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    failure,
    pending,
    result,
    until,
)
from support.transcripts import asks_for, call, shape, tool_contents
from temporalio.client import WorkflowUpdateFailedError

from standfast import Agent, StoreError, sqlite_store, tool
from standfast.stores import SQLiteStore
from standfast.stores.protocol import RunningCall
from standfast.testing import ScriptedModel


class Lock:
    """A writer that has the database of a store for itself, as a backup or another program would."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def __enter__(self) -> "Lock":
        self._connection.execute("BEGIN EXCLUSIVE")
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def path_of(temporal: Temporal) -> Path:
    return Path(temporal.store._path)


async def test_a_run_waits_for_a_database_that_is_locked_for_seconds(temporal: Temporal) -> None:
    effects: list[str] = []
    locked = threading.Event()

    @tool
    async def post(text: str) -> str:
        """Post a text while the database is locked."""
        effects.append(text)
        lock.__enter__()
        locked.set()
        threading.Timer(3.0, lock.__exit__).start()
        return text

    agent = Agent("poster", tools=[post])
    model = ScriptedModel([asks_for(call("post", "p1", text="x")), "done"])
    async with temporal.worker(agent, llm=model):
        lock = Lock(path_of(temporal))
        run = await temporal.start(agent)
        ended = await result(run)
        await check_healthy(run)
    assert locked.is_set()
    assert (ended["status"], effects, len(model.calls)) == ("complete", ["x"], 2)
    assert shape(await temporal.messages()) == ["user go", "calls p1", "result p1", "assistant done"]


@pytest.mark.parametrize("when", ["before the start", "during a call", "while a question is open", "at the end"])
async def test_a_run_waits_for_a_store_that_is_away(temporal: Temporal, when: str) -> None:
    store, effects = Refusing(temporal.store), list[str]()

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        if when == "during a call":
            store.refuses = None
        return text

    def answer(messages: Any, tools: Any) -> Any:
        if any(message.tool_call_id == "c1" for message in messages):
            if when == "at the end" and not store.refused:
                store.refuses = None
            return "done"
        return asks_for(call("post", "p1", text="x"), call("ask", "c1", question="?"))

    model = ScriptedModel(answer)
    agent = Agent("poster", tools=[post, *clerk.tools])
    async with temporal.worker(agent, llm=model, store=store):
        if when == "before the start":
            store.refuses = None
        run = await temporal.start(agent)
        if when in ("before the start", "during a call"):
            await _comes_back(store)
        await pending(run)
        if when == "while a question is open":
            store.refuses = None
        answered = asyncio.create_task(run.execute_update("answer", {"text": "Ada", "tool_call_id": "c1"}))
        if when in ("while a question is open", "at the end"):
            await _comes_back(store)
        assert (await answered)["accepted"]
        ended = await result(run)
        await check_healthy(run)
    assert (ended["status"], effects, len(model.calls)) == ("complete", ["x"], 2)
    assert sorted(tool_contents(await temporal.messages())) == [("c1", "Ada"), ("p1", "x")]


async def _comes_back(store: Refusing) -> None:
    """Let the store be away until it was needed."""
    await until(lambda: len(store.refused) >= 2)
    store.refuses = set()


async def test_a_run_whose_session_is_deleted_in_the_meantime_ends_and_repeats_nothing(temporal: Temporal) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects), *clerk.tools])
    script: list[Any] = [asks_for(call("post", "p1", text="x"), call("ask", "a1", question="?")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.store.delete_session(temporal.session())
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("answer", {"text": "Ada"})
        assert "the run has ended" in str(refused.value.cause)
        error = await failure(run)
        assert error.type == "SessionConflictError"
        await check_healthy(run)
    assert effects == ["x"]


async def _migrated_under_a_worker(store: Any, path: Path) -> sqlite3.Connection:
    """Have a newer version migrate a store, whose worker opens it again then."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("INSERT INTO standfast_schema (version) SELECT max(version) + 1 FROM standfast_schema")
    await store.close()
    return database


async def test_a_store_of_a_newer_schema_is_not_touched_and_the_run_waits(temporal: Temporal, tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    helper, store = Agent("helper"), Refusing(sqlite_store(path))
    async with asyncio.timeout(60), temporal.worker(helper, llm=ScriptedModel(["done"]), store=store):
        database = await _migrated_under_a_worker(store, path)
        (newest,) = database.execute("SELECT max(version) FROM standfast_schema WHERE oldest_reader > 0").fetchone()
        run = await temporal.start(helper)
        await until(lambda: any("written by a newer standfast" in error for error in store.errors))
        assert database.execute("SELECT count(*) FROM agent_sessions").fetchone() == (0,)
        database.execute("DELETE FROM standfast_schema WHERE version > ?", (newest,))
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    database.close()
    await store.close()


async def test_a_store_that_is_read_from_a_second_worker_has_what_the_first_wrote(temporal: Temporal) -> None:
    model = ScriptedModel(ask_once)
    async with temporal.worker(clerk, llm=model):
        run = await temporal.start(clerk)
        await pending(run)
    async with sqlite_store(path_of(temporal)) as other, temporal.worker(clerk, llm=model, store=other):
        await run.execute_update("answer", {"text": "Ada"})
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


async def test_a_run_continues_with_a_worker_that_remembers_nothing_of_it(temporal: Temporal) -> None:
    agent = Agent("helper", tools=[echo, *clerk.tools])
    script: list[Any] = [
        *(asks_for(call("echo", f"c{n}", text="x")) for n in range(3)),
        asks_for(call("ask", "a1", question="?")),
    ]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await pending(run)
    later = ScriptedModel([asks_for(call("echo", "c1", text="again")), "done"])
    async with sqlite_store(path_of(temporal)) as other, temporal.worker(agent, llm=later, store=other):
        await run.execute_update("answer", {"text": "Ada"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert [len(asked.messages) for asked in later.calls] == [10, 12]
    ids = [requested.id for message in await temporal.messages() for requested in message.tool_calls or ()]
    assert len(set(ids)) == 5  # an id that the first worker saw is not used again


async def test_a_worker_stops_while_a_run_waits_for_its_store(temporal: Temporal, tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    helper, store = Agent("helper"), Refusing(sqlite_store(path))
    async with asyncio.timeout(40):
        async with temporal.worker(helper, llm=ScriptedModel(["done"]), store=store):
            (await _migrated_under_a_worker(store, path)).close()
            run = await temporal.start(helper)
            await until(lambda: len(store.errors) > 3)
        await run.terminate()
    await store.close()


class LateToLetIn(SQLiteStore):
    """A store that others lock just when a worker begins: it adds no worker at first."""

    refused = 0

    async def add_worker(self, name: str) -> None:
        if self.refused < 2:
            self.refused += 1
            raise StoreError("the database is locked")
        await super().add_worker(name)


async def test_a_call_that_begins_before_its_worker_is_known_is_not_taken_for_one_of_the_dead(
    temporal: Temporal,
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @tool
    def pay() -> str:
        """Pay, and take long."""
        inside.set()
        go_on.wait(30)
        return "paid"

    agent = Agent("payer", tools=[pay])
    model = ScriptedModel([asks_for(call("pay", "c1")), "done"])
    async with LateToLetIn(path_of(temporal)) as store, temporal.worker(agent, llm=model, store=store):
        handle = await temporal.start(agent)
        await until(inside.is_set)
        (running,) = await temporal.store.running_calls()
        assert running.worker in await temporal.store.list_workers()
        assert not await temporal.store.hold(running.worker)  # it lives
        go_on.set()
        assert (await result(handle))["status"] == "complete"


@pytest.mark.parametrize("first_look", [None, StoreError("the store is away"), AttributeError("unforeseen")], ids=str)
async def test_a_call_whose_end_the_store_did_not_take_is_not_taken_to_run_for_ever(
    temporal: Temporal, first_look: Exception | None
) -> None:
    class ForgetsOneEnd(SQLiteStore):
        refuses = 0
        looks = 0

        async def running_calls(self) -> list[RunningCall]:
            self.looks += 1
            if self.looks == 1 and first_look is not None:
                raise first_look
            return await super().running_calls()

        async def end_call(self, owner: str) -> None:
            if self.refuses:
                self.refuses -= 1
                raise StoreError("the store is away")
            await super().end_call(owner)

    agent, path = Agent("payer", tools=[poster([])]), path_of(temporal)
    model = ScriptedModel([asks_for(call("post", "c1", text="hi")), "done"])
    async with ForgetsOneEnd(path) as store, temporal.worker(agent, llm=model, store=store):
        first = await temporal.start(agent)
        await result(first)
        store.refuses = 1  # when the call is dispatched again, and has its outcome already
        again = await reset(temporal, first, 1)
        assert (await result(again))["status"] == "complete"
        assert not store.refuses

        async def none_runs() -> bool:
            return store.looks > 1 and not await store.running_calls()

        await until(none_runs)
