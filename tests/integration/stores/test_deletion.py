"""People delete sessions, except during a run; data of in-process runs is pruned."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done, refused
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    Approval,
    SessionConflictError,
    SessionNotFoundError,
    memory_store,
    pipeline,
    run,
    run_pipeline,
    sqlite_store,
    tool,
)
from standfast.runtime.retention import Pruning, delete_session, nobody_knows
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

SECRET = "Ada Lovelace"


@tool(approval=Approval(message="Charge?"))
async def charge(who: str) -> str:
    """Charge somebody."""
    return f"charged {who}"


clerk = Agent("clerk", tools=[charge])


async def decided(store: Any, session_id: str = "s") -> None:
    """Have a session with a call that someone has let through, with changed arguments."""
    turns = [asks_for(call("charge", "c1", who=SECRET)), f"charged {SECRET}"]
    model = ScriptedModel(turns)
    asked = await run(clerk, message=f"charge {SECRET}", session_id=session_id, store=store, llm=model)
    gate = {"gate": asked.approvals[0].gate, "decision": "approve", "by": "bob", "comment": SECRET}
    gate |= {"digest": asked.approvals[0].digest, "edit": {"who": f"{SECRET} II"}}
    await run(clerk, session_id=session_id, store=store, llm=model, decisions=[gate])


def texts(path: Path) -> set[str]:
    """Return the tables that have the secret."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table for table in tables for row in db.execute(f"SELECT * FROM {table}") if SECRET in str(row)}


async def test_the_command_deletes_a_session_and_says_who_did(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await decided(store)
        await decided(store, "other")
    assert texts(path) == {"agent_messages", "gate_decisions"}
    assert "Deleted session s" in await done(None, "sessions", "s", "--delete", "--store", str(path), "--by", "eve")
    assert "no session 's'" in await refused(None, "sessions", "s", "--delete", "--store", str(path))
    async with sqlite_store(path) as store:
        rows = await store.load_decisions("clerk/s")
        assert [(row.decision, row.by, row.outcome) for row in rows] == [
            ("delete", "eve", "intended"),
            ("delete", "eve", "done"),
        ]
        assert [session.id for session in await store.list_sessions()] == ["other"]
        assert await store.load_decisions("clerk/other") != []
    await done(None, "sessions", "other", "--delete", "--store", str(path))
    assert texts(path) == set()


async def test_decisions_of_a_deleted_session_are_kept_without_texts_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await decided(store)
    await done(None, "sessions", "s", "--delete", "--keep-decisions", "--store", str(path))
    async with sqlite_store(path) as store:
        rows = [row for row in await store.load_decisions("clerk/s") if row.decision != "delete"]
    assert [(row.decision, row.by, row.gate, row.comment, row.edit) for row in rows] == [
        ("approve", "bob", "c1", None, None)
    ]
    assert texts(path) == set()


@pytest.mark.parametrize("words", [("--delete",), ("s", "--keep-decisions")], ids=" ".join)
async def test_the_command_says_what_it_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    async with sqlite_store(path := tmp_path / "a.db") as store:
        await decided(store)
    await refused(None, "sessions", *words, "--store", str(path), code=2)


async def test_a_session_that_a_run_is_at_work_on_is_not_deleted(store: SQLiteStore) -> None:
    async def meanwhile(messages: Any, tools: Any, **settings: Any) -> Any:
        with pytest.raises(SessionConflictError, match="Session s has a run in flight"):
            await delete_session(store, "s")
        return {"text": "done"}

    class Model:
        chat = staticmethod(meanwhile)

    await run(Agent("a"), message="go", session_id="s", store=store, llm=Model())
    assert len(await store.load_messages("s")) == 2
    await delete_session(store, "s")
    with pytest.raises(SessionNotFoundError):
        await delete_session(store, "s")


async def test_a_session_in_memory_is_deleted_too() -> None:
    store = memory_store()
    found = await run(Agent("a"), message="go", store=store, llm=ScriptedModel(["done"]))
    await delete_session(store, str(found.session_id))
    assert await store.list_sessions() == []


async def pruned(store: SQLiteStore, age: timedelta = timedelta(), **options: Any) -> Pruning:
    pruning = Pruning(store, datetime.now(UTC) - age, nobody_knows, is_older_known=True, **options)
    await pruning.prune()
    return pruning


async def test_what_pipelines_in_process_have_kept_is_pruned_when_it_is_old_and_nobody_runs_them(
    store: SQLiteStore,
) -> None:
    @tool
    async def note(text: str) -> str:
        """Note it."""
        return text

    noting = pipeline("noting").step("note", run=note, input=lambda ctx: {"text": SECRET}).build()
    for key in ("a", "b", "b-2"):
        await run_pipeline(noting, input=None, run_key=key, store=store)
    assert (await pruned(store, timedelta(days=1))).dropped.replies == 0
    await store.hold("noting/b")
    found = await pruned(store)
    assert (found.living, found.dropped.replies > 0) == (1, True)
    left = {key.partition("/steps/")[0] for key in await store.list_records() if "/steps/" in key}
    assert left == {"noting/b"}
    await store.let_go("noting/b")
    await pruned(store)
    assert [key for key in await store.list_records() if "/steps/" in key] == []


async def test_the_command_prunes_sessions_of_runs_in_process(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await decided(store)
        await store.hold("held")
        await run(Agent("a"), message="go", session_id="s2", store=store, llm=ScriptedModel(["done"]))
        words = ("store", "prune", "--in-process", "--store", str(path), "--older-than")
        assert (await data(None, *words, "1d", "--sessions"))["sessions"] == 0
        await store.hold("s2")
        asked = await data(None, *words, "0s", "--sessions", "--dry-run")
        assert (asked["sessions"], asked["kept"], asked["bytes"] > 0) == (1, 1, True)
        assert len(await store.list_sessions()) == 2
        assert "Deleted:" in await done(None, *words, "0s", "--sessions")
        assert [session.id for session in await store.list_sessions()] == ["s2"]
        await store.let_go("s2")
    assert texts(path) == set()
