"""Deletion under attack, on every database: kills at each write, concurrent deletions, new runs, many rows."""

import asyncio
import contextlib
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.postgres import PostgresServer, new_schema
from support.stores import append, contents

from standfast import SessionConflictError, SessionNotFoundError
from standfast.runtime.retention import Pruning, delete_session, nobody_knows
from standfast.stores import Dropped, NotedRun, Session, open_store
from standfast.stores.deletion import DELETED
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.testing.deletions import run_key

ALL = ["sqlite", "postgres", "d1"]
Place = Callable[[str], str]


@pytest.fixture
def place(tmp_path: Path, postgres: PostgresServer, d1: D1Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return what makes the address of a new store of a kind."""
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", TOKEN)
    monkeypatch.setenv("CLOUDFLARE_API_BASE_URL", d1.url)
    addresses = {
        "sqlite": lambda: str(tmp_path / "s.db"),
        "postgres": lambda: f"{postgres.dsn()}?schema={new_schema()}",
        "d1": lambda: f"d1://{ACCOUNT}/{d1.new_database()}",
    }
    return lambda kind: addresses[kind]()


@pytest.fixture(params=ALL)
async def address(request: pytest.FixtureRequest, place: Place) -> str:
    return place(request.param)


@pytest.fixture
async def store(address: str) -> AsyncIterator[Any]:
    async with open_store(address) as opened:
        yield opened


async def fill(store: Any, name: str = "s", number: int = 1, calls: int = 3) -> Session:
    """Keep what a run on Temporal keeps of a session, and return the session."""
    run = run_key(number)
    await store.note_run(NotedRun(journal_key=run, namespace="n", workflow_id=f"a/{name}", session_id=name))
    await append(store, "secret", name)
    kept: Session = await store.load_session(name)
    await store.save_reply(f"{run}/open", 0, '{"session": "secret"}')
    await store.save_reply(run, 1, "secret")
    for call in range(calls):
        await store.claim(f"{kept.key}/2", f"{call}/c", owner="me", arguments_hash="h")
        await store.finish(f"{kept.key}/2", f"{call}/c", owner="me", state="done", result="secret")
    return kept


async def state(store: Any, kept: Session, number: int = 1) -> str:
    """Return whether all of a session is there, or nothing; a mixture fails."""
    entries = await store.load_entries(f"{kept.key}/2", [f"{call}/c" for call in range(3)])
    found = (
        await store.load_session(kept.id) is not None,
        await contents(store, kept.id),
        await store.load_reply(run_key(number), 1),
        await store.load_reply(f"{run_key(number)}/open", 0) == DELETED,
        {(entry.state, entry.result) for entry in entries.values()},
    )
    if found == (True, ["secret"], "secret", False, {("done", "secret")}):
        return "whole"
    assert found == (False, [], None, True, {("claimed", None)})
    return "deleted"


KILLED = """
import asyncio, os, signal, sys
from standfast.runtime.retention import delete_session
from standfast.stores import open_store
from standfast.stores.d1.database import Database
from standfast.stores.postgres import database as postgres

left = int(sys.argv[2])

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = open_store(sys.argv[1])
    await store.list_sessions()
    await asyncio.sleep(0)
    if hasattr(store, "_thread"):
        from standfast.stores.sqlite import thread
        usual = thread.run
        def traced(db, *given):
            db.set_trace_callback(lambda _: step())
            return usual(db, *given)
        thread.run = traced
    elif hasattr(store, "_address"):
        rows, row = postgres.Database.rows, postgres.Database.row
        async def each(self, *given):
            step()
            return await rows(self, *given)
        async def one(self, *given):
            step()
            return await row(self, *given)
        postgres.Database.rows, postgres.Database.row = each, one
    else:
        batch = Database.batch
        async def sent(self, *given, **options):
            step()
            found = await batch(self, *given, **options)
            step()
            return found
        Database.batch = sent
    await store.delete_session("s")
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.slow(but=1)
async def test_a_deletion_that_is_killed_at_any_statement_deletes_all_or_nothing(address: str) -> None:
    async with open_store(address) as store:
        kept = await fill(store)
        kills, seen = 0, set[str]()
        for step in (*range(1, 40, 3), 1_000):
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, address, str(step))
            code = await process.wait()
            assert code in (0, -signal.SIGKILL)
            seen.add(await state(store, kept))
            if code == 0:
                break
            kills += 1
        assert kills >= 2
        assert "whole" in seen
        await store.delete_session("s")
        assert await state(store, kept) == "deleted"


