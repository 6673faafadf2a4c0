"""Copying a store: complete and once, even if interrupted, and the old store is no longer used."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done, refused
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.postgres import PostgresServer, new_schema
from support.stores import append, contents, say

from standfast import Message, StoreError
from standfast.runtime.restored_stores import current_epoch, note_place
from standfast.stores import AtWork, DecisionRecord, NotedRun, Session, open_store
from standfast.stores import copying as copies
from standfast.stores.sql import tables as sql_tables
from standfast.stores.sql.rows import LONGEST_KEY
from standfast.stores.tables import KEYS, LEFT_OUT

NOW = datetime(2026, 11, 23, 8, 0, 0, 5, tzinfo=UTC)
ALL = ["sqlite", "postgres", "d1"]
REPLIES, BATCH = 150, 100  # more than a batch, and D1 takes each separately; batches of real size are below
KINDS = [(source, target) for source in ALL for target in ALL]
Place = Callable[[str], str]


@pytest.fixture
def place(tmp_path: Path, postgres: PostgresServer, d1: D1Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return what makes the address of a new store of a kind."""
    made = iter(range(100))
    monkeypatch.setattr(sql_tables, "BATCH_ROWS", BATCH)
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", TOKEN)
    monkeypatch.setenv("CLOUDFLARE_API_BASE_URL", d1.url)

    def place(kind: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"{next(made)}.db")
        if kind == "d1":
            return f"d1://{ACCOUNT}/{d1.new_database()}"
        return f"{postgres.dsn()}?schema={new_schema()}"

    return place


async def fill(address: str) -> None:
    """Put into a store what runs leave in it."""
    async with open_store(address) as store:
        await note_place(store)
        for number in range(3):
            await store.append_messages_atomic(
                f"s{number}",
                [*say("hi \0 \x10 ü"), Message(role="assistant", content="", cost=0.1 + number)],
                Session(id=f"s{number}", agent_name="a", user_id="ada", workflow_id="w", journal_key="r/1"),
                write_key=f"w{number}",
                expected_seq=0,
            )
        await store.note_run(NotedRun(journal_key="r", namespace="n", workflow_id="w", session_id="s0"))
        await store.prune_messages("s1", 1)
        for number in range(REPLIES):
            await store.save_reply("r", number, f"reply {number}")
        await store.claim("k", "0/c1#1", owner="o", arguments_hash="h")
        await store.finish("k", "0/c1#1", owner="o", state="done", result='{"returned": "x"}')
        await store.claim("k", "1/c2#1", owner="o", arguments_hash="h")
        await store.settle("k", "2/c3#1")
        for gate in ("b", "a"):
            record = DecisionRecord(journal_key="r", gate=gate, at=NOW, decision="approve", by="ada", edit={"a": [1]})
            await store.record_decision(record)
        await store.begin_work(AtWork(session_id="s0", namespace="default", workflow_id="w", journal_key="r"))
    if "://" not in address:  # as versions left it that did not note when a reply was kept
        with contextlib.closing(sqlite3.connect(address)) as db, db:
            db.execute("UPDATE model_replies SET kept_at = NULL WHERE turn < 9")


async def all_of(address: str) -> dict[str, Any]:
    """Return what runs find in a store."""
    async with open_store(address) as store:
        sessions = {session.id: session for session in await store.list_sessions()}
        keys = ["0/c1#1", "1/c2#1", "2/c3#1"]
        entries = await store.load_entries("k", keys)
        return {
            "sessions": sessions,
            "messages": {name: await store.load_messages(name) for name in sessions},
            "replies": [await store.load_reply("r", number) for number in range(REPLIES)],
            "entries": {key: entry.model_copy(update={"claimed_at": None}) for key, entry in entries.items()},
            "decisions": await store.load_decisions("r"),
            "work": await store.find_work(),
            "runs": await store.find_runs(session_id="s0"),
        }


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("source", "target"), KINDS)
async def test_all_that_a_store_has_is_found_in_the_other_one(source: str, target: str, place: Place) -> None:
    old, new = place(source), place(target)
    await fill(old)
    before = await all_of(old)
    async with open_store(old) as store:
        identity, epoch = await store.identity(), await current_epoch(store)
    found = await data(None, "store", "copy", old, new)
    assert found["identity"] == identity
    assert found["tables"]["agent_messages"]["rows"] == 6
    assert await all_of(new) == before
    async with open_store(new) as store:
        assert (await store.identity(), await current_epoch(store)) == (identity, epoch)
        # Writes go on where they ended: write keys, numbers and decisions.
        session = before["sessions"]["s0"]
        assert await store.append_messages_atomic("s0", say("again"), session, write_key="w0", expected_seq=0) == 2
        assert await store.append_messages_atomic("s0", say("new"), session, expected_seq=2) == 3
        await store.record_decision(DecisionRecord(journal_key="r", gate="c", at=NOW, decision="reject"))
        assert [row.gate for row in await store.load_decisions("r")] == ["b", "a", "c"]
    with pytest.raises(StoreError, match="was moved to"):
        await all_of(old)
    assert "had already been moved to" in await done(None, "store", "copy", old, new)


