"""Workers are killed at random, again and again, under many runs with effects."""

import asyncio
import random
from itertools import count

import pytest

from acceptance.replays import chosen_seed, failed_replays
from acceptance.temporal_world import LOST, World
from standfast.agents import LANES

PLANS = (
    "charge look charge_plainly look_plainly charge",
    "charge_beside+charge_beside+look_beside charge look+charge",
    "look charge+look+charge charge_beside+charge_beside",
)
RUNS = 12
KILLS = 6
CUT_OFF = 'failed: {"error": "Tool \\"%s\\": it was cut off '


async def kill_at_random(world: World, chance: random.Random) -> None:
    """Keep two workers, and kill one of them at a time; leave two alive."""
    names = (f"w{number}" for number in count())
    alive = [await world.worker(next(names), pace=0.2, lane=lane) for lane in LANES]
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        alive.pop(chance.randrange(len(alive))).kill()
        alive.append(await world.worker(next(names), pace=0.2, lane=chance.choice(LANES)))


@pytest.mark.slow
async def test_runs_complete_and_no_unsafe_effect_happens_twice_whatever_dies(world: World) -> None:
    seed = chosen_seed()
    plans = {f"run-{number}": PLANS[number % len(PLANS)] for number in range(RUNS)}
    async with asyncio.timeout(180):
        runs = await asyncio.gather(*(world.start(case, plan) for case, plan in plans.items()))
        killing = asyncio.create_task(kill_at_random(world, random.Random(seed)))
        results = await asyncio.gather(*(run.result() for run in runs))
        await killing
    assert await failed_replays(world, seed) == []
    assert [result["response"] for result in results] == [f"done {case}" for case in plans]
    for case, plan in plans.items():
        tools = plan.replace("+", " ").split()
        found = await world.results(case)
        assert len(found) == len(tools)
        for number, (tool, result) in enumerate(zip(tools, found, strict=True), 1):
            call = f"{case}.{number}"
            happened, effects = f"completed: did {call}", world.effects(call)
            if tool.startswith("look"):
                assert result == happened or result.startswith(CUT_OFF % tool), (call, tool, result)
            else:
                assert (effects, result) in [(1, happened), (1, f"failed: {LOST}"), (0, f"failed: {LOST}")], call
