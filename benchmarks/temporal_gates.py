"""Measures pipelines parked at a gate: each one's cost for a worker, and that all complete exactly once."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

from temporal_figures import Figure
from temporal_rounds import MEGABYTE, World, resident_bytes

from standfast.stores.sqlite import SQLiteStore
from standfast.temporal import StandfastClient, start_pipeline

T = TypeVar("T")


async def gates(world: World) -> list[Figure]:
    runs = 200 if world.quick else 1_000
    people = StandfastClient(world.client)
    async with world.worker(store="gates.db") as worker:
        await _all(range(30), lambda number: park_at_gate(world, people))
        before = resident_bytes(worker.pid)
        started = time.perf_counter()
        parked = await _all(range(runs), lambda number: park_at_gate(world, people))
        parking, after = time.perf_counter() - started, resident_bytes(worker.pid)
        started = time.perf_counter()
        await _all(parked, lambda run: people.decide(run.id, "ok", "approve", by="ada"))
        ended = await _all(parked, lambda run: run.result())
        approving = time.perf_counter() - started
    store = SQLiteStore(str(world.folder / "gates.db"))
    counted = [len(await store.load_decisions(result["journal_key"])) for result in ended]
    await store.close()
    with contextlib.closing(sqlite3.connect(world.folder / "gates.db")) as database:
        calls, called = database.execute("SELECT count(*), count(DISTINCT run_key) FROM tool_ledger").fetchone()
    measured = {
        "kb_a_run": (after - before) / runs / 1024,
        "worker_mb": after / MEGABYTE,
        "complete": sum(result["status"] == "complete" for result in ended),
        "runs_that_called": called,
        "calls": calls,
        "decisions_a_run": sum(counted) / runs,
        "parked_a_second": runs / parking,
        "approved_a_second": runs / approving,
    }
    return [Figure(f"{runs:,} pipelines parked at a gate, then approved", "every one completes, none twice", measured)]


async def park_at_gate(world: World, people: StandfastClient) -> Any:
    run = await start_pipeline(world.client, "gated", run_key=uuid4().hex)
    while not await people.pending(run.id):
        await asyncio.sleep(0.05)
    return run


async def _all(items: Any, work: Callable[[Any], Awaitable[T]]) -> list[T]:
    """Apply a function to all, a few at a time."""
    slots = asyncio.Semaphore(20)

    async def one(item: Any) -> T:
        async with slots:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))