@pytest.mark.parametrize("kind", ALL)
async def test_every_table_of_a_store_is_moved_or_left_out_on_purpose(kind: str, place: Place) -> None:
    async with open_store(place(kind)) as store:
        await store.list_sessions()
        async with store.tables() as tables:
            assert await tables.names() - LEFT_OUT == set(KEYS)


@pytest.mark.parametrize("kind", ALL)
async def test_a_process_that_has_the_old_store_open_cannot_write_to_it(kind: str, place: Place) -> None:
    old, new = place(kind), place("sqlite")
    await fill(old)
    async with open_store(old) as writer:
        await append(writer, "before")
        await data(None, "store", "copy", old, new)
        for write in (append(writer, "after"), writer.save_reply("r", 9_999, "x"), writer.settle("k", "9/c9#1")):
            with pytest.raises(StoreError, match="was moved to"):
                await write
    async with open_store(new) as store:
        assert await contents(store) == ["before"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["s1", "worker_here_1_2_3"])
async def test_a_store_that_is_in_use_is_not_moved(kind: str, name: str, place: Place) -> None:
    old, new = place(kind), place("sqlite")
    await fill(old)
    async with open_store(old) as user:
        await user.add_worker("worker_here_1_2_3")
        assert await user.hold(name)
        assert f"is in use by {name}" in await refused(None, "store", "copy", old, new)
        await append(user, "goes on")
        await user.let_go(name)
    await data(None, "store", "copy", old, new)


async def test_a_file_that_a_pipeline_has_in_use_is_not_moved(place: Place) -> None:
    old, new = place("sqlite"), place("sqlite")
    await fill(old)
    async with open_store(old) as user:
        assert await user.hold("review/a run that the store has no session of")
        assert "is in use by a run" in await refused(None, "store", "copy", old, new)


async def test_a_store_is_not_moved_into_one_that_has_something(place: Place) -> None:
    old, new, third = place("sqlite"), place("sqlite"), place("sqlite")
    await fill(old)
    async with open_store(new) as store:
        await append(store, "mine")
    assert "has sessions or calls of its own" in await refused(None, "store", "copy", old, new)
    assert "cannot be moved to itself" in await refused(None, "store", "copy", old, old)
    assert "There is no store" in await refused(None, "store", "copy", place("sqlite"), third)
    await data(None, "store", "copy", old, third)
    assert "was moved to" in await refused(None, "store", "copy", old, place("sqlite"))
    async with open_store(new) as store:
        assert await contents(store) == ["mine"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("target", ALL)
async def test_a_move_that_is_killed_anywhere_continues_and_moves_nothing_twice(target: str, place: Place) -> None:
    old, new = place("sqlite"), place(target)
    await fill(old)
    before = await all_of(old)
    kills = 0
    for step in range(1, 100):
        script = f"""
            import asyncio, os, signal
            from standfast.stores import copying, open_store, tables
            from standfast.stores.sqlite import store as sqlite_tables
            from standfast.stores.postgres import store as postgres_tables
            from standfast.stores.d1 import store as d1_tables
            from standfast.stores.sql import tables as sql_tables
            sql_tables.BATCH_ROWS = 40
            steps = 0
            for kind in (sqlite_tables.SQLiteTables, postgres_tables.PostgresTables, d1_tables.D1Tables):
                for name in ("begin", "write", "finish", "close"):
                    def wrapped(done):
                        async def method(*given):
                            global steps
                            await done(*given)
                            steps += 1
                            if steps == {step % 4 + 1}:
                                os.kill(os.getpid(), signal.SIGKILL)
                        return method
                    setattr(kind, name, wrapped(getattr(kind, name)))
            asyncio.run(copying.move_store(open_store({old!r}), open_store({new!r})))
        """
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(script))
        if await process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        for address in (old, new):
            with contextlib.suppress(StoreError):
                assert await all_of(address) == before  # closed, or whole
    assert kills >= 4
    assert "had already been moved to" in await done(None, "store", "copy", old, new)
    assert await all_of(new) == before


