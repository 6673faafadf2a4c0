"""Stored data is deleted after Temporal has deleted the run, and not before: no returning run lacks it."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.commands import data, refused
from support.doubles import poster
from support.questions import ask
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, forget, pending, result, until
from support.transcripts import asks_for, call, tool_contents
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError

from standfast import Agent, DefinitionError, pipeline, tool
from standfast.runtime import restored_stores
from standfast.runtime.retention import Pruning
from standfast.stores import SQLiteStore
from standfast.temporal import StandfastPlugin, start_pipeline
from standfast.temporal.client.board.boards import kept_mark
from standfast.temporal.client.queues import retention
from standfast.temporal.client.queues.retention import Forgotten
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel

NOW = timedelta(seconds=0)


_REPLIES = "SELECT reply FROM model_replies WHERE run_key NOT IN (?, ?)"


def counts(store: SQLiteStore) -> dict[str, int]:
    """Return how many rows a store has of runs' data."""
    tables = ("tool_ledger", "model_replies", "partial_answers", "gate_decisions", "noted_runs", "agent_messages")
    with closing(sqlite3.connect(store._path)) as db:
        found = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
        found["model_replies"] -= db.execute(
            "SELECT count(*) FROM model_replies WHERE run_key IN (?, ?)", (restored_stores.NOTES, kept_mark("default"))
        ).fetchone()[0]  # of the store itself
    return {table: count for table, count in found.items() if count}


async def prune(temporal: Temporal, store: Any = None) -> Pruning:
    found = await retention.prune_once(temporal.client, store or temporal.store, NOW)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PAUSE", 0.0)


def posting(*texts: str) -> tuple[Agent, list[str], ScriptedModel]:
    effects: list[str] = []
    turns = [asks_for(call("post", f"p{number}", text=text)) for number, text in enumerate(texts)]
    return Agent("poster", tools=[poster(effects)]), effects, ScriptedModel([*turns, "done", "again", "more"])


async def test_records_of_a_run_go_when_the_server_has_forgotten_it_and_the_session_stays(temporal: Temporal) -> None:
    agent, effects, model = posting("a", "b")
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await result(run)
        before = counts(temporal.store)
        kept = await prune(temporal)
        assert (counts(temporal.store), kept.living) == (before, 2)  # the run, and the calls of its session
        await forget(temporal, run)
        gone = await prune(temporal)
        assert (gone.dropped.calls, gone.dropped.replies) == (before["tool_ledger"], before["model_replies"])
        assert counts(temporal.store) == {"agent_messages": before["agent_messages"]}
        assert (await temporal.run(agent, "and now?"))["response"] == "again"
    assert effects == ["a", "b"]


