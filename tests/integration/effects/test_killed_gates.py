"""A worker dies at every write between a decision and the end of what it lets through: no effect happens twice."""

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


@pytest.mark.parametrize("window", WINDOWS)
async def test_a_worker_that_is_killed_at_a_write_of_an_approved_effect_repeats_none(
    temporal_server: DevServer, tmp_path: Path, window: str
) -> None:
    shop = Shop(await connect(temporal_server.address), temporal_server.address, tmp_path)
    async with shop.worker(window) as process:
        run = await shop.start("approved", "case", "gate, soon tried again")
        item = await shop.opens(run)
        await run.signal("approve", {"gate": item["name"], "digest": item["digest"], "by": "ada"})
        await process.wait()
    async with shop.worker():
        assert (await told(run), shop.effects("case")) == WINDOWS[window][::-1]
    await check_healthy(run)
