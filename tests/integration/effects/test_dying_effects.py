"""A guarded call whose process is killed in each window; concurrent processes, and forks."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from support.postgres import PostgresServer

from standfast import sqlite_store
from standfast.effects import ToolDurabilityError, effect
from standfast.stores import open_store

TESTS = Path(__file__).parents[2]


async def begin(address: str, folder: Path, window: str) -> asyncio.subprocess.Process:
    words = ("-W", "ignore", "-m", "support.dying_effects", address, str(folder), window)
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, "PYTHONPATH": str(TESTS)}, stderr=asyncio.subprocess.DEVNULL
    )


def charges(folder: Path) -> int:
    return len((folder / "charges").read_text().splitlines()) if (folder / "charges").exists() else 0


@pytest.mark.parametrize(
    ("window", "outcome", "in_all"),
    [
        ("before claim", "runs", 1),
        ("after claim", "unknown", 0),
        ("in it", "unknown", 0),
        ("behind it", "unknown", 1),
        ("before finish", "unknown", 1),
        ("after finish", "kept", 1),
    ],
)
async def test_whatever_the_window_it_runs_once_at_most_and_the_next_attempt_says_what_is_known(
    tmp_path: Path, window: str, outcome: str, in_all: int
) -> None:
    path = tmp_path / "store.db"
    assert await (await begin(str(path), tmp_path, window)).wait() == -signal.SIGKILL
    ran = []

    @effect(sqlite_store(path), "charge", key=lambda order: order)
    async def charge(order: str) -> int:
        ran.append(order)
        return 5

    for _ in range(2):
        if outcome == "unknown":
            with pytest.raises(ToolDurabilityError, match="its process ended while it ran"):
                await charge("a")
        else:
            assert await charge("a") == 5
    assert len(ran) == (outcome == "runs")
    assert charges(tmp_path) + len(ran) == in_all


@pytest.mark.slow
async def test_processes_that_do_the_same_at_once_do_it_once(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    processes = [await begin(path, tmp_path, "none") for _ in range(4)]
    assert [await process.wait() for process in processes] == [0] * 4
    assert charges(tmp_path) == 1


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_death_of_a_process_is_seen_though_a_child_that_it_has_forked_lives(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "store.db")
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        address = server.dsn()
    assert await (await begin(address, tmp_path, "forked")).wait() == -signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    async with open_store(address) as store:

        @effect(store, "charge", key=lambda order: order)
        async def charge(order: str) -> int:
            raise AssertionError("it ran again")

        with pytest.raises(ToolDurabilityError, match="its process ended while it ran"):
            await asyncio.wait_for(charge("a"), 30)
    os.kill(child, 0)  # it lives
    (tmp_path / "told").touch()