async def test_a_run_that_waits_keeps_everything_and_continues(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask, poster([])])
    script = [asks_for(call("post", "p1", text="x")), asks_for(call("ask", "a1", question="?")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await pending(run)
        before = counts(temporal.store)
        await prune(temporal)
        assert counts(temporal.store) == before
        await run.execute_update("answer", {"text": "Ada"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


async def test_a_run_that_is_reset_after_pruning_repeats_nothing(temporal: Temporal) -> None:
    texts = ["a", "b", "c", "d"]  # more calls than a run may fail at: it would be stuck if their results were gone
    agent, effects, model = posting(*texts)
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await result(run)
        await prune(temporal)
        assert (await result(await reset(temporal, run, 0)))["status"] == "complete"
    assert effects == texts
    assert tool_contents(await temporal.messages()) == [(f"p{n}", f"posted {text}") for n, text in enumerate(texts)]


@pytest.mark.slow
async def test_records_of_a_run_that_continued_as_new_stay_until_the_whole_chain_is_forgotten(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    agent = Agent("clerk", tools=[ask, poster([])])
    steps = [asks_for(call("post", f"p{number}", text="x")) for number in range(3)]
    async with temporal.worker(agent, llm=ScriptedModel([*steps, asks_for(call("ask", "a1", question="?")), "done"])):
        run = await temporal.start(agent)
        await pending(run)
        first, before = str(run.first_execution_run_id or run.result_run_id), counts(temporal.store)
        client = temporal.client
        assert (await client.get_workflow_handle(run.id).describe()).run_id != first
        await client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace="default", workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=first)
            )
        )

        async def is_gone() -> bool:
            try:
                await client.get_workflow_handle(run.id, run_id=first).describe()
            except RPCError:
                return True
            return False

        await until(is_gone)
        await prune(temporal)
        assert counts(temporal.store) == before
        await client.get_workflow_handle(run.id).execute_update("answer", {"text": "Ada"})
        ended = await client.get_workflow_handle(run.id, result_type=dict[str, Any]).result()
        assert ended["status"] == "complete"


@pytest.mark.slow
async def test_open_calls_of_a_session_are_settled_by_the_ledger_after_pruning(temporal: Temporal) -> None:
    agent, effects, _ = posting("a", "b")
    model = ScriptedModel([asks_for(call("post", "p0", text="a")), asks_for(call("post", "p1", text="b")), "done"])
    async with temporal.worker(agent, llm=model):
        await result(run := await temporal.start(agent))
    await forget(temporal, run)
    with closing(sqlite3.connect(temporal.store._path)) as db, db:  # as if it had died before it heard of p1
        db.execute("DELETE FROM agent_messages WHERE seq > 4")
        db.execute("UPDATE agent_sessions SET last_seq = 4")
    await prune(temporal)
    assert counts(temporal.store)["tool_ledger"] == 1
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        await temporal.run(agent, None)
    assert effects == ["a", "b"]
    assert tool_contents(await temporal.messages()) == [("p0", "posted a"), ("p1", "posted b")]


@pytest.mark.slow
async def test_records_of_a_deleted_session_go_when_its_runs_are_forgotten(temporal: Temporal) -> None:
    agent, _, model = posting("a")
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await result(run)
    await temporal.store.delete_session(temporal.session())
    await prune(temporal)
    assert counts(temporal.store) == {"tool_ledger": 2, "model_replies": 1, "noted_runs": 1}  # keys alone
    await forget(temporal, run)
    await prune(temporal)
    assert counts(temporal.store) == {}


async def test_records_of_a_pipeline_go_with_its_run(temporal: Temporal) -> None:
    effects: list[str] = []

    @tool
    async def note(text: str) -> str:
        """Note it."""
        effects.append(text)
        return text

    noting = pipeline("noting").step("note", run=note, input=lambda ctx: {"text": "x"}).build()
    async with temporal.worker(pipelines=[noting]):
        run = await start_pipeline(temporal.client, noting, run_key=temporal.session("k"), task_queue=temporal.name)
        await result(run)
    await prune(temporal)
    assert "tool_ledger" in counts(temporal.store)
    await forget(temporal, run)
    gone = await prune(temporal)
    assert (gone.dropped.calls, counts(temporal.store)) == (1, {"model_replies": 2})  # the list of run keys stays


# --- versions that did not note their runs ---


def unnoted(store: SQLiteStore) -> None:
    """Make a store one of a version that did not note its runs, migrated just now."""
    with closing(sqlite3.connect(store._path)) as db, db:
        db.execute("DELETE FROM noted_runs")
        db.execute("UPDATE store_identity SET timed_since = ?", (datetime.now(UTC).isoformat(),))
        db.execute("UPDATE model_replies SET kept_at = NULL")


async def test_runs_of_versions_that_did_not_note_them_are_left_to_the_command(temporal: Temporal) -> None:
    agent, effects, model = posting("a")
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await result(run)
        unnoted(temporal.store)
        before = counts(temporal.store)
        await prune(temporal)
        assert counts(temporal.store) == before
        path = temporal.store._path
        await until(lambda: _is_listed(temporal, run))
        found = await data(temporal, "store", "prune", "--store", path, "--older-than", "0s")
        assert (found["calls"], found["replies"], found["kept"]) == (0, 0, 2)
        assert counts(temporal.store) == before | {"noted_runs": 1}  # it was found, and is noted from now on
        unnoted(temporal.store)
        await forget(temporal, run)
        await data(temporal, "store", "prune", "--store", path, "--older-than", "0s")
        assert counts(temporal.store) == {"agent_messages": 4}
    assert effects == ["a"]


async def _is_listed(temporal: Temporal, run: Run) -> bool:
    return bool([one async for one in temporal.client.list_workflows(f"WorkflowId = '{run.id}'")])


async def test_a_session_of_a_version_that_did_not_note_its_runs_is_deleted_with_them(temporal: Temporal) -> None:
    agent, _, model = posting("a")
    async with temporal.worker(agent, llm=model):
        await temporal.run(agent, "one")
        await temporal.run(agent, "two")
    unnoted(temporal.store)
    await temporal.store.delete_session(temporal.session())
    with closing(sqlite3.connect(temporal.store._path)) as db:
        replies = [reply for (reply,) in db.execute(_REPLIES, (restored_stores.NOTES, kept_mark("default")))]
    assert replies == ['{"deleted":true}'] * 2


# --- the command, and the worker ---


async def test_the_command_counts_first_and_deletes_sessions_only_if_asked(temporal: Temporal) -> None:
    agent, _, model = posting("a", "b")
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await result(run)
    await forget(temporal, run)
    words = ("store", "prune", "--store", temporal.store._path, "--older-than", "0s")
    before = counts(temporal.store)
    asked = await data(temporal, *words, "--dry-run", "--sessions")
    assert (asked["calls"], asked["sessions"], asked["dry_run"], counts(temporal.store)) == (2, 1, True, before)
    assert (await data(temporal, *words[:-1], "90d"))["replies"] == 0
    assert (await data(temporal, *words))["sessions"] == 0
    assert counts(temporal.store) == {"agent_messages": before["agent_messages"]}
    assert (await data(temporal, *words, "--sessions"))["sessions"] == 1
    assert counts(temporal.store) == {}


async def test_the_command_deletes_nothing_if_the_server_cannot_be_asked(temporal: Temporal) -> None:
    agent, _, model = posting("a")
    async with temporal.worker(agent, llm=model):
        await temporal.run(agent)
    before = counts(temporal.store)
    words = ("store", "prune", "--store", temporal.store._path, "--older-than", "0s")
    assert "no namespace 'elsewhere'" in await refused(temporal, *words, "--namespace", "elsewhere")
    await refused(None, *words, "--address", "127.0.0.1:9")
    found = await data(None, *words, "--in-process", "--sessions")
    assert (found["calls"], found["replies"], found["sessions"]) == (0, 0, 0)
    assert '"90d"' not in (error := await refused(temporal, *words[:-1], "soon", code=2))
    assert "--older-than must be like" in error
    assert counts(temporal.store) == before


async def test_runs_of_another_namespace_stay(temporal: Temporal) -> None:
    agent, _, model = posting("a")
    async with temporal.worker(agent, llm=model):
        await temporal.run(agent)
    with closing(sqlite3.connect(temporal.store._path)) as db, db:
        db.execute("UPDATE noted_runs SET namespace = 'other', workflow_id = 'nobody'")
    before = counts(temporal.store)
    await prune(temporal)
    pruning = Pruning(temporal.store, datetime.now(UTC), Forgotten(temporal.client, temporal.store, {}))
    pruning.is_older_known = True
    await pruning.prune()
    assert counts(temporal.store) == before


async def test_a_worker_deletes_what_is_old_beside_its_work(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_FIRST", 0.1)
    monkeypatch.setattr(retention, "_EVERY", 0.1)
    agent, _, model = posting("a")
    async with temporal.worker(agent, llm=model, retention=0.001):
        run = await temporal.start(agent)
        await result(run)
        await forget(temporal, run)
        await until(lambda: counts(temporal.store) == {"agent_messages": 4})


async def test_one_worker_at_a_time_deletes(temporal: Temporal) -> None:
    await temporal.store.hold("standfast/retention")
    assert await retention.prune_once(temporal.client, temporal.store, NOW) is None
    await temporal.store.let_go("standfast/retention")


def test_a_retention_that_is_none_and_a_store_that_cannot_delete_are_refused(temporal: Temporal) -> None:
    class Another:
        durable = True

    for given, store in (("soon", temporal.store), ("90d", Another())):
        with pytest.raises(DefinitionError, match="retention"):
            StandfastPlugin(agents=[Agent("a")], store=store, llm=ScriptedModel([]), retention=given)
