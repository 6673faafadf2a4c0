"""A call notes the sessions of the agents that it runs, each once, whichever attempt runs them in which order."""

import asyncio
from pathlib import Path

import pytest

from standfast import Usage, sqlite_store
from standfast.runtime.model_answers import UsageNotes, called_agents, noted_usage
from standfast.stores import SQLiteStore


def attempt(store: SQLiteStore) -> UsageNotes:
    return UsageNotes(store, called_agents("s1/2", "c1"))


async def noted(store: SQLiteStore) -> list[str]:
    found: list[str] = []
    while (session := await store.load_reply("s1/2/c1/agents", len(found))) is not None:
        found.append(session)
    return found


async def test_each_session_is_noted_once_over_attempts_that_differ(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        first, second = attempt(store), attempt(store)
        for session in ("a", "b", "c"):
            await first.session(session)
        for session in ("c", "a", "d", "d"):
            await second.session(session)
        assert await noted(store) == ["a", "b", "c", "d"]


async def test_a_call_reads_each_note_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        read, original = list[int](), store.load_reply

        async def load(place: str, number: int) -> str | None:
            read.append(number)
            return await original(place, number)

        monkeypatch.setattr(store, "load_reply", load)
        one = attempt(store)
        for number in range(4):
            assert await one.session(f"a{number}")
        assert read == [0, 1, 2, 3]


async def test_sessions_that_begin_at_once_are_all_noted(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        one = attempt(store)
        await asyncio.gather(*(one.session(f"a{number}") for number in range(6)))
        assert sorted(await noted(store)) == [f"a{number}" for number in range(6)]


async def test_equal_usages_that_are_noted_at_once_all_count(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        one, two = attempt(store), attempt(store)
        await asyncio.gather(*(which.usage(Usage(input_tokens=1)) for which in (one, two, one)), one.session("a"))
        assert await noted_usage(store, called_agents("s1/2", "c1")) == Usage(input_tokens=3)