async def test_a_move_that_was_broken_off_can_be_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = place("sqlite"), place("sqlite")
    await fill(old)
    before = await all_of(old)

    async def broken(*_: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken_off:
        broken_off.setattr(copies, "_copied", broken)
        assert "the disk is full" in await refused(None, "store", "copy", old, new)
    for address, words in ((old, "is being moved to"), (new, "is being filled from")):
        with pytest.raises(StoreError, match=words):
            await all_of(address)
    await done(None, "store", "copy", old, new, "--give-up")
    assert await all_of(old) == before
    await data(None, "store", "copy", old, new)  # after all
    assert await all_of(new) == before
    assert "both must not be used" in await refused(None, "store", "copy", old, new, "--give-up")


async def test_rows_that_were_changed_on_their_way_are_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = place("sqlite"), place("sqlite")
    await fill(old)
    copied = copies._copied

    async def changed(old: Any, new: Any, table: str, tell: Any) -> Any:
        found = await copied(old, new, table, tell)
        if table == "sessions_at_work":
            with contextlib.closing(sqlite3.connect(new.name)) as database, database:
                database.execute("UPDATE model_replies SET reply = 'reply 8' WHERE turn = 7")
        return found

    monkeypatch.setattr(copies, "_copied", changed)
    assert f"{REPLIES + 1} rows in model_replies that differ" in await refused(None, "store", "copy", old, new)
    with pytest.raises(StoreError, match="is being filled from"):
        await all_of(new)


async def test_calls_keep_keys_by_which_the_other_store_finds_them(place: Place) -> None:
    key, old, new = "0/" + "c" * LONGEST_KEY + "#1", place("sqlite"), place("postgres")
    async with open_store(old) as store:
        await store.claim("k", key, owner="o", arguments_hash="h")
    await data(None, "store", "copy", old, new)
    async with open_store(new) as store:
        assert (await store.load_entries("k", [key]))[key].owner == "o"
    assert "has shortened" in await refused(None, "store", "copy", new, place("sqlite"))


async def test_a_session_whose_time_is_not_utc_is_not_moved_where_its_calls_would_not_be_found(place: Place) -> None:
    old, new = place("sqlite"), place("postgres")
    made = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    async with open_store(old) as store:
        await store.save_session(Session(id="s", agent_name="a", created_at=made))
    assert "Session s was made at" in await refused(None, "store", "copy", old, new)


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
async def test_large_and_many_sessions_take_little_memory(target: str, place: Place) -> None:
    old, new = place("sqlite"), place(target)
    async with open_store(old) as store:
        await store.append_messages_atomic("s", [*say("x" * 1_000_000)] * 50, Session(id="s", agent_name="a"))
    with contextlib.closing(sqlite3.connect(old)) as database, database:
        database.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) INSERT INTO"
            " agent_sessions (id, agent_name, state, last_seq, version, created_at, updated_at)"
            " SELECT 'n' || i, 'a', '{}', 0, 1, ?, ? FROM n",
            (NOW.isoformat(), NOW.isoformat()),
        )
    script = f"""
        import asyncio, resource
        from standfast.stores import open_store
        from standfast.stores.copying import move_store
        async def main():
            old, new = open_store({old!r}), open_store({new!r})
            await new.list_sessions(); await new.close()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            moved = await move_store(old, new)
            print(moved.tables["agent_sessions"].rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script), stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    out, _ = await process.communicate()
    rows, grown = map(int, out.split())
    assert rows == 10_001
    assert grown < 100_000  # KB, of a transcript of 50 MB: about seven times a batch
