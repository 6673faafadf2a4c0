"""Budgets of speed: what a step and a run cost, counted on a fixed run of each driver and store.

`budgets.md` has the limits. `pytest -s` shows the counts.
"""

import asyncio
import gc
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from support.costs import Costs, history_costs, requests
from support.postgres import PostgresServer
from support.postgres_proxies import PostgresProxy
from support.questions import ask
from support.temporal_runs import Run, Temporal, events, pending, result, until
from support.transcripts import asks_for, call
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import Worker

from standfast import Agent, Loop, Message, RunResult, run, sqlite_store, tool
from standfast.agents import Lane
from standfast.runtime import tasks
from standfast.stores.sqlite import thread
from standfast.temporal import StandfastPlugin, connect, start_agent
from standfast.temporal.activities.runs import stretches
from standfast.testing import DevServer, ScriptedModel

FEW, SOME, MANY = 4, 12, 20  # steps of a run
PARKED = 12  # runs
Counts = dict[str, float]


# --- the limits ---


def limits(text: str) -> dict[str, dict[str, float]]:
    """Return the limits of each run, by measure."""
    found: dict[str, dict[str, float]] = {}
    run = ""
    for line in text.splitlines():
        if line.startswith("## "):
            run = line.removeprefix("## ")
        elif (row := re.fullmatch(r"\| ([a-z][\w -]+) \| ([\d,.]+) \| (.*)\|", line)) is not None:
            found.setdefault(run, {})[row[1]] = float(row[2].replace(",", ""))
    return found


LIMITS = limits((Path(__file__).parent / "budgets.md").read_text())


def exceeded(run: str, counts: Counts, limited: dict[str, float]) -> list[str]:
    """Return the measures above their limit, and those without a limit or a count."""
    if counts.keys() != limited.keys():
        return [f"budgets.md and the test differ on {run}: {sorted(counts.keys() ^ limited.keys())}"]
    return [
        f"{run}: {counts[what]:,g} {what}, and the limit is {limit:,g}. Find what costs more; "
        "if it is worth it, raise the limit in tests/integration/budgets.md and say why there"
        for what, limit in limited.items()
        if counts[what] > limit
    ]


def test_more_than_a_limit_is_told_and_so_is_a_count_without_one() -> None:
    table = "## a run\n\n| what | limit | why |\n|---|--:|---|\n| calls per step | 1,000 | few |\n| events | 12 | x |\n"
    assert limits(table) == {"a run": {"calls per step": 1_000, "events": 12}}
    assert exceeded("a run", {"calls per step": 1_000, "events": 12}, limits(table)["a run"]) == []
    (told,) = exceeded("a run", {"calls per step": 1_001, "events": 12}, limits(table)["a run"])
    assert told.startswith("a run: 1,001 calls per step, and the limit is 1,000")
    assert "events" in exceeded("a run", {"calls per step": 1}, limits(table)["a run"])[0]


# --- the run ---


@tool
async def charge(amount: int) -> str:
    """An effect."""
    return "x" * 100


CLERK = Agent("clerk", tools=[charge], loop=Loop(max_iterations=100))


def asks_for_steps(messages: list[Message], tools: Any) -> Any:
    """Ask for as many charges as the user has said."""
    made = sum(message.role == "tool" for message in messages)
    wanted = int(next(message.content for message in messages if message.role == "user"))
    return asks_for(call("charge", f"c{made}", amount=made)) if made < wanted else "done"


async def costs_of(run_of: Callable[[int], Awaitable[Counter[str]]]) -> Counts:
    """Return what a step costs, and what a run costs besides its steps.

    A later step may not cost more than an earlier one. Each run is made twice, and the lower counts are taken, since a
    worker sometimes does something else beside a run.
    """
    await run_of(FEW)  # what is done once
    runs = few, some, many = [await run_of(steps) & await run_of(steps) for steps in (FEW, SOME, MANY)]
    found: Counts = {"modules": max(one.pop("modules") for one in runs)}
    for what in sorted({*few, *some, *many}):
        steps = many[what] - few[what]
        early, late = some[what] - few[what], many[what] - some[what]
        assert late <= 1.03 * early + 5, f"some steps cost {early} {what}, and as many more {late}"
        found[f"{what} per step"] = round(steps / (MANY - FEW), 1)
        found[f"{what} per run"] = round(few[what] - FEW * steps / (MANY - FEW))
    return found


