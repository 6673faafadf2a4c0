"""A store restored from a backup is older than its runs: they report it, and no effect is repeated."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done
from support.postgres import PostgresServer, new_schema
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result, until, waiting
from support.transcripts import asks_for, call, kind_of, result_of

from standfast import Agent, Approval, NotConfirmedError, StoreError, sqlite_store, tool
from standfast.runtime.restored_stores import begin_epoch, current_epoch, note_place
from standfast.stores import SQLiteStore, open_store
from standfast.testing import ScriptedModel
from standfast.tools.calls import call_key

GATE = Approval(message="ok?", timeout=None)


def back_up(path: Path, backup: Path) -> None:
    """Copy a store's file while it is in use, with SQLite's backup API."""
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)


def restore(backup: Path, path: Path) -> None:
    """Write a backup into the file of a store that is not open."""
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(backup.read_bytes())


def change(path: Path, statement: str, *values: str) -> int:
    """Lose rows of a store that is in use, as a server does that takes over too early."""
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as database, database:
        return database.execute(statement, values).rowcount


def poster(**options: Any) -> tuple[Agent, list[str]]:
    posted: list[str] = []

    @tool(**options)
    async def post(text: str) -> str:
        """Post a text."""
        posted.append(text)
        return f"posted {text}"

    return Agent("poster", tools=[post]), posted


def in_turn(*calls: Any) -> ScriptedModel:
    """Return a model that asks for calls one after the other, and then is done."""

    def answer(messages: Any, _: Any) -> Any:
        done = sum(message.role == "tool" for message in messages)
        return "done" if done == len(calls) else asks_for(calls[done])

    return ScriptedModel(answer)


def posts_twice() -> ScriptedModel:
    return in_turn(call("post", "c1", text="t1"), call("post", "c2", text="t2"))


async def waits_for(run: Run, name: str) -> dict[str, Any] | None:
    return next((item for item in await waiting(run) if item["name"] == name), None)


async def decide(temporal: Temporal, run: Run, gate: str) -> None:
    with contextlib.suppress(NotConfirmedError):
        await temporal.people_who_wait(1).decide(run.id, gate, "approve")


class World:
    """A run that waits at its second gate, its first effect done, and copies of its store from both gates."""

    def __init__(self, folder: Path) -> None:
        self.path, self.older, self.newer = folder / "s.db", folder / "older.db", folder / "newer.db"
        self.agent, self.posted = poster(approval=GATE)

    @contextlib.asynccontextmanager
    async def worker(self, temporal: Temporal) -> AsyncIterator[SQLiteStore]:
        async with (
            sqlite_store(self.path) as store,
            temporal.worker(self.agent, llm=posts_twice(), store=store, store_patience=1),
        ):
            yield store

    async def begun(self, temporal: Temporal) -> Run:
        async with self.worker(temporal):
            run = await temporal.start(self.agent)
            await pending(run)
            back_up(self.path, self.older)
            await decide(temporal, run, "c1")
            await until(lambda: waits_for(run, "c2"))
        back_up(self.path, self.newer)
        return run


async def test_a_run_whose_store_is_older_says_so_and_continues_when_a_newer_copy_is_restored(
    temporal: Temporal, tmp_path: Path
) -> None:
    world = World(tmp_path)
    run = await world.begun(temporal)
    restore(world.older, world.path)
    async with world.worker(temporal):
        await decide(temporal, run, "c2")
        shown = await until(lambda: waits_for(run, "store"))
        assert shown["kind"] == "pause"
        assert "is older than run" in shown["message"]
        assert "its turn 2 is missing" in shown["message"]
        assert "Restore a newer copy" in shown["message"]
    assert world.posted == ["t1"]
    restore(world.newer, world.path)
    async with world.worker(temporal):
        assert (await result(run))["status"] == "complete"
    assert world.posted == ["t1", "t2"]
    await check_healthy(run)


@pytest.mark.slow
async def test_a_person_who_accepts_the_loss_ends_the_run_and_no_effect_is_repeated_by_the_next(
    temporal: Temporal, tmp_path: Path
) -> None:
    world = World(tmp_path)
    run = await world.begun(temporal)
    restore(world.older, world.path)
    async with world.worker(temporal) as store:
        await decide(temporal, run, "c2")
        await until(lambda: waits_for(run, "store"))
        await temporal.people.resume(run.id, "abort")
        error = await failure(run)
        assert (error.type, "is older than run" in error.message) == ("StoreBehindError", True)
        again = await temporal.start(world.agent, None)
        await until(lambda: waits_for(again, "c1"))  # the store does not have its approval
        await temporal.people.decide(again.id, "c1", "approve")
        await until(lambda: waits_for(again, "c2"))
        await temporal.people.decide(again.id, "c2", "approve")
        assert (await result(again))["status"] == "complete"
        messages = await store.load_messages(temporal.session())
    assert kind_of(messages, "c1") == "tool-durability-error"
    assert world.posted == ["t1", "t2"]
    await check_healthy(again)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("lost", ["messages", "result", "session"])
async def test_a_run_notices_what_a_store_loses_under_its_worker(temporal: Temporal, tmp_path: Path, lost: str) -> None:
    """A server that takes over without the last writes, while the worker lives and remembers the run."""
    path, gone = tmp_path / "s.db", asyncio.Event()
    posted: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        posted.append(text)
        while not gone.is_set():
            await asyncio.sleep(0.05)
        return f"posted {text}"

    session = temporal.session()
    model = in_turn(call("post", "c1", text="t1"))
    async with sqlite_store(path) as store, temporal.worker(Agent("poster", tools=[post]), llm=model, store=store):
        run = await temporal.start("poster")
        await until(lambda: posted)
        if lost == "result":
            gone.set()
            scope = f"{(await store.load_session(session)).key}/2"  # type: ignore[union-attr]
            await until(lambda: is_done(store, scope))
        else:
            change(path, "DELETE FROM agent_messages WHERE session_id = ? AND seq = 2", session)
            change(path, "UPDATE agent_sessions SET last_seq = 1 WHERE id = ?", session)
            change(path, "DELETE FROM model_replies WHERE run_key = ? AND turn = 1", (await run.describe()).run_id)
            change(path, "DELETE FROM tool_ledger")
            if lost == "session":
                change(path, "DELETE FROM agent_sessions")
            gone.set()
            shown = await until(lambda: waits_for(run, "store"))
            assert "is older than run" in shown["message"]
            assert await current_epoch(store) == 1
            await temporal.people.resume(run.id, "abort")
            assert (await failure(run)).type == "StoreBehindError"
    assert posted == ["t1"]


async def is_done(store: SQLiteStore, scope: str) -> bool:
    entries = await store.load_entries(scope, [call_key(0, "c1", 1)])
    return any(entry.state == "done" for entry in entries.values())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("is_safe", [False, True])
async def test_a_lost_call_whose_claim_the_store_has_lost_is_unknown_and_not_taken_for_unstarted(
    temporal: Temporal, tmp_path: Path, is_safe: bool
) -> None:
    path, posted, held = tmp_path / "s.db", list[str](), asyncio.Event()

    @tool(timeout=1, safe_to_retry=is_safe)
    async def post(text: str) -> str:
        """Post a text."""
        posted.append(text)
        if len(posted) == 1:
            while not held.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
        return f"posted {text}"

    model = in_turn(call("post", "c1", text="t1"))
    async with sqlite_store(path) as store, temporal.worker(Agent("poster", tools=[post]), llm=model, store=store):
        run = await temporal.start("poster")
        await until(lambda: posted)
        await begin_epoch(store)
        assert change(path, "DELETE FROM tool_ledger") == 1
        found = await result(run)
        held.set()
        messages = await store.load_messages(temporal.session())
    assert found["status"] == "complete"
    if is_safe:
        assert (posted, result_of(messages, "c1")) == (["t1", "t1"], "posted t1")
    else:
        assert (posted, kind_of(messages, "c1")) == (["t1"], "tool-durability-error")


async def test_a_result_is_kept_though_the_store_has_lost_the_claim_of_its_call(
    temporal: Temporal, tmp_path: Path
) -> None:
    path, posted, held = tmp_path / "s.db", list[str](), asyncio.Event()

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        posted.append(text)
        while not held.is_set():
            await asyncio.sleep(0.05)
        return f"posted {text}"

    model = in_turn(call("post", "c1", text="t1"))
    async with sqlite_store(path) as store, temporal.worker(Agent("poster", tools=[post]), llm=model, store=store):
        run = await temporal.start("poster")
        await until(lambda: posted)
        assert change(path, "DELETE FROM tool_ledger") == 1
        held.set()
        assert (await result(run))["status"] == "complete"
        messages = await store.load_messages(temporal.session())
    assert (posted, result_of(messages, "c1")) == (["t1"], "posted t1")


# --- a moved store, a copied one ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_runs_continue_in_the_store_that_theirs_was_moved_to_and_workers_with_the_old_one_are_refused(
    temporal: Temporal, tmp_path: Path, postgres: PostgresServer, kind: str
) -> None:
    world = World(tmp_path)
    run = await world.begun(temporal)
    new = f"{postgres.dsn()}?schema={new_schema()}" if kind == "postgres" else str(tmp_path / "new.db")
    await done(None, "store", "copy", str(world.path), new)
    with pytest.raises(StoreError, match="was moved to"):
        async with world.worker(await temporal.elsewhere()):
            pass
    async with open_store(new) as store, temporal.worker(world.agent, llm=posts_twice(), store=store):
        await temporal.people.decide(run.id, "c2", "approve")
        assert (await result(run))["status"] == "complete"
        assert result_of(await store.load_messages(temporal.session()), "c1") == "posted t1"
    assert world.posted == ["t1", "t2"]
    await check_healthy(run)


@pytest.mark.slow
async def test_of_two_stores_with_one_identity_the_one_that_lacks_a_run_does_nothing_for_it(
    temporal: Temporal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    run = await world.begun(temporal)
    copy = tmp_path / "copy.db"
    copy.write_bytes(world.older.read_bytes())
    async with (
        sqlite_store(copy) as store,
        temporal.worker(world.agent, llm=posts_twice(), store=store, store_patience=1),
    ):
        assert "is a copy of" in caplog.text
        await decide(temporal, run, "c2")
        await until(lambda: waits_for(run, "store"))
    assert world.posted == ["t1"]
    async with world.worker(temporal):
        assert (await result(run))["status"] == "complete"
    assert world.posted == ["t1", "t2"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("how", ["pg_dump", "restored"])
async def test_a_store_that_was_restored_from_a_dump_begins_a_new_epoch(
    postgres: PostgresServer, tmp_path: Path, how: str
) -> None:
    schema = new_schema()
    address = f"{postgres.dsn()}?schema={schema}"
    async with open_store(address) as store:
        identity = await store.identity()
        await note_place(store)
        assert [await current_epoch(store) for _ in range(2)] == [0, 0]
    if how == "pg_dump":
        programs, dump = postgres.programs, str(tmp_path / "dump")
        run_program(programs / "pg_dump", "-Fc", "-n", schema, "-f", dump, postgres.dsn())
        async with open_store(address) as store:
            await store.save_reply("r", 1, "after the dump")
        run_program(programs / "pg_restore", "--clean", "-d", postgres.dsn(), dump)
    else:
        assert (await data(None, "store", "restored", "--store", address))["epoch"] == 1
    async with open_store(address) as store:
        assert await store.load_reply("r", 1) is None
        assert [await current_epoch(store) for _ in range(2)] == [1, 1]
        assert await store.identity() == identity


def run_program(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


async def test_a_file_that_was_copied_begins_a_new_epoch_and_one_that_was_moved_does_not(tmp_path: Path) -> None:
    path, moved, copy = tmp_path / "s.db", tmp_path / "moved.db", tmp_path / "copy.db"
    async with sqlite_store(path) as store:
        assert await current_epoch(store) == 0
        await note_place(store)
    path.rename(moved)
    copy.write_bytes(moved.read_bytes())
    for known, epoch in ((moved, 0), (copy, 1)):
        async with sqlite_store(known) as store:
            assert [await current_epoch(store) for _ in range(2)] == [epoch, epoch]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["another file", "the same file", "another file of the same inode", "a command"])
async def test_an_effect_is_not_repeated_whose_worker_was_killed_and_whose_claim_is_not_in_the_backup(
    temporal: Temporal, tmp_path: Path, how: str
) -> None:
    path, backup, effects = tmp_path / "s.db", tmp_path / "backup.db", tmp_path / "effects"
    script = """
        import asyncio, sys, time
        from pathlib import Path
        from temporalio.worker import Worker
        from standfast import Agent, Approval, tool, sqlite_store
        from standfast.temporal import StandfastPlugin, connect
        from standfast.testing import ScriptedModel
        from support.transcripts import asks_for, call

        address, queue, path, effects, ends = sys.argv[1:]

        @tool(approval=Approval(message="ok?", timeout=None))
        def post(text: str) -> str:
            with open(effects, "a") as file:
                file.write(text)
            time.sleep(0 if ends == "ends" else 600)
            return "posted"

        def answer(messages, _):
            return "done" if messages[-1].role == "tool" else asks_for(call("post", "c1", text="t1"))

        async def main():
            agent = Agent("poster", tools=[post])
            plugin = StandfastPlugin(agents=[agent], store=sqlite_store(path), llm=ScriptedModel(answer))
            async with Worker(await connect(address), task_queue=queue, plugins=[plugin]):
                await asyncio.Event().wait()

        asyncio.run(main())
    """
    at = temporal.client.service_client.config.target_host

    @contextlib.asynccontextmanager
    async def worker(ends: str) -> AsyncIterator[None]:
        words = ["-c", textwrap.dedent(script), at, temporal.name, str(path), str(effects), ends]
        folder = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = await asyncio.create_subprocess_exec(sys.executable, *words, env=folder)
        try:
            yield
        finally:
            process.kill()
            await process.wait()

    async with worker("hangs"):
        run = await temporal.start("poster")
        await pending(run)
        back_up(path, backup)
        await decide(temporal, run, "c1")
        await until(effects.exists)
    if how == "another file":
        backup.replace(path)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    elif how == "the same file":
        restore(backup, path)
    elif how == "another file of the same inode":
        restore(backup, path)
        change(path, "UPDATE store_identity SET inode = ?", str(path.stat().st_ino))
    else:
        found = await data(None, "store", "restore", str(backup), "--store", str(path))
        assert found["store"] == str(path)
        assert found["epoch"] > 0
    async with worker("ends"):
        assert (await result(run))["status"] == "complete"
    assert effects.read_text() == "t1"
    async with sqlite_store(path) as store:
        assert kind_of(await store.load_messages(temporal.session()), "c1") == "tool-durability-error"
