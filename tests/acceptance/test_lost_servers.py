"""The Temporal server is killed in the middle of effects and restarted on its database."""

import asyncio
from pathlib import Path

import pytest

from acceptance.temporal_world import LOST, world
from standfast.temporal import dev_server


@pytest.mark.slow
async def test_effects_outlive_the_server_and_power_losses_are_no_second_effects(tmp_path: Path) -> None:
    database = tmp_path / "temporal.db"
    async with dev_server(db_filename=database) as server:
        port = int(server.address.rpartition(":")[2])
        async with world(tmp_path / "server", server.address) as one, world(tmp_path / "power", server.address) as two:
            await one.worker("a")
            doomed = await two.worker("a")
            survivors = [
                await one.start_and_stop(tool, tool, "after-effect", worker="a") for tool in ("charge", "look")
            ]
            reporting = await one.start_and_stop("reported", "charge", "after-record", worker="a")
            lost = [await two.start_and_stop(tool, tool, "after-effect", worker="a") for tool in ("charge", "look")]
            server.kill()
            doomed.kill()
            for tool in ("charge", "look"):
                one.go_on("after-effect", f"{tool}.1", worker="a")
            one.go_on("after-record", "reported.1", worker="a")
            async with dev_server(db_filename=database, port=port), asyncio.timeout(60):
                await two.worker("b")
                ended = await asyncio.gather(*(run.result() for run in [*survivors, reporting, *lost]))
                assert {result["status"] for result in ended} == {"complete"}
                for case in ("charge", "look", "reported"):
                    name = "charge" if case == "reported" else case
                    assert name in (await one.transcript(case))[0]
                    assert (one.count("effects", case), one.model_calls(case)) == (1, [0, 1])
                    assert await one.results(case) == [f"completed: did {case}.1"]
                assert (two.count("effects", "charge"), await two.results("charge")) == (1, [f"failed: {LOST}"])
                assert (two.count("effects", "look"), await two.results("look")) == (2, ["completed: did look.1"])
                assert [two.model_calls(case) for case in ("charge", "look")] == [[0, 1]] * 2
