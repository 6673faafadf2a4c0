"""A worker dies at every write between a decision and the end of the approved call: no effect happens twice."""

import asyncio
from pathlib import Path

import pytest
from support.temporal_runs import check_healthy

from integration.effects.test_operated_effects import Shop, told
from standfast.temporal import connect
from standfast.testing import DevServer

# By the write at which the worker is killed: how often the effect has happened, and what its workflow is told.
WINDOWS = {
    "before record_decision": (1, "did case"),
    "after record_decision": (1, "did case"),
    "before claim": (1, "did case"),
    "after claim": (0, "ToolDurabilityError"),
    "before finish": (1, "ToolDurabilityError"),
    "after finish": (1, "did case"),
}


async def killed(server: DevServer, folder: Path, window: str) -> tuple[int, str]:
    """Let a worker be killed at a write, and return the outcome of its effect with the next worker."""
    folder.mkdir()
    shop = Shop(await connect(server.address), server.address, folder)
    async with shop.worker(window) as process:
        run = await shop.start("approved", "case", "gate, soon tried again")
        item = await shop.opens(run)
        await run.signal("approve", {"gate": item["name"], "digest": item["digest"], "by": "ada"})
        await process.wait()
    async with shop.worker():
        said = await told(run)
    await check_healthy(run)
    return shop.effects("case"), said


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_a_write_of_an_approved_effect_repeats_none(
    temporal_server: DevServer, tmp_path: Path
) -> None:
    ended = [killed(temporal_server, tmp_path / window.replace(" ", "-"), window) for window in WINDOWS]
    assert dict(zip(WINDOWS, await asyncio.gather(*ended), strict=True)) == WINDOWS
