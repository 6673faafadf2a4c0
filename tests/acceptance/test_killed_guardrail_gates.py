"""A process is killed while people decide on a value that a guardrail has stopped; another process continues."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from standfast.errors import StandfastError
from standfast.stores import sqlite_store
from standfast.temporal import StandfastClient, connect, start_agent
from standfast.testing import child_process

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def command(folder: Path, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "support.stopped_calls", str(folder), *words)


def lines(folder: Path, what: str) -> int:
    path = folder / what
    return len(path.read_text().splitlines()) if path.exists() else 0


async def decided(folder: Path, journal_key: str) -> list[str | None]:
    """Return who has decided, as far as it counted."""
    async with sqlite_store(folder / "store.db") as store:
        return [row.by for row in await store.load_decisions(journal_key) if row.refused is None]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "window",
    [
        "before append_messages_atomic 1",
        "after append_messages_atomic 1",
        "before record_decision 1",
        "after record_decision 1",
        "after append_messages_atomic 2",
        "after record_decision 2",
        "before append_messages_atomic 3",
    ],
)
def test_a_process_that_dies_at_the_gate_of_a_stopped_call_pays_once_and_each_is_asked_once(
    tmp_path: Path, window: str
) -> None:
    codes = [
        subprocess.run(command(tmp_path, "payer", window), env=ENVIRONMENT, timeout=60).returncode for _ in range(2)
    ]
    assert codes == [-signal.SIGKILL, 0]
    assert asyncio.run(decided(tmp_path, "payer/s")) == ["bob", "ada"]
    asked = 2 if window == "before append_messages_atomic 1" else 1
    assert (lines(tmp_path, "paid"), lines(tmp_path, "asked")) == (1, asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        "after append_messages_atomic 1",
        "before record_decision 1",
        "before append_messages_atomic 3",
        "after record_decision 2",
        "before append_messages_atomic 5",
    ],
)
def test_a_process_that_dies_at_the_gates_of_a_message_and_its_answer_asks_the_model_and_each_person_once(
    tmp_path: Path, window: str
) -> None:
    codes = [
        subprocess.run(command(tmp_path, "talker", window), env=ENVIRONMENT, timeout=60).returncode for _ in range(2)
    ]
    assert codes == [-signal.SIGKILL, 0]
    assert asyncio.run(decided(tmp_path, "talker/s")) == ["bob", "ada"]
    asked_again = window == "before append_messages_atomic 3"  # the answer was not kept yet
    assert (lines(tmp_path, "answered"), lines(tmp_path, "asked")) == ((2, 3) if asked_again else (1, 2))


async def until_it_ends(folder: Path, agent: str, address: str, window: str) -> tuple[dict[str, Any], str]:
    """Return the result of a run whose worker dies, and its journal key; everyone who is asked approves."""
    queue, client = uuid4().hex, await connect(address)
    people = StandfastClient(client)
    run = await start_agent(client, agent, message="go", session_id=queue, task_queue=queue)
    codes: list[int] = []

    async def work() -> None:
        while True:
            words = command(folder, agent, window, address, queue)
            async with child_process(*words, environment=ENVIRONMENT) as process:
                codes.append(await process.wait())

    async def decide() -> None:
        while True:
            with contextlib.suppress(StandfastError):  # it dies: whether that counted is unknown
                for item in await people.pending(run.id):
                    by: Any = {"by": item["approvers"][0], "digest": item["digest"]}
                    await people.decide(run.id, item["name"], "approve", **by)
            await asyncio.sleep(0.05)

    others = [asyncio.create_task(work()), asyncio.create_task(decide())]
    try:
        async with asyncio.timeout(60):
            ended = await run.result()
    finally:
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    assert codes[0] == -signal.SIGKILL
    return ended, run.result_run_id or ""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("window", ["before append_reply 1", "after record_decision 1", "before record_decision 2"])
async def test_a_worker_that_dies_at_the_gate_of_a_stopped_call_pays_once_and_each_is_asked_once(
    tmp_path: Path, address: str, window: str
) -> None:
    ended, key = await until_it_ends(tmp_path, "payer", address, window)
    assert ended["status"] == "complete"
    assert await decided(tmp_path, key) == ["bob", "ada"]
    assert (lines(tmp_path, "paid"), lines(tmp_path, "asked")) == (1, 2 if window == "before append_reply 1" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["after append_reply 1", "before append_reply 3"])
async def test_a_worker_that_dies_at_the_gates_of_a_message_and_its_answer_asks_each_person_once(
    tmp_path: Path, address: str, window: str
) -> None:
    ended, key = await until_it_ends(tmp_path, "talker", address, window)
    assert (ended["status"], ended["response"]) == ("complete", "a refund")
    assert await decided(tmp_path, key) == ["bob", "ada"]
    assert (lines(tmp_path, "answered"), lines(tmp_path, "asked")) == (1, 2)
