"""Workers are killed at random while people decide: no run is wedged, and no sender is told anything false."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from acceptance.replays import failed_replays
from acceptance.temporal_world import World, until
from standfast.errors import InputError, NotConfirmedError, StandfastError
from standfast.temporal import StandfastClient, connect
from standfast.temporal.client.runs.owners import Run

PLAN = "charge_approved look charge_approved"
RUNS, SECONDS = 12, 10.0


@dataclass
class Told:
    """What those who decided were told, by who they said they are."""

    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    unsure: int = 0


class Storm:
    def __init__(self, world: World, people: StandfastClient) -> None:
        self.world, self.people, self.told = world, people, Told()
        self.runs: list[Run] = []
        self.asked: Counter[str] = Counter()
        self.decided: set[tuple[str, str]] = set()
        self.sending: list[asyncio.Task[None]] = []

    async def kill_at_random(self, seconds: float) -> int:
        """Keep two workers, and kill one of them at a time; leave two alive."""
        names, killed = (f"w{number}" for number in count()), 0
        alive = [await self.world.worker(next(names), pace=0.2) for _ in range(2)]
        until_ = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            alive.pop(random.randrange(len(alive))).kill()
            alive.append(await self.world.worker(next(names), pace=0.2))
            killed += 1
        return killed

    async def look_on(self) -> None:
        """Ask what waits, and decide on all of it; two send for each gate, of whom one counts."""
        while True:
            for item in await self.people.waiting():
                place = item["workflow_id"], item["name"]
                self.asked[item["kind"]] += 1
                if item["kind"] == "approval" and place not in self.decided:
                    self.decided.add(place)
                    self.sending += [asyncio.create_task(self.decide(*place, item["digest"])) for _ in range(2)]
            await asyncio.sleep(0.05)

    async def ask_state(self) -> None:
        while True:
            try:
                await self.people.status(random.choice(self.runs).id)
            except StandfastError:
                self.asked["no answer"] += 1
            else:
                self.asked["status"] += 1
            await asyncio.sleep(0.01)

    async def decide(self, workflow_id: str, gate: str, digest: str) -> None:
        who, sent = f"p-{uuid4().hex[:8]}", None
        while True:
            try:
                await self.people.decide(workflow_id, gate, "approve", by=who, digest=digest, id=sent)
            except NotConfirmedError as error:
                sent = error.id
                self.told.unsure += 1
                continue
            except InputError as error:
                self.told.refused[who] = str(error)
            else:
                self.told.accepted.add(who)
            return

    async def counted(self) -> set[str]:
        """Return whose decisions counted, by the audit trail."""
        found: set[str] = set()
        for run in self.runs:
            key = (await run.describe()).raw_info.first_run_id
            decisions = await self.world.store.load_decisions(key)
            found |= {str(one.by) for one in decisions if one.refused is None}
        return found


async def storm(world: World, runs: int, seconds: float, lookers: int = 2) -> tuple[Storm, int]:
    """Let it blow, and return when all runs have ended and all senders been told."""
    made = Storm(world, StandfastClient(await connect(world.address)))
    made.runs = list(await asyncio.gather(*(world.start(f"run-{number}", f"{PLAN}") for number in range(runs))))
    background = [asyncio.create_task(made.look_on()) for _ in range(2)]
    background += [asyncio.create_task(made.ask_state()) for _ in range(lookers)]
    try:
        killed = await made.kill_at_random(seconds)
        await asyncio.gather(*(run.result() for run in made.runs))
        await until(lambda: all(task.done() for task in made.sending), "everybody was told", 30)
    finally:
        for task in background:
            task.cancel()
        ended = await asyncio.gather(*background, return_exceptions=True)
    await asyncio.gather(*made.sending)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    return made, killed


@pytest.mark.slow
async def test_no_run_is_wedged_and_no_sender_misled_by_decisions_and_queries_while_workers_die(world: World) -> None:
    async with asyncio.timeout(120):
        blown, _ = await storm(world, RUNS, SECONDS)
    await check(world, blown)


async def check(world: World, blown: Storm) -> None:
    assert await failed_replays(world) == []
    assert len(blown.told.accepted) == len(blown.decided) == PLAN.count("approved") * len(blown.runs)
    assert await blown.counted() == blown.told.accepted
    assert not blown.told.accepted & blown.told.refused.keys()
    effects: Any = Counter((world.folder / "effects.txt").read_text().split())
    assert all(effects[call] <= 1 for call in effects if not call.endswith(".2")), effects
