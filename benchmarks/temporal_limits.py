"""Measures limits: histories, memory, replay, and the time from a kill until the run continues."""

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import temporal_worker
from temporal_figures import Figure, median
from temporal_floor import Floor
from temporal_rounds import MEGABYTE, WorkerProcess, World, by_step, resident_bytes
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from standfast.stores.sqlite import SQLiteStore
from standfast.temporal import StandfastPlugin
from standfast.temporal.workflows.run import agent_workflows


async def history(world: World) -> list[Figure]:
    figures = []
    last = 300 if world.quick else 1_200
    async with world.worker():
        for size in (100, 10_000):
            links = await world.links(await world.run("standfast", agent="short", steps=last, size=size))
            steps = [step for link in links for step in by_step(link)]
            early, late = steps[5:15], steps[-15:-5]
            measured = {
                "bytes_at_step_10": median(size for size, _ in early),
                f"bytes_at_step_{last}": median(size for size, _ in late),
                "events_at_step_10": median(events for _, events in early),
                f"events_at_step_{last}": median(events for _, events in late),
                "bytes_a_step_all_told": sum(event.ByteSize() for link in links for event in link.events) / last,
                "events_a_step_all_told": sum(len(link.events) for link in links) / last,
            }
            figures.append(Figure(f"history, {size:,}-byte results", "≤ 1,536 bytes, 12.5 events a step", measured))
    return figures


async def long(world: World) -> list[Figure]:
    steps, whole = (1_000, 300) if world.quick else (5_000, 1_000)
    return [
        await _long(world, "short", steps, "finishes, memory flat"),
        await _long(world, "bench", whole, "not asked: without compression"),
    ]


