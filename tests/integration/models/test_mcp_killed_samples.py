"""Processes are killed while their model answers an MCP server, or just after."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.temporal_runs import Temporal, result, until

from standfast import sqlite_store

TESTS = Path(__file__).parents[2]
WHEN = ["while the model answers", "when it has answered"]


@asynccontextmanager
async def program(*words: object) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.mcp_sampling_program",
        *map(str, words),
        cwd=TESTS,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def kill(process: Any, directory: Path, when: str) -> None:
    """Kill a process at a moment, and let what was waited for happen from then on."""
    if when == WHEN[1]:
        (directory / "answer").touch()
        (directory / "heard.hold").touch()
    await until(lambda: lines(directory / ("heard" if when == WHEN[1] else "asked")))
    process.kill()
    await process.wait()
    (directory / "answer").touch()
    (directory / "heard.hold").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
async def test_a_worker_that_is_killed_asks_its_model_again_only_if_it_has_not_answered(
    temporal: Temporal, tmp_path: Path, when: str
) -> None:
    words = (tmp_path, "-", temporal.client.service_client.config.target_host, temporal.name)
    async with program(*words) as first:
        run = await temporal.start("a")
        await kill(first, tmp_path, when)
    async with program(*words):
        ended = await result(run)
    assert (ended["status"], ended["response"]) == ("complete", '["a thought"]')
    assert ended["usage"]["input_tokens"] == 100
    assert len(lines(tmp_path / "asked")) == (1 if when == WHEN[1] else 2)


@pytest.mark.slow
@pytest.mark.parametrize("when", WHEN)
async def test_a_killed_run_asks_its_model_again_only_if_it_has_not_answered(tmp_path: Path, when: str) -> None:
    async with program(tmp_path, "s") as first:
        await kill(first, tmp_path, when)
    async with program(tmp_path, "s") as second:
        said = await second.stdout.read()
    assert said.decode().strip() == 'complete ["a thought"] 100'
    assert len(lines(tmp_path / "asked")) == (1 if when == WHEN[1] else 2)
    store = sqlite_store(tmp_path / "standfast.db")
    try:
        (kept,) = await store.list_sessions(agent_name="a-sampling")
        assert [one.content for one in await store.load_messages(kept.id)][1:] == ["a thought"]
    finally:
        await store.close()