def check(run: str, counts: Counts) -> None:
    shown = "\n".join(f"| {what} | {count:,.10g} |" for what, count in counts.items())
    sys.stdout.write(f"\n## {run}\n\n{shown}\n")
    if problems := exceeded(run, counts, LIMITS.get(run, {})):
        pytest.fail("\n".join(problems))


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Count what runs cost, but not what depends on the time: a slow disk, and what a worker does every few seconds."""
    monkeypatch.setattr(thread, "QUICK", 60.0)
    monkeypatch.setattr(thread, "STALL", 60.0)
    monkeypatch.setattr(stretches, "LONGEST", 600.0)

    async def once(work: Any, every: float, failed: str, first: float, expected: Any) -> None:
        if not first:
            await work()
        await asyncio.Event().wait()

    monkeypatch.setattr(tasks, "_repeat", once)
    return Costs()


def take(costs: Costs, statements: list[str] | None) -> Counter[str]:
    """Return the counts, with the statements that reached PostgreSQL; both begin again."""
    counts = costs.taken()
    if statements is not None:
        counts["statements"] = len(statements)
        del counts["commits"], statements[:]
    return counts


async def in_process(costs: Costs, store: Any, statements: list[str] | None = None) -> Counts:
    model, sessions = ScriptedModel(asks_for_steps), count()

    async def run_of(steps: int) -> Counter[str]:
        take(costs, statements)
        ended = await run(CLERK, message=str(steps), session_id=f"s{next(sessions)}", store=store, llm=model)
        counts = take(costs, statements)
        assert isinstance(ended, RunResult)
        assert ended.iterations == steps + 1
        return counts

    return await costs_of(run_of)


async def on_temporal(
    costs: Costs, address: str, queue: str, store: Any, statements: list[str] | None = None, *, lane: Lane = "each"
) -> Counts:
    buffer, sessions = MetricBuffer(100_000), count()
    client = await connect(address, runtime=Runtime(telemetry=TelemetryConfig(metrics=buffer)))
    plugin = StandfastPlugin(agents=[CLERK], store=store, llm=ScriptedModel(asks_for_steps), lane=lane)

    async def run_of(steps: int) -> Counter[str]:
        requests(buffer)
        take(costs, statements)
        session = f"{queue}.{next(sessions)}"
        started = await start_agent(client, CLERK, message=str(steps), session_id=session, task_queue=queue)
        ended = await result(started)
        counts = take(costs, statements)
        counts["requests"] = requests(buffer)
        assert ended["iterations"] == steps + 1
        counts.update(history_costs(await events(started)))
        return counts

    async with Worker(client, task_queue=queue, plugins=[plugin]) as worker:
        await until(lambda: worker.is_running)
        return await costs_of(run_of)


async def test_a_run_in_process_on_sqlite_keeps_to_its_budget(
    costs: Costs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with costs.counting(monkeypatch):
        async with sqlite_store(tmp_path / "standfast.db") as store:
            check("In process on SQLite", await in_process(costs, store))


async def test_a_run_in_process_on_postgresql_keeps_to_its_budget(
    costs: Costs, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresProxy(postgres).running() as proxy, proxy.store() as store:
        with costs.counting(monkeypatch):
            check("In process on PostgreSQL", await in_process(costs, store, proxy.statements))


async def test_a_run_on_temporal_with_sqlite_keeps_to_its_budget(
    costs: Costs, temporal_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with costs.counting(monkeypatch):
        async with sqlite_store(tmp_path / "standfast.db") as store:
            counts = await on_temporal(costs, temporal_server.address, "budgets-sqlite", store)
    check("On Temporal with SQLite", counts)


async def test_a_run_on_temporal_with_postgresql_keeps_to_its_budget(
    costs: Costs, temporal_server: DevServer, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresProxy(postgres).running() as proxy, proxy.store() as store:
        with costs.counting(monkeypatch):
            address = temporal_server.address
            counts = await on_temporal(costs, address, "budgets-postgres", store, proxy.statements)
    check("On Temporal with PostgreSQL", counts)


async def test_a_run_in_the_fast_lane_with_sqlite_keeps_to_its_budget(
    costs: Costs, temporal_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with costs.counting(monkeypatch):
        async with sqlite_store(tmp_path / "standfast.db") as store:
            counts = await on_temporal(costs, temporal_server.address, "budgets-fast", store, lane="fast")
    check("In the fast lane with SQLite", counts)


async def test_a_run_in_the_fast_lane_with_postgresql_keeps_to_its_budget(
    costs: Costs, temporal_server: DevServer, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresProxy(postgres).running() as proxy, proxy.store() as store:
        with costs.counting(monkeypatch):
            address, queue = temporal_server.address, "budgets-fast-postgres"
            counts = await on_temporal(costs, address, queue, store, proxy.statements, lane="fast")
    check("In the fast lane with PostgreSQL", counts)


STARTS = {
    "modules of the names of daily use": "from standfast import *",
    "modules of the help of the command": "import standfast.cli",
    "modules of a worker": "import standfast.temporal, standfast.cli.workers",
    "modules of the page": "import standfast.web",
}


def test_programs_begin_with_few_imports() -> None:
    counted = "import sys; print(len([name for name in sys.modules if name.partition('.')[0] not in known]))"
    counts = dict[str, float]()
    for what, code in STARTS.items():
        known = "import sys; known = {*sys.stdlib_module_names, '__mp_main__'} | {*sys.modules}"
        done = subprocess.run([sys.executable, "-c", f"{known}\n{code}\n{counted}"], capture_output=True, check=True)
        counts[what] = int(done.stdout)
    check("Imports", counts)


async def test_a_run_that_is_parked_keeps_to_its_budget_of_memory(costs: Costs, temporal: Temporal) -> None:
    asks = asks_for(call("ask", "c1", question="?"))
    agent, model = Agent("asker", tools=[ask]), ScriptedModel(lambda messages, tools: asks)

    async def park(first: int, last: int) -> int:
        """Return how much memory Python has allocated when these runs wait for an answer as well."""
        runs: list[Run] = [await temporal.start(agent, session=f"s{number}") for number in range(first, last)]
        for one in runs:
            await pending(one)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with temporal.worker(agent, llm=model):
        await park(0, PARKED)  # what is kept once
        tracemalloc.start()
        try:
            allocated = [await park(number * PARKED, (number + 1) * PARKED) for number in (1, 2, 3, 4)]
        finally:
            tracemalloc.stop()
    least = min(after - before for before, after in pairwise(allocated))  # anything else is allocated beside them
    check("Parked on Temporal", {"allocated bytes per run": least // PARKED})