async def _long(world: World, agent: str, steps: int, asked: str) -> Figure:
    async with world.worker() as worker:
        await world.run("standfast", agent=agent, steps=10, size=10_000)
        running = asyncio.create_task(world.run("standfast", agent=agent, steps=steps, size=10_000))
        sizes = []
        started = time.perf_counter()
        while not running.done():
            sizes.append(resident_bytes(worker.pid) / MEGABYTE)
            await asyncio.wait({running}, timeout=0.5)
        seconds = time.perf_counter() - started
        links = await world.links(await running)
    took = [(link.events[-1].event_time.ToNanoseconds() - link.events[0].event_time.ToNanoseconds()) / 1e6 / 100
            for link in links[: steps // 100]]  # fmt: skip
    quarter = max(1, len(sizes) // 4)
    measured = {
        "step_ms": seconds / steps * 1e3,
        "first_100_steps_ms": took[0],
        "last_100_steps_ms": took[-1],
        "rss_first_quarter_mb": median(sizes[:quarter]),
        "rss_last_quarter_mb": median(sizes[-quarter:]),
        "rss_most_mb": max(sizes),
    }
    return Figure(f"{steps:,} steps of 10 KB", asked, measured)


async def parked(world: World) -> list[Figure]:
    runs = 150 if world.quick else 500
    figures = []
    for steps, limit in ((0, 60), (3, 130)):
        async with world.worker() as worker:
            await _park(world, 30, steps)
            before = resident_bytes(worker.pid)
            await _park(world, runs, steps)
            after = resident_bytes(worker.pid)
        measured = {"kb_a_run": (after - before) / runs / 1024, "worker_mb": after / MEGABYTE}
        figures.append(Figure(f"{runs} parked runs after {steps} steps", f"≤ {limit} KB a run", measured))
    return figures


async def _park(world: World, runs: int, steps: int) -> None:
    """Start runs, a few at a time, and return when each waits at its question."""
    slots = asyncio.Semaphore(20)

    async def one() -> None:
        async with slots:
            await world.until_waiting(await world.start("standfast", steps=steps, size=10_000, then="ask"))

    await asyncio.gather(*(one() for _ in range(runs)))
    await asyncio.sleep(1.0)


async def replay(world: World) -> list[Figure]:
    """Replay runs of 200 steps in one history; the worker must not continue them as new earlier."""
    async with world.worker("standfast", "--steps", "1000"), world.worker("floor"):
        ours = (await world.links(await world.run("standfast", steps=200, size=10_000)))[0]
        floor = (await world.links(await world.run("floor", steps=200)))[0]
    agent_workflows.STEPS = 1_000
    plugin = StandfastPlugin(
        agents=temporal_worker.AGENTS,
        store=SQLiteStore(str(world.folder / "replay.db")),
        llm=temporal_worker.PlannedModel(),
    )
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(world.rounds(9)):
        took[0].append(await _replay(Replayer(workflows=[], plugins=[plugin]), ours))
        took[1].append(await _replay(Replayer(workflows=[Floor], data_converter=pydantic_data_converter), floor))
    measured = {"seconds": median(took[0]), "floor_seconds": median(took[1]), "most_seconds": max(took[0])}
    return [Figure("cold replay of 200 steps", "≤ 0.6 s", measured)]


async def _replay(replayer: Replayer, what: WorkflowHistory) -> float:
    started = time.perf_counter()
    await replayer.replay_workflow(what)
    return time.perf_counter() - started


# --- kills --------------------------------------------------------------------------------------------------------


async def killed(world: World) -> list[Figure]:
    """Kill a worker in a handler; measure the time until the run ends."""
    figures = []
    rounds = world.rounds(5)
    for tool in ("pay", "fetch"):
        kind = "at most once" if tool == "pay" else "safe to retry"
        restarted = [await _restarted(world, tool) for _ in range(rounds)]
        figures.append(Figure(f"killed, restarted ({kind})", "< 1 s", _seconds(restarted)))
        beside = [await _taken_over(world, tool, "sqlite") for _ in range(rounds)]
        figures.append(Figure(f"killed, another one here ({kind})", "< 1 s", _seconds(beside)))
        elsewhere = [await _taken_over(world, tool, "stranger") for _ in range(max(1, rounds // 3))]
        figures.append(Figure(f"killed, another elsewhere ({kind})", "≤ heartbeat (10 s) + 3 s", _seconds(elsewhere)))
    return figures


def _seconds(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


async def _restarted(world: World, tool: str) -> dict[str, float]:
    store = f"{uuid4().hex}.db"
    worker = await world.start_worker(store=store)
    run, path = await _into_handler(world, tool)
    killed_at = time.time()
    await worker.kill()
    next_worker = await world.start_worker(store=store)
    ready_at = time.time()
    return {**await _end(run, path, killed_at, next_worker), "of_that_until_ready": ready_at - killed_at}


async def _taken_over(world: World, tool: str, stores: str) -> dict[str, float]:
    store = f"{uuid4().hex}.db"
    worker = await world.start_worker(store=store)
    run, path = await _into_handler(world, tool)
    other = await world.start_worker("standfast", "--stores", stores, store=store)
    await asyncio.sleep(1.5)  # so that it has started its checks
    killed_at = time.time()
    await worker.kill()
    return await _end(run, path, killed_at, other)


async def _into_handler(world: World, tool: str) -> tuple[Any, Path]:
    """Return a run whose tool's handler hangs, and the file to which the handler writes a line."""
    path = world.folder / uuid4().hex
    run = await world.start("standfast", steps=1, then=tool, path=str(path))
    while not path.exists() or not path.read_text():
        await asyncio.sleep(0.01)
    return run, path


async def _end(run: Any, path: Path, killed_at: float, worker: WorkerProcess) -> dict[str, float]:
    result = await run.result()
    ended_at = time.time()
    await worker.stop()
    if result["status"] != "complete":
        raise RuntimeError(f"the run ended so: {json.dumps(result)}")
    attempts = [float(line.split()[0]) for line in path.read_text().splitlines()]
    measured = {"seconds": ended_at - killed_at, "attempts": float(len(attempts))}
    return measured if len(attempts) == 1 else {**measured, "second_attempt": attempts[1] - killed_at}