async def test_of_two_who_delete_a_session_one_does_and_nothing_of_it_is_left(address: str) -> None:
    async with open_store(address) as store, open_store(address) as other:
        kept = await fill(store)
        both = await asyncio.gather(delete_session(store, "s"), delete_session(other, "s"), return_exceptions=True)
        assert sum(isinstance(one, Session) for one in both) == 1
        assert {type(one) for one in both} <= {Session, SessionConflictError, SessionNotFoundError}
        assert await state(store, kept) == "deleted"
        second = await fill(store, number=2)
        await asyncio.gather(*(one.delete_session("s") for one in (store, other)), return_exceptions=True)
        assert await state(store, second, 2) == "deleted"


async def test_what_a_run_writes_while_its_session_is_deleted_is_deleted_or_refused(address: str) -> None:
    async with open_store(address) as store, open_store(address) as writer:
        kept = await fill(store)
        claimed = list[str]()

        async def write() -> None:
            for number in range(1_000):
                entry = await writer.claim(f"{kept.key}/4", f"{number}/c", owner="w", arguments_hash="h")
                assert entry.owner == "w"
                claimed.append(f"{number}/c")

        writing = asyncio.create_task(write())
        while len(claimed) < 3:
            await asyncio.sleep(0)
        await store.delete_session("s")
        with pytest.raises(SessionConflictError, match="was deleted"):
            await writing
        entries = await store.load_entries(f"{kept.key}/4", claimed)
        assert len(entries) == len(claimed)  # a session that has begun is never taken for one that has not
        assert {(entry.state, entry.owner) for entry in entries.values()} == {("claimed", "deleted")}


@pytest.mark.slow(but=1)
async def test_two_who_prune_at_once_while_runs_write_lose_nothing_that_is_young(address: str) -> None:
    async with open_store(address) as store, open_store(address) as other, open_store(address) as writer:
        for number in range(1, 9):
            await fill(store, f"old{number}", number)
        old = datetime.now(UTC) + timedelta(days=1)
        made = list[Session]()

        async def write() -> None:
            for number in range(100, 108):
                made.append(await fill(writer, f"new{number}", number))

        def pruning(one: Any) -> Pruning:
            return Pruning(one, old, forgotten, is_older_known=True)

        async def forgotten(name: str, noted: NotedRun | None) -> bool:
            return noted is not None and str(noted.session_id).startswith("old")

        async def prune(one: Any) -> Dropped:
            found = pruning(one)
            await found.prune()
            return found.dropped

        *dropped, _ = await asyncio.gather(prune(store), prune(other), write())
        assert [await state(store, one, number) for number, one in enumerate(made, 100)] == ["whole"] * 8
        assert [await store.load_reply(run_key(number), 1) for number in range(1, 9)] == [None] * 8
        assert dropped[0].replies + dropped[1].replies == 16


# --- many rows ---


async def many(address: str, sessions: int, calls: int) -> None:
    """Put sessions with calls of runs into a store, as quickly as its database can."""
    async with open_store(address) as store:
        await fill(store, "first")
    made = datetime(2026, 1, 1, tzinfo=UTC)
    name = made.strftime("%Y%m%dT%H%M%S%f")
    copy = {
        "agent_sessions": "'n' || i, 'a', '{}', 0, 1, ?, ?",
        "tool_ledger": f"'n' || (i % {sessions}) || '@{name}/2', i || '/c', 'done', 'me', 'h', 'secret', ?",
    }
    with contextlib.closing(sqlite3.connect(address)) as database, database:
        for table, columns, values, rows, times in (
            ("agent_sessions", "id, agent_name, state, last_seq, version, created_at, updated_at", None, sessions, 2),
            ("tool_ledger", "run_key, call_key, state, owner, arguments_hash, result, claimed_at", None, calls, 1),
        ):
            database.execute(
                f"WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows - 1})"
                f" INSERT INTO {table} ({columns}) SELECT {values or copy[table]} FROM n",
                (made.isoformat(),) * times,
            )


