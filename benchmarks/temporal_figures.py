"""How fast: one run, many at once, parallel tools, and what the ledger takes of it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    async with world.worker("floor") as other, world.worker() as worker:
        turns = await world.in_turns((other, worker), world.rounds(15), 1, steps=90)
    floor, ours = zip(*turns, strict=True)
    measured = {
        "ratio": ratio((one.step_ms for one in ours), (one.step_ms for one in floor)),
        "step_ms": median(one.step_ms for one in ours),
        "floor_ms": median(one.step_ms for one in floor),
        **cpu(ours, floor),
    }
    return [Figure("one run alone", "≤ 1.15 × the floor", measured)]


async def load(world: World) -> list[Figure]:
    figures = []
    for runs, steps in ((50, 10), (200, 5)):
        async with world.worker("floor") as other, world.worker() as worker:
            turns = await world.in_turns((other, worker), world.rounds(9), runs, steps=steps)
        floor, ours = zip(*turns, strict=True)
        measured = {
            "ratio": ratio((one.steps_per_second for one in ours), (one.steps_per_second for one in floor)),
            "steps_per_second": median(one.steps_per_second for one in ours),
            "floor_steps_per_second": median(one.steps_per_second for one in floor),
            **cpu(ours, floor),
        }
        figures.append(Figure(f"{runs} runs at once", "≥ 0.85 × the floor, CPU ≤ 1.25 ×", measured))
    return figures


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
    """Compare with stores that answer from memory, and time each call of the real one."""
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
