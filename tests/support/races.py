"""Lets people race: several decide at once through all doors, while deadlines, ends, resets and crashes come.

Each race is judged by what is in the store afterwards. Nobody was told that their decision counts when it does not, or
that it does not when it does; one decision counted, or a quorum; and what was approved ran once, as it was approved.

`python -m support.races [RACES]` runs 1,000 in tests/, with two workers, and prints the outcomes of each pair of doors.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx
from temporalio.service import RPCError

from standfast import sqlite_store
from standfast.errors import StandfastError
from standfast.stores import DecisionRecord
from standfast.temporal import connect, start_pipeline
from standfast.testing import dev_server
from standfast.web import create_app
from support.pages import served
from support.race_doors import Doors, Press, RacingSlack, Said, access
from support.racing_runs import AGENTS, DOORS, LINE, SOON
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, until, wedges

Rival = Literal["cancel", "terminate", "reset", "reset without messages", "killed worker"]
AT_ONCE = 28  # races
_TESTS = Path(__file__).parents[1]
_PAIRS = list(combinations_with_replacement(DOORS, 2))
_LAST = 15.0  # seconds after which those decide who end a run that no one else has ended


@dataclass(frozen=True)
class Race:
    """Who decides at which gate, through which doors, and what comes between.

    Args:
        doors: each of another person; the decision, the amount that is shipped instead, and the seconds to wait.
    """

    number: int
    gate: str
    doors: tuple[tuple[str, Literal["approve", "reject"], int | None, float], ...]
    rival: Rival | None = None

    @property
    def name(self) -> str:
        return f"{self.gate}-{self.number}"


@dataclass
class Told:
    """What someone was told."""

    who: str
    decision: str
    gate: str
    said: Said


@dataclass
class Ended:
    """What came of a race: what people were told, what the store has, what was shipped, and what is wrong.

    Args:
        late: decisions that a run was just recording when it was reset, and that were in the store only after the next
            run had looked for them. They are there, were not acknowledged, and another one counted.
    """

    race: Race
    told: list[Told]
    counted: list[DecisionRecord] = field(default_factory=list)
    shipped: list[int] = field(default_factory=list)
    status: str = ""
    late: int = 0
    wrong: list[str] = field(default_factory=list)


def races(count: int, seed: int = 1) -> list[Race]:
    """Return races of all kinds: each pair of doors as often as the others."""
    return [_race(number, random.Random(seed * 1_000_003 + number)) for number in range(count)]


def _race(number: int, chance: random.Random) -> Race:
    pair = _PAIRS[number % len(_PAIRS)]
    gates = ["plain"] * 10 + ["quorum"] * 3 + ["both"] * 2 + ["line"] * 2 + ["rejects"] * 2 + ["approves"] * 2
    gate = chance.choice([*gates, "escalates", "reminds"])
    rivals: list[Rival | None] = ["cancel", "terminate", "reset", "reset without messages", "killed worker"]
    rival = chance.choice([*rivals, *[None] * 15]) if gate in ("plain", "quorum", "line") else None
    doors = [*pair, *chance.sample(DOORS, chance.choice((0, 0, 1, 2)))]
    about = {"reminds": 1.0, "escalates": SOON, "rejects": SOON, "approves": SOON}.get(gate, 0.0)

    def one(place: int, door: str) -> tuple[str, Literal["approve", "reject"], int | None, float]:
        decision: Literal["approve", "reject"] = (
            "approve" if chance.random() < (0.7 if gate == "quorum" else 0.5) else "reject"
        )
        edits = decision == "approve" and gate in ("plain", "rejects") and door != "slack" and chance.random() < 0.4
        wait = max(0.0, about + chance.uniform(-0.4, 0.3)) if about else chance.choice((0.0, chance.uniform(0, 0.06)))
        return door, decision, 10 + place if edits else None, wait

    return Race(number, gate, tuple(one(place, door) for place, door in enumerate(doors)), rival)


class World:
    """A server with two workers, a page and Slack, at which people race."""

    def __init__(self, temporal: Temporal, doors: Doors, effects: Path, environment: dict[str, str]) -> None:
        self.temporal, self._doors, self._effects = temporal, doors, effects
        self._environment = environment
        self._workers = [self._worker() for _ in range(2)]
        self._killing = asyncio.Lock()

    def _worker(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "support.racing_runs"]
        with self._effects.with_name("workers.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=_TESTS, env={**os.environ, **self._environment}, stdout=log, stderr=log
            )

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    # --- a race ---

    async def run(self, race: Race) -> Ended:
        run = await self._start(race)
        items = await until(lambda: self._shown_or_over(run, 2 if race.gate == "both" else 1))
        if not isinstance(items, list):  # its gate was closed, by its deadline, before anyone saw it
            return await self._judge(Ended(race, []), run)
        since = datetime.fromisoformat(items[0]["since"])
        presses = [asyncio.create_task(self._press(race, run, items, place, since)) for place in range(len(race.doors))]
        rival = asyncio.create_task(self._rival(race, run))
        told = [one for all_told in await asyncio.gather(*presses) for one in all_told]
        await rival
        told += await self._end(race, run)
        return await self._judge(Ended(race, told), run)

    async def _start(self, race: Race) -> Run:
        if race.gate == "line":
            given: dict[str, Any] = {"input": {"race": race.name}, "run_key": self.temporal.session(race.name)}
            return await start_pipeline(self.temporal.client, LINE, task_queue=self.temporal.name, **given)
        return await self.temporal.start(AGENTS[race.gate], race.name, session=race.name)

    async def _shown(self, run: Run, count: int) -> list[dict[str, Any]]:
        await asyncio.sleep(0.05)
        with suppress(StandfastError):
            found = [item for item in await self._doors.people.pending(run.id) if item["kind"] == "approval"]
            return found if len(found) == count else []
        return []

    async def _shown_or_over(self, run: Run, count: int) -> list[dict[str, Any]] | bool:
        """Return what waits; True if the run has ended, False if it has not."""
        return await self._shown(run, count) or (await run.describe()).close_time is not None

    async def _press(
        self, race: Race, run: Run, items: list[dict[str, Any]], place: int, since: datetime
    ) -> list[Told]:
        door, decision, amount, wait = race.doors[place]
        who = f"{door}{1 + [one[0] for one in race.doors[:place]].count(door)}"
        if race.gate in ("rejects", "approves", "escalates", "reminds"):
            wait -= (datetime.now(UTC) - since).total_seconds()
        await asyncio.sleep(max(0.0, wait))
        presses = [Press(who, decision, run.id, race.name, item, amount) for item in items]
        if door == "command":
            said = await self._doors.command_at(presses[0], items)
        else:
            said = list(await asyncio.gather(*(self._doors.at(door, press) for press in presses)))
        return [Told(who, decision, press.gate, one) for press, one in zip(presses, said, strict=True)]

    async def _rival(self, race: Race, run: Run) -> None:
        await asyncio.sleep(random.Random(race.number).uniform(0, 0.15))
        with suppress(RPCError, StandfastError):
            match race.rival:
                case "cancel":
                    await self._doors.people.cancel(run.id, by="last1")
                case "terminate":
                    await run.terminate("a race")
                case "reset" | "reset without messages":
                    task = random.Random(race.number).randrange(len(await tasks(run)))
                    await reset(self.temporal, run, task, with_messages=race.rival == "reset")
                case "killed worker":
                    await self._kill()

    async def _kill(self) -> None:
        async with self._killing:
            worker = self._workers.pop(0)
            worker.kill()
            await asyncio.to_thread(worker.wait)
            await asyncio.sleep(0.2)
            self._workers.append(self._worker())

    async def _end(self, race: Race, run: Run) -> list[Told]:
        """Wait for the end of a run; if it still waits for a decision, two people approve what it shows now."""
        told: list[Told] = []
        handle, begun = self.temporal.client.get_workflow_handle(run.id), time.monotonic()
        while (await handle.describe()).close_time is None:
            await asyncio.sleep(0.1)
            if (
                time.monotonic() - begun < (1.0 if all(one[1] == "approve" for one in race.doors) else _LAST)
                and race.gate != "quorum"
            ):
                continue
            for item in await self._shown(run, 1) or await self._shown(run, 2):
                who = "last1" if "last1" not in item.get("approved_by", ()) else "last2"
                press = Press(who, "approve", run.id, race.name, item)
                told.append(Told(who, "approve", press.gate, await self._doors.client(press)))
            if time.monotonic() - begun > 120:
                raise AssertionError(f"race {race} does not end: {await self._shown(run, 1)}")
        return told

    # --- judging ---

    @staticmethod
    def _take_late(ended: Ended, last: str) -> int:
        """Take out what a run that was reset has recorded too late, if the last run has its own decision."""
        told = {told.who for told in ended.told if told.said.counts is not None}
        own = [row for row in ended.counted if _is_of(row, last)]
        repeated = {(row.by, row.decision) for row in own}
        is_decided = any(row.decision == "reject" for row in own) or len(own) >= (
            2 if ended.race.gate == "quorum" else 1
        )
        late = [
            row
            for row in ended.counted
            if not _is_of(row, last) and ((row.by, row.decision) in repeated or (is_decided and row.by not in told))
        ]
        ended.counted = [row for row in ended.counted if row not in late]
        return len(late)

    async def _judge(self, ended: Ended, run: Run) -> Ended:
        last = await self.temporal.client.get_workflow_handle(run.id).describe()
        ended.status = str(last.status and last.status.name.lower())
        key = last.raw_info.first_run_id or last.run_id
        ended.counted = [
            row
            for row in await self.temporal.store.load_decisions(key)
            if row.refused is None and row.by is not None and row.decision in ("approve", "reject")
        ]
        if str(ended.race.rival).startswith("reset"):
            ended.late = self._take_late(ended, last.run_id)
        lines = [json.loads(line) for line in self._effects.read_text().splitlines()]
        ended.shipped = [amount for race, amount in lines if race == ended.race.name]
        ended.wrong = faults(ended)
        history = await self.temporal.client.get_workflow_handle(run.id).fetch_history()
        ended.wrong += [f"a workflow task failed: {one}" for one in wedges(list(history.events))]
        return ended


def _is_of(row: DecisionRecord, run_id: str) -> bool:
    return str(row.key).startswith(f"{run_id}/")


def faults(ended: Ended) -> list[str]:
    """Return what is wrong with a race."""
    found, shipped = _wrongly_told(ended), list(ended.shipped)
    for gate in ("c1", "c2") if ended.race.gate == "both" else ("c1",):
        found += _wrong_at(gate, ended, shipped)
    if shipped:
        found.append(f"shipped {ended.shipped}, of which {shipped} was not approved")
    return found


def _wrongly_told(ended: Ended) -> list[str]:
    found = list[str]()
    for told in ended.told:
        counts = (told.who, told.decision, told.gate) in [(row.by, row.decision, row.gate) for row in ended.counted]
        is_repeated = any(one.who == told.who and one.said.counts is None for one in ended.told)
        if told.said.counts is True and not counts:
            found.append(f"{told.who} was told that '{told.decision}' at {told.gate} counts, and it does not")
        if told.said.counts is False and counts and not is_repeated:
            found.append(f"{told.who} was told that '{told.decision}' at {told.gate} does not count, and it does")
    return found


def _wrong_at(gate: str, ended: Ended, shipped: list[int]) -> list[str]:
    """Return the faults at a gate; subtract the approved amount from the shipped one."""
    found, race = list[str](), ended.race
    is_whole = ended.status == "completed"  # it was not ended from outside
    rows = [row for row in ended.counted if row.gate == gate]
    approvals, needed = [row for row in rows if row.decision == "approve"], 2 if race.gate == "quorum" else 1
    rejections = len(rows) - len(approvals)
    if rejections > 1 or (rejections and len(approvals) >= needed) or len(approvals) > needed:
        found.append(f"{gate} was decided more than once")
    is_approved = len(approvals) == needed or (race.gate == "approves" and not rows)
    if is_whole and not (is_approved or rejections or race.gate in ("rejects", "approves")):
        found.append(f"{gate} is not decided, and the run is complete")
    amount = ([1] + [row.edit["amount"] for row in approvals if isinstance(row.edit, dict)])[-1]
    if is_approved and amount in shipped:
        shipped.remove(amount)
    elif is_approved and is_whole:
        found.append(f"{gate} was approved with {amount}, and that was not shipped")
    for told in ended.told:
        over = re.search(rf"gate {gate} was (\w+)[ a-z]* already", told.said.words)
        if told.gate == gate and over is not None and is_whole and (over[1] == "approved") != is_approved:
            found.append(f"{told.who} was told: {over[0]}; approved: {is_approved}")
    return found


@asynccontextmanager
async def world(address: str, folder: Path) -> AsyncIterator[World]:
    """Give a world in a folder, with its own task queue."""
    store, effects = str(folder / "races.db"), folder / "effects"
    effects.touch()
    async with AsyncExitStack() as stack:
        slack = await stack.enter_async_context(RacingSlack())
        opened = await stack.enter_async_context(sqlite_store(store))
        temporal = Temporal(await connect(address), opened, f"races-{uuid4().hex[:8]}")
        options: dict[str, Any] = {"agents": list(AGENTS.values()), "task_queue": temporal.name}
        app = create_app(temporal.client, access=access(), store=opened, slack=slack.app(None), **options)
        origin = await stack.enter_async_context(served(app))
        limits = httpx.Limits(max_connections=None)
        page = httpx.AsyncClient(base_url=origin, timeout=60, limits=limits, headers={"Accept": "text/html"})
        await stack.enter_async_context(page)
        given = {"ADDRESS": address, "STORE": store, "QUEUE": temporal.name, "EFFECTS": str(effects)}
        made = World(temporal, Doors(temporal, store, page, slack), effects, {**given, "SLACK": slack.incoming().url})
        try:
            yield made
        finally:
            made.close()
            await temporal.end_all()
            app.state.close()


async def run_all(made: World, wanted: Sequence[Race]) -> list[Ended]:
    """Run races, some at once."""
    slots, done = asyncio.Semaphore(AT_ONCE), list[Ended]()

    async def one(race: Race) -> None:
        async with slots:
            try:
                ended = await made.run(race)
            except Exception as error:  # the others go on
                ended = Ended(race, [], wrong=[f"{type(error).__name__}: {error}"])
        done.append(ended)
        for wrong in ended.wrong:
            tell(f"race {race.number}: {wrong}\n  {race}\n  {ended}")
        if len(done) % 100 == 0:
            tell(f"{len(done)} races")

    await asyncio.gather(*map(one, wanted))
    return done


def tell(text: str) -> None:
    """Write a line to where a command that runs beside does not write."""
    if sys.__stdout__ is not None:
        sys.__stdout__.write(f"{text}\n")
        sys.__stdout__.flush()


def report(done: Sequence[Ended]) -> str:
    """Return the outcomes of the races, by pairs of doors, and by the event in between."""
    pairs, rivals = Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()
    words = {True: "counted", False: "refused", None: "not confirmed"}
    for ended in done:
        if not ended.told:
            continue
        first, second = ended.told[0], ended.told[1] if ended.race.gate != "both" else ended.told[2]
        doors = [ended.race.doors[place][0] for place in (0, 1)]
        pairs[doors[0], doors[1], f"{words[first.said.counts]} / {words[second.said.counts]}"] += 1
        rivals[ended.race.gate, ended.race.rival or "none"] += 1
    kinds = sorted({one[2] for one in pairs})
    lines = [f"{'':20}" + "".join(f"{kind:>30}" for kind in kinds)]
    lines += [f"{' + '.join(pair):20}" + "".join(f"{pairs[(*pair, kind)]:>30}" for kind in kinds) for pair in _PAIRS]
    lines += [f"{gate} with {rival}: {count}" for (gate, rival), count in sorted(rivals.items())]
    said = Counter(words[told.said.counts] for ended in done for told in ended.told)
    wrong, late = sum(bool(ended.wrong) for ended in done), sum(ended.late for ended in done)
    ends = [f"told: {dict(said)}", f"recorded too late, by runs that were reset: {late}"]
    return "\n".join([*lines, *ends, f"{len(done)} races, {wrong} with a fault"])


async def main(count: int) -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with dev_server() as server, world(server.address, Path(folder)) as made:
            done = await run_all(made, races(count))
    tell(report(done))
    tell(f"{time.monotonic() - begun:.0f} s")
    return 1 if any(ended.wrong for ended in done) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 1_000)))