@pytest.mark.slow
async def test_a_large_store_is_pruned_in_many_transactions_between_which_others_write(tmp_path: Path) -> None:
    address = str(tmp_path / "s.db")
    sessions, calls = 1_000, 10_000
    await many(address, sessions, calls)
    async with open_store(address) as store, open_store(address) as writer:
        pruning = Pruning(store, datetime.now(UTC) - timedelta(days=1), nobody_knows, is_older_known=True)
        writes, done = 0, asyncio.Event()

        async def write() -> None:
            nonlocal writes
            while not done.is_set():
                await writer.save_reply("others", writes, "x")
                writes += 1
                await asyncio.sleep(0)

        async def prune() -> None:
            await pruning.prune_sessions()
            await pruning.prune()
            done.set()

        await asyncio.gather(prune(), write())
        assert (pruning.sessions, len(await store.list_sessions())) == (sessions, 1)
        assert writes > 100
        assert await store.load_reply("others", writes - 1) == "x"
        assert [key for key in await store.list_records() if key.startswith("n")] == []


# --- stores of older versions ---


def oldest(path: str) -> None:
    """Make a store as the first version left it, with a session of a run on Temporal."""
    made = "2026-01-01T00:00:00+00:00"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(MIGRATIONS[0])
        database.executescript(
            "CREATE TABLE standfast_schema (version INTEGER PRIMARY KEY, oldest_reader INTEGER) STRICT;"
            "INSERT INTO standfast_schema VALUES (1, 1)"
        )
        database.execute(
            "INSERT INTO agent_sessions VALUES ('s', 'a', '{}', NULL, NULL, NULL, 'a/s', ?, 1, 1, NULL, ?, ?)",
            (f"{run_key(1)}/1", made, made),
        )
        database.execute(
            "INSERT INTO agent_messages (session_id, seq, role, content) VALUES ('s', 1, 'user', 'secret')"
        )
        for run, turn, reply in (
            (f"{run_key(2)}/open", 0, '{"session":"s","said":"secret"}'),
            (run_key(2), 1, "secret"),
        ):
            database.execute("INSERT INTO model_replies VALUES (?, ?, ?)", (run, turn, reply))
        database.execute(
            "INSERT INTO tool_ledger VALUES ('s@20260101T000000000000/2', '0/c', 'done', 'me', 'h', 'secret')"
        )


async def test_a_session_of_the_oldest_version_is_deleted_with_the_runs_that_it_did_not_note(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    oldest(path)
    async with open_store(path) as store:
        await store.delete_session("s")
        assert await store.load_reply(f"{run_key(2)}/open", 0) == DELETED
        assert await store.load_reply(f"{run_key(1)}/open", 0) == DELETED
        entry = (await store.load_entries("s@20260101T000000000000/2", ["0/c"]))["0/c"]
        assert (entry.state, entry.result) == ("claimed", None)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert "secret" not in "\n".join(database.iterdump())


async def test_a_store_of_the_oldest_version_is_pruned(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    oldest(path)

    async def forgotten(name: str, noted: NotedRun | None) -> bool:
        return True

    async with open_store(path) as store:
        kept = Pruning(store, datetime.now(UTC) + timedelta(days=1), nobody_knows)
        await kept.prune_sessions()
        assert (kept.sessions, kept.living) == (0, 1)
        pruning = Pruning(store, datetime.now(UTC) + timedelta(days=1), forgotten, is_older_known=True)
        await pruning.prune_sessions()
        await pruning.prune()
        assert pruning.sessions == 1
        assert await store.list_records() == []


# --- the command ---


async def test_the_command_prunes_and_deletes_on_every_database(address: str) -> None:
    async with open_store(address) as store:
        for name in ("s1", "s2"):
            await append(store, "secret", name)
    words = ("--store", address)
    found = await data(None, "store", "prune", "--older-than", "0s", "--sessions", "--in-process", "--dry-run", *words)
    assert (found["sessions"], found["dry_run"]) == (2, True)
    assert "Deleted session s1" in await done(None, "sessions", "s1", "--delete", *words)
    found = await data(None, "store", "prune", "--older-than", "0s", "--sessions", "--in-process", *words)
    assert found["sessions"] == 1
    async with open_store(address) as store:
        assert await store.list_sessions() == []
