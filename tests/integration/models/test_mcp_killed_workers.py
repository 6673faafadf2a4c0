"""Workers are killed while an MCP server works for them, over HTTP and as their child process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.mcp_processes import ServerProcess
from support.temporal_runs import Temporal, result, until

TESTS = Path(__file__).parents[2]


@asynccontextmanager
async def worker(temporal: Temporal, *words: str) -> AsyncIterator[Any]:
    address = temporal.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.mcp_worker", address, temporal.name, *words, cwd=TESTS
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("kind", ["effects", "safe"])
async def test_a_call_whose_worker_was_killed(temporal: Temporal, tmp_path: Path, transport: str, kind: str) -> None:
    """One with effects was made once, and its outcome is unknown to the model; a safe one is made again."""
    effects = tmp_path / "effects"

    def lines() -> list[str]:
        return effects.read_text().splitlines() if effects.exists() else []

    async with AsyncExitStack() as stack:
        where = str(effects)
        if transport == "http":
            where = (await stack.enter_async_context(ServerProcess(effects))).url
        words = (str(tmp_path / "standfast.db"), kind, where)
        async with worker(temporal, *words) as first:
            run = await temporal.start("a")
            await until(lines)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        effects.with_suffix(".release").touch()
        if transport == "stdio":  # it has lost its client, and does not stay behind
            await until(lambda: not _is_alive(int(lines()[0].split()[1])))
        async with worker(temporal, *words):
            ended = await result(run)
    assert ended["status"] == "complete"
    if kind == "safe":
        assert (len(lines()), ended["response"]) == (2, "lingered")
    else:
        assert len(lines()) == 1
        assert '"kind": "tool-durability-error"' in ended["response"]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
