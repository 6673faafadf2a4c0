"""Access to stored data, the files beside a store, and impossible rows."""

import contextlib
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.commands import done
from support.pages import CHARGES, charge
from support.stores import append
from support.temporal_runs import Temporal, pending

from standfast import Agent, Message, StoreError, sqlite_store
from standfast.messages import ToolCall, Usage
from standfast.stores import DecisionRecord, RunningCall, Session, SQLiteStore
from standfast.temporal import ApprovalLinks, Webhook
from standfast.testing import ScriptedModel


def rights(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}


# --- who may read ---


async def test_nobody_else_may_read_a_store_or_what_stands_beside_it(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        await append(store, "a secret")
        assert await store.hold("s")
        names = ["standfast.db", "standfast.db-lock", "standfast.db-mark", "standfast.db-shm", "standfast.db-wal"]
        assert rights(tmp_path) == dict.fromkeys(names, 0o600)


async def test_a_store_that_its_owner_has_opened_to_others_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await append(store, "for all of the group")
    path.chmod(0o660)
    async with sqlite_store(path) as store:
        await append(store, "more")
        assert await store.hold("s")
        assert set(rights(tmp_path).values()) == {0o660}


async def test_nobody_else_may_read_an_export(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES])):
        run = await temporal.start(agent)
        await pending(run)
        made, there = tmp_path / "made.json", tmp_path / "there.json"
        there.touch(mode=0o640)
        for file in (made, there):
            await done(temporal, "export", run.id, "--file", str(file))
        assert (made.stat().st_mode & 0o777, there.stat().st_mode & 0o777) == (0o600, 0o640)


# --- files beside it ---


async def test_a_link_instead_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "somebody's file"
    for make in (os.symlink, os.link):
        other.write_text("theirs")
        other.chmod(0o640)
        lock = tmp_path / "standfast.db-lock"
        make(other, lock)
        async with sqlite_store(tmp_path / "standfast.db") as store:
            await append(store, "a")
            with pytest.raises(StoreError, match=r"standfast\.db-lock cannot be used"):
                await store.hold("s")
        assert (other.read_text(), other.stat().st_mode & 0o777) == ("theirs", 0o640)
        lock.unlink()
    os.symlink(tmp_path / "to be made", tmp_path / "standfast.db-lock")
    async with sqlite_store(tmp_path / "standfast.db") as store:
        with pytest.raises(StoreError):
            await store.hold("s")
    assert not (tmp_path / "to be made").exists()


async def test_a_pipe_instead_of_a_lock_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "standfast.db-lock")
    async with sqlite_store(tmp_path / "standfast.db") as store:
        with pytest.raises(StoreError, match="it is a link, or not a file"):
            await store.hold("s")


# --- rows ---


async def fill(store: SQLiteStore) -> None:
    call = ToolCall(id="c1", name="t", arguments={"a": 1})
    said = Message(role="assistant", content="x", tool_calls=(call,), usage=Usage(input_tokens=1), model="m")
    session = Session(id="s", agent_name="a", usage=Usage(input_tokens=1))
    await store.append_messages_atomic("s", [said], session, expected_seq=0, expected_version=0)
    running = RunningCall(owner="o", worker="w", task_token="t", workflow_id="w", run_id="r")
    await store.claim("r", "c", owner="o", arguments_hash="h", running=running)
    at = datetime.now(UTC)
    await store.record_decision(DecisionRecord(journal_key="r", gate="g", at=at, decision="approve", edit={"a": 1}))


LOOKS: dict[str, Any] = {
    "agent_sessions": lambda store: store.load_session("s"),
    "agent_messages": lambda store: store.load_messages("s"),
    "tool_ledger": lambda store: store.load_entries("r", ["c"]),
    "running_calls": lambda store: store.running_calls(),
    "gate_decisions": lambda store: store.load_decisions("r"),
}
TORN = [
    ("agent_sessions", "questions", "session s"),
    ("agent_sessions", "usage", "session s"),
    ("agent_sessions", "created_at", "session s"),
    ("agent_messages", "role", "session s, message 1 of 1"),
    ("agent_messages", "tool_calls", "session s, message 1 of 1"),
    ("agent_messages", "status", "session s, message 1 of 1"),
    ("agent_messages", "usage", "session s, message 1 of 1"),
    ("agent_messages", "more", "session s, message 1 of 1"),
    ("tool_ledger", "state", "call c of run r in the ledger"),
    ("gate_decisions", "at", "decision 1 of 1 of run r"),
    ("gate_decisions", "decision", "decision 1 of 1 of run r"),
    ("gate_decisions", "edit", "decision 1 of 1 of run r"),
]


@pytest.mark.parametrize("torn", ["{[", "[1]", "7"])
@pytest.mark.parametrize(("table", "column", "row"), TORN)
async def test_a_row_that_nobody_could_have_written_is_damage_that_is_named(
    tmp_path: Path, table: str, column: str, row: str, torn: str
) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await fill(store)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE {table} SET {column} = ?", (torn,))
        db.commit()
    async with sqlite_store(path) as store:
        fine = [("edit", "[1]"), ("edit", "7"), ("at", "7"), ("created_at", "7")]
        if (column, torn) in fine or (table, column, torn) == ("agent_sessions", "usage", "[1]"):
            assert await LOOKS[table](store)  # such a one could have been written
            return
        with pytest.raises(StoreError) as caught:
            await LOOKS[table](store)
        assert str(caught.value).startswith(f"The store has {row} {'of' if table == 'tool_ledger' else 'in'} {path}, ")
        assert "input_value" not in str(caught.value)  # what is there is the session's
        if table == "agent_sessions":
            with pytest.raises(StoreError, match="has session s in "):
                await store.list_sessions()


# --- secrets ---


def test_what_is_written_of_a_webhook_has_no_secrets_in_it() -> None:
    links = ApprovalLinks(page="https://runs.example.com", secret="the secret of all links", by="ada")
    hook = Webhook(url="https://hooks.example.com/T0/B0/part", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                   approval_links=links)  # fmt: skip
    shown = repr(hook)
    assert all(secret not in shown for secret in ("whsec_", "MfKQ", "T0/B0", "the secret"))
