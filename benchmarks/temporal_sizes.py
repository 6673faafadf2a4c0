"""Measures sizes: rows and bytes of a step in each store, and the actions that Temporal Cloud bills."""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporal_figures import Figure
from temporal_gates import park_at_gate
from temporal_postgres import database
from temporal_rounds import World
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from standfast.temporal import StandfastClient

SHORT, LONG, RUNS = 10, 60, 10  # steps of runs that are compared, and how many of each


async def sizes(world: World) -> list[Figure]:
    figures = [await _actions(world), await _actions_of_gate(world)]
    with database(world.folder) as (address, *_):
        for folder, measure in ((str(world.folder), _in_sqlite), (address, _in_postgres)):
            figures += [await _store(world, folder, measure, size) for size in (100, 10_000)]
    return figures


# --- stores -------------------------------------------------------------------------------------------------------


async def _store(world: World, where: str, measure: Callable[[str], Awaitable[tuple[int, int]]], size: int) -> Figure:
    """Compare long runs with short ones: the short runs' size is the fixed part, the rest belongs to the steps."""
    found = []
    for steps in (SHORT, LONG):
        name = f"s{uuid4().hex[:8]}"
        store = f"{where}?schema={name}" if "://" in where else f"{where}/{name}.db"
        async with world.worker("standfast", "--queue", name, store=store):
            await asyncio.gather(*(world.run(name, agent="bench", steps=5, size=size) for _ in range(3)))
            before = await measure(store)
            await asyncio.gather(*(world.run(name, agent="bench", steps=steps, size=size) for _ in range(RUNS)))
            after = await measure(store)
        found.append([(late - early) / RUNS for early, late in zip(before, after, strict=True)])
    (short_rows, short_bytes), (long_rows, long_bytes) = found
    rows, size_of_step = (long_rows - short_rows) / (LONG - SHORT), (long_bytes - short_bytes) / (LONG - SHORT)
    measured = {
        "rows_a_step": rows,
        "bytes_a_step": size_of_step,
        "rows_a_run": short_rows - rows * SHORT,
        "bytes_a_run": short_bytes - size_of_step * SHORT,
    }
    kind = "PostgreSQL" if "://" in where else "SQLite"
    return Figure(f"{kind} store, {size:,}-byte results", "flat", measured)


async def _in_sqlite(path: str) -> tuple[int, int]:
    """Return rows and bytes of a copy without free pages."""
    copy = Path(f"{path}.copy")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM INTO ?", (str(copy),))
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = sum(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)
    size = copy.stat().st_size
    copy.unlink()
    return rows, size


async def _in_postgres(address: str) -> tuple[int, int]:
    """Return rows and bytes, indexes included, of a schema."""
    import asyncpg

    dsn, _, schema = address.partition("?schema=")
    connection = await asyncpg.connect(dsn)
    try:
        tables = [
            record[0]
            for record in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        ]
        rows = size = 0
        for table in tables:
            name = f'"{schema}"."{table}"'
            await connection.execute(f"VACUUM {name}")
            rows += await connection.fetchval(f"SELECT count(*) FROM {name}")
            size += await connection.fetchval("SELECT pg_total_relation_size($1::regclass)", name)
    finally:
        await connection.close()
    return rows, size


# --- actions ------------------------------------------------------------------------------------------------------


_BILLED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "started",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activities",
    EventType.EVENT_TYPE_TIMER_STARTED: "timers",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signals",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search_attributes",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "children",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "updates",
}


def actions(histories: list[WorkflowHistory]) -> Counter[str]:
    """Count the billed actions of a run that its history shows, without queries and heartbeats."""
    found: Counter[str] = Counter()
    for history in histories:
        found.update(_BILLED[event.event_type] for event in history.events if event.event_type in _BILLED)
        found["retries"] += sum(
            event.activity_task_started_event_attributes.attempt - 1
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
        )
        tasks = {  # the markers of one workflow task are one action
            event.marker_recorded_event_attributes.workflow_task_completed_event_id
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
        }
        found["local_activities"] += len(tasks)
    return found


async def _actions(world: World) -> Figure:
    async with world.worker():
        short, long = [actions(await world.links(await world.run("standfast", steps=steps))) for steps in (SHORT, LONG)]
    a_step = {name: (long[name] - short[name]) / (LONG - SHORT) for name in long}
    measured = {
        "a_step": sum(a_step.values()),
        "a_run_besides": sum(short.values()) - sum(a_step.values()) * SHORT,
        **{f"{name}_a_step": value for name, value in a_step.items() if value},
    }
    return Figure("actions of a run with a tool a step", "2 a step", measured)


async def _actions_of_gate(world: World) -> Figure:
    people = StandfastClient(world.client)
    async with world.worker():
        run: Any = await park_at_gate(world, people)
        await people.decide(run.id, "ok", "approve", by="ada")
        await run.result()
        found = actions(await world.links(run))
    return Figure("actions of a pipeline: a gate and a tool", "", {"all": sum(found.values()), **found})
