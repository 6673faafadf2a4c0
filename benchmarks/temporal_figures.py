"""Measures speed: one run, many at once, parallel tools, and the ledger's share."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from temporal_postgres import database
from temporal_rounds import Round, World

median = statistics.median


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    name: str
    asked: str
    measured: dict[str, float]

    def row(self) -> str:
        return f"{self.name:40} {self.asked:36} " + "  ".join(
            f"{key} {value:,.2f}" for key, value in self.measured.items()
        )


def ratio(ours: Iterable[float], floor: Iterable[float]) -> float:
    return median(one / other for one, other in zip(ours, floor, strict=True))


def cpu(ours: Sequence[Round], floor: Sequence[Round]) -> dict[str, float]:
    return {
        "cpu_ratio": ratio((one.worker_ms for one in ours), (one.worker_ms for one in floor)),
        "worker_cpu_ms": median(one.worker_ms for one in ours),
        "floor_cpu_ms": median(one.worker_ms for one in floor),
        "server_cpu_ms": median(one.server_ms for one in ours),
        "floor_server_cpu_ms": median(one.server_ms for one in floor),
        "cores_of_others": max(max(one.others for one in ours), max(one.others for one in floor)),
    }


async def one_run(world: World) -> list[Figure]:
    return [Figure("one run alone", "≤ 1.15 × the floor", await _alone(world, ""))]


async def load(world: World) -> list[Figure]:
    return [
        Figure(f"{runs} runs at once", "≥ 0.85 × the floor, CPU ≤ 1.25 ×", await _at_once(world, "", runs, steps))
        for runs, steps in ((50, 10), (200, 5))
    ]


async def lanes(world: World) -> list[Figure]:
    """Compare the lanes, with runs of the usual size and longer ones."""
    figures = []
    async with (
        world.worker("floor") as other,
        world.worker() as each,
        world.worker("standfast", "--lane", "fast", "--queue", "fast") as fast,
    ):
        for runs, steps, usual in ((1, 200, 9), (50, 10, 9), (50, 50, 3)):
            turns = await world.in_turns((other, each, fast), world.rounds(usual), runs, steps=steps)
            floor, slow, quick = zip(*turns, strict=True)
            measured = {
                "step_ms": median(one.step_ms for one in quick),
                "steps_per_second": median(one.steps_per_second for one in quick),
                "each_steps_per_second": median(one.steps_per_second for one in slow),
                "times_each": ratio((one.steps_per_second for one in quick), (one.steps_per_second for one in slow)),
                **cpu(quick, floor),
            }
            name = "a lone run" if runs == 1 else f"{runs} runs of {steps} steps"
            figures.append(Figure(f"fast lane, {name}", "≤ 2.5 ms; ≥ 8 × the other lane", measured))
    return figures


async def postgres(world: World) -> list[Figure]:
    """Measure a lone run with a PostgreSQL store, whose server flushes commits to disk."""
    with database(world.folder) as (address, transactions, world.database_pid):
        measured = await _alone(world, address)
        measured["transactions_a_step"] = await _transactions(world, address, transactions)
    return [Figure("PostgreSQL, one run alone", "≤ 1.35 × the floor, 3 a step", measured)]


async def postgres_load(world: World) -> list[Figure]:
    figures = []
    with database(world.folder) as (address, _, world.database_pid):
        for runs, steps in ((50, 10), (200, 5)):
            measured = await _at_once(world, address, runs, steps)
            figures.append(Figure(f"PostgreSQL, {runs} runs at once", "≥ 0.8 × the floor", measured))
    return figures


async def _transactions(world: World, address: str, transactions: Callable[[], int]) -> float:
    """Return the transactions per step: each statement is one transaction and one round trip."""
    async with world.worker(store=address):
        counts = []
        for steps in (100, 300):  # both have the same costs beside their steps
            await asyncio.sleep(2)  # connections report to the server's statistics meanwhile
            before, began = transactions(), time.perf_counter()
            await world.run("standfast", steps=steps)
            await asyncio.sleep(2)
            looks = 4 / 3 * (time.perf_counter() - began)  # of the worker, for lost calls and old marks
            counts.append(transactions() - before - looks)
    return (counts[1] - counts[0]) / 200


async def _alone(world: World, store: str) -> dict[str, float]:
    async with world.worker("floor") as other, world.worker(store=store) as worker:
        turns = await world.in_turns((other, worker), world.rounds(15), 1, steps=90)
    floor, ours = zip(*turns, strict=True)
    return {
        "ratio": ratio((one.step_ms for one in ours), (one.step_ms for one in floor)),
        "step_ms": median(one.step_ms for one in ours),
        "floor_ms": median(one.step_ms for one in floor),
        **cpu(ours, floor),
    }


async def _at_once(world: World, store: str, runs: int, steps: int) -> dict[str, float]:
    async with world.worker("floor") as other, world.worker(store=store) as worker:
        turns = await world.in_turns((other, worker), world.rounds(9), runs, steps=steps)
    floor, ours = zip(*turns, strict=True)
    return {
        "ratio": ratio((one.steps_per_second for one in ours), (one.steps_per_second for one in floor)),
        "steps_per_second": median(one.steps_per_second for one in ours),
        "floor_steps_per_second": median(one.steps_per_second for one in floor),
        **cpu(ours, floor),
    }


async def parallel(world: World) -> list[Figure]:
    async with world.worker("floor") as other, world.worker() as worker:
        turns = await world.in_turns((other, worker), world.rounds(9), 1, steps=30, tools=8)
    floor, ours = zip(*turns, strict=True)
    measured = {
        "step_ms": median(one.step_ms for one in ours),
        "floor_ms": median(one.step_ms for one in floor),
        "ratio": ratio((one.step_ms for one in ours), (one.step_ms for one in floor)),
        **cpu(ours, floor),
    }
    return [Figure("8 parallel tools", "≤ 25 ms a step", measured)]


async def ledger(world: World) -> list[Figure]:
    """Compare with in-memory stores, and time each call of the real one."""
    async with (
        world.worker("standfast", "--stores", "no-ledger", "--queue", "no-ledger") as other,
        world.worker("standfast", "--stores", "no-replies", "--queue", "no-replies") as least,
        world.worker("standfast", "--stores", "timed") as worker,
    ):
        turns = await world.in_turns((other, least, worker), world.rounds(7), 50, steps=10)
    without, least_rounds, ours = zip(*turns, strict=True)
    rates = [[one.steps_per_second for one in rounds] for rounds in (ours, without, least_rounds)]
    measured = {
        "throughput_lost_percent": (1 - ratio(rates[0], rates[1])) * 100,
        "with_model_replies_percent": (1 - ratio(rates[0], rates[2])) * 100,
        "steps_per_second": median(rates[0]),
        "worker_cpu_ms": median(one.worker_ms for one in ours),
        "cpu_without_ms": median(one.worker_ms for one in without),
        "cores_of_others": max(one.others for one in ours),
    }
    slowest = {
        f"{name}_p99_ms": _p99(worker.took.get(name, ())) for name in ("claim", "finish", "begin_call", "end_call")
    }
    operations = sum(len(took) for took in worker.took.values())
    steps = len(worker.took.get("claim", ())) or 1
    return [
        Figure("ledger and journal, 50 runs", "≤ 10 % of throughput", measured),
        Figure("one call of them", "p99 ≤ 5 ms", {**slowest, "store_operations_a_step": operations / steps}),
    ]


def _p99(took: Sequence[float]) -> float:
    return statistics.quantiles(took, n=100)[98] if len(took) > 1 else 0.0
