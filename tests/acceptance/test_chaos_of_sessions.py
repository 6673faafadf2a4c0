"""Sessions that live through many runs, drivers, operators and deaths keep every promise; see `chaos_of_sessions`."""

import asyncio
import os

import pytest

from acceptance.chaos_faults import faults
from acceptance.chaos_of_sessions import Chaos
from acceptance.replays import chosen_seed
from acceptance.temporal_world import World
from acceptance.test_one_ledger import three_runs
from standfast.temporal.workflows import agent_workflows

SESSIONS = int(os.environ.get("CHAOS_SESSIONS", "6"))
STEPS = 2  # of a run, after which it continues as new
RUNS = int(os.environ.get("CHAOS_RUNS", "3"))
# With this seed calls of both cases are lost twice: before their claim, then after their effect.
REVEALING = 5209


async def test_sessions_keep_every_promise_whatever_happens_to_their_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", STEPS)  # of the replays
    seed = chosen_seed()
    chaos, cases = Chaos(world, seed, steps=STEPS), [f"s{number}" for number in range(SESSIONS)]
    pipelines = [f"p{number}" for number in range(SESSIONS // 2)]
    desks = [f"d{number}" for number in range(SESSIONS // 3)]
    for _ in range(2):
        await chaos.hire()
    killing = asyncio.create_task(chaos.trouble_workers())
    try:
        async with asyncio.timeout(240):
            await asyncio.gather(
                *(chaos.live(case, RUNS) for case in cases),
                *(chaos.run_pipeline(case) for case in pipelines),
                *(chaos.run_pipeline(case, "desk") for case in desks),
            )
    finally:
        killing.cancel()
        print(f"CHAOS_SEED={seed}", *chaos.books.notes, sep="\n")  # noqa: T201
    assert await faults(chaos, cases, pipelines) == []


@pytest.mark.parametrize("mutant", [False, True])
async def test_faults_are_found_where_the_key_of_a_call_is_the_runs(world: World, mutant: bool) -> None:
    await three_runs(world, mutant=mutant)
    assert await faults(Chaos(world, 0), ["case"]) == (["case.1 of charge had 2 effects"] if mutant else [])


async def test_the_chaos_itself_finds_out_where_the_key_of_a_call_is_the_runs(world: World) -> None:
    chaos, cases = Chaos(world, REVEALING, mutant=True), ["s0", "s1"]
    for _ in range(2):
        await chaos.hire()
    async with asyncio.timeout(100):
        await asyncio.gather(*(chaos.live(case, 2) for case in cases))
    assert [fault for fault in await faults(chaos, cases) if fault.endswith("had 2 effects")], chaos.books.notes
