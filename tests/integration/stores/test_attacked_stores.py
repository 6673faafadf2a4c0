"""Stores that are locked or full while runs are active: runs wait, and no effect happens twice."""

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, result, until, waiting
from support.transcripts import asks_for, call

from standfast import Agent, sqlite_store, tool
from standfast.messages import Message
from standfast.testing import ScriptedModel

RUNS = 6
_LOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


class Poster:
    """An agent that posts five times, and what it has posted."""

    def __init__(self) -> None:
        self.effects: list[str] = []

        @tool
        async def post(text: str) -> str:
            """Post a text."""
            self.effects.append(text)
            await asyncio.sleep(0.02)
            return text * 200

        self.agent = Agent("poster", tools=[post])
        self.model = ScriptedModel(self._answer)

    def _answer(self, messages: Sequence[Message], tools: Any) -> Any:
        done = sum(message.role == "tool" for message in messages)
        if done == 5:
            return "done"
        return asks_for(call("post", f"p{done}", text=f"{messages[1].content}.{done}"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def check(runs: list[Run], poster: Poster) -> None:
    for run in runs:
        assert (await result(run))["response"] == "done"
        assert await waiting(run) == []
        await check_healthy(run)
    assert Counter(poster.effects) == Counter(f"m{run}.{call}" for run in range(RUNS) for call in range(5))


async def _all_wait(runs: list[Run]) -> bool:
    items = [item["kind"] for run in runs for item in await waiting(run)]
    return items == ["store"] * len(runs)


@pytest.mark.slow
async def test_runs_whose_store_is_locked_by_another_process_say_so_and_continue(
    temporal: Temporal, tmp_path: Path
) -> None:
    poster, path = Poster(), tmp_path / "locked.db"
    async with (
        sqlite_store(path) as store,
        temporal.worker(poster.agent, llm=poster.model, store=store, store_patience=1),
    ):
        runs = [await temporal.start(poster.agent, f"m{n}", session=f"s{n}") for n in range(RUNS)]
        await until(lambda: len(poster.effects) > RUNS)
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        locking = await asyncio.create_subprocess_exec(sys.executable, "-c", _LOCK, str(path), **pipes)
        assert locking.stdout is not None
        assert await locking.stdout.readline() == b"locked\n"
        late = await temporal.start(poster.agent, "late", session="late")
        await until(partial(_all_wait, [late]))
        assert "is locked by another process" in (await waiting(late))[0]["message"]
        await late.terminate()
        await locking.communicate(b"")  # whose end it waits for
        await check(runs, poster)


async def test_runs_whose_store_is_on_a_full_disk_say_so_and_continue_when_there_is_room(
    temporal: Temporal, small: Path
) -> None:
    poster, filler = Poster(), small / "filler"
    async with (
        sqlite_store(small / "full.db") as store,
        temporal.worker(poster.agent, llm=poster.model, store=store, store_patience=1),
    ):
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                """Until it is full."""
        runs = [await temporal.start(poster.agent, f"m{n}", session=f"s{n}") for n in range(RUNS)]
        await until(partial(_all_wait, runs))
        assert "the disk is full" in (await waiting(runs[0]))[0]["message"]
        filler.unlink()
        await check(runs, poster)
