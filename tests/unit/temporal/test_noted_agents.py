"""A call notes the sessions of the agents that it runs, each once, whichever attempt runs them in which order."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from standfast import sqlite_store
from standfast.stores import SQLiteStore
from standfast.temporal.activities.tools.agent_invoker import Invocations


def attempt(store: SQLiteStore) -> Invocations:
    unused: Any = None
    record: Any = SimpleNamespace(key="s1/2")
    return Invocations(unused, unused, store, unused, "c1", record, 0, None, None, None)


async def noted(store: SQLiteStore) -> list[str]:
    found: list[str] = []
    while (session := await store.load_reply("s1/2/c1/agents", len(found))) is not None:
        found.append(session)
    return found


async def test_each_session_is_noted_once_over_attempts_that_differ(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        first, second = attempt(store), attempt(store)
        for session in ("a", "b", "c"):
            await first._note(session)
        for session in ("c", "a", "d", "d"):
            await second._note(session)
        assert await noted(store) == ["a", "b", "c", "d"]


async def test_sessions_that_begin_at_once_are_all_noted(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        one = attempt(store)
        await asyncio.gather(*(one._note(f"a{number}") for number in range(6)))
        assert sorted(await noted(store)) == [f"a{number}" for number in range(6)]
