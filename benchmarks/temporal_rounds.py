"""The measuring tools: a server, workers that are observed from outside, and rounds of runs."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError

from standfast.temporal import connect, dev_server, start_agent

TICK = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
QUIET = 0.15  # cores that may be busy with something else
SCRIPT = Path(__file__).with_name("temporal_worker.py")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def family_cpu_seconds(pid: int | None) -> float:
    """Return the CPU time of a process and its children, without children that have ended."""
    if pid is None:
        return 0.0
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    used = cpu_seconds(pid)
    for child in children:
        with contextlib.suppress(OSError):
            used += cpu_seconds(child)
    return used


def busy_seconds() -> float:
    """Return the CPU time of all processes of the machine, and the time stolen by its host."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


@dataclass(slots=True)
class WorkerProcess:
    """A worker; it ends with its stdin."""

    kind: str
    queue: str
    process: asyncio.subprocess.Process
    took: dict[str, list[float]] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def stop(self) -> None:
        """Let it end, and keep its report on the store."""
        if self.process.returncode is None:
            out, _ = await self.process.communicate(b"")
            self.took = json.loads(out.splitlines()[-1]) if out.strip() else {}

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of concurrent runs.

    Args:
        others: how many cores were busy with something else.
    """

    seconds: float
    steps: int
    worker_cpu: float
    server_cpu: float
    others: float

    @property
    def step_ms(self) -> float:
        return self.seconds / self.steps * 1e3

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def worker_ms(self) -> float:
        return self.worker_cpu / self.steps * 1e3

    @property
    def server_ms(self) -> float:
        return self.server_cpu / self.steps * 1e3


@dataclass(slots=True)
class World:
    """A server with an empty folder for stores.

    Args:
        database_pid: of a PostgreSQL server that the rounds use.
    """

    client: Client
    address: str
    server_pid: int
    folder: Path
    quick: bool
    database_pid: int | None = None

    def rounds(self, usual: int) -> int:
        return max(2, usual // 3) if self.quick else usual

    @contextlib.asynccontextmanager
    async def worker(self, kind: str = "standfast", *options: str, store: str = "") -> AsyncIterator[WorkerProcess]:
        """Run a worker with its own store, unless the name or address of one is given."""
        worker = await self.start_worker(kind, *options, store=store)
        try:
            yield worker
        finally:
            await worker.stop()

    async def start_worker(self, kind: str = "standfast", *options: str, store: str = "") -> WorkerProcess:
        name = store or f"{uuid4().hex[:8]}.db"
        at = name if "://" in name else str(self.folder / name)
        queue = options[options.index("--queue") + 1] if "--queue" in options else kind
        with contextlib.suppress(RPCError):  # each worker may bring another store
            await self.client.get_workflow_handle(f"standfast-store/{queue}").terminate()
        arguments = [str(SCRIPT), self.address, kind, "--store", at, *options]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**26
        )
        assert process.stdout is not None
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the worker did not start: {' '.join(arguments)}")
        return WorkerProcess(kind, queue, process)

    async def start(self, queue: str, *, agent: str = "bench", **plan: Any) -> WorkflowHandle[Any, dict[str, Any]]:
        name = uuid4().hex
        if queue == "floor":
            return await self.client.start_workflow(
                "floor", plan, id=name, task_queue="floor", result_type=dict[str, Any]
            )
        return await start_agent(self.client, agent, message=json.dumps(plan), session_id=name, task_queue=queue)

    async def run(self, queue: str, **plan: Any) -> WorkflowHandle[Any, dict[str, Any]]:
        """Start a run and wait for its end."""
        handle = await self.start(queue, **plan)
        result = await handle.result()
        if result["status"] != "complete":
            raise RuntimeError(f"{handle.id} ended so: {result}")
        return handle

    async def round(self, worker: WorkerProcess, runs: int = 1, **plan: Any) -> Round:
        pids = (worker.pid, self.server_pid, os.getpid())
        stored = family_cpu_seconds(self.database_pid)
        busy, before, started = busy_seconds(), [cpu_seconds(pid) for pid in pids], time.perf_counter()
        await asyncio.gather(*(self.run(worker.queue, **plan) for _ in range(runs)))
        seconds = time.perf_counter() - started
        used = [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
        stored = max(0.0, family_cpu_seconds(self.database_pid) - stored)
        others = (busy_seconds() - busy - sum(used) - stored) / seconds
        return Round(seconds, runs * plan["steps"], used[0], used[1], others)

    async def in_turns(
        self, workers: Sequence[WorkerProcess], rounds: int, runs: int, **plan: Any
    ) -> list[tuple[Round, ...]]:
        """Return the rounds of alternating workers in which the machine did little else.

        The first of each warms up and does not count.
        """
        for worker in workers:
            await self.round(worker, min(runs, 10), **{**plan, "steps": 5})
        found: list[tuple[Round, ...]] = []
        while len(found) < 3 * rounds and sum(_is_quiet(turns) for turns in found) < rounds:
            found.append(tuple([await self.round(worker, runs, **plan) for worker in workers]))
        found.sort(key=lambda turns: max(one.others for one in turns))
        return found[:rounds]

    async def until_waiting(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Return when a run waits for a person."""
        while not await handle.query("pending"):
            await asyncio.sleep(0.05)

    async def links(self, handle: WorkflowHandle[Any, Any]) -> list[WorkflowHistory]:
        """Return the histories of a run and its continuations."""
        found, run_id = [], handle.first_execution_run_id or handle.result_run_id
        while run_id:
            history = await self.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()
            found.append(history)
            last = history.events[-1]
            run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return found


def _is_quiet(turns: Iterable[Round]) -> bool:
    return all(one.others < QUIET for one in turns)


@contextlib.asynccontextmanager
async def world(folder: Path, *, quick: bool) -> AsyncIterator[World]:
    async with dev_server() as server:
        yield World(await connect(server.address), server.address, server.pid, folder, quick)


def by_step(history: WorkflowHistory) -> list[tuple[int, int]]:
    """Return bytes and events of every step of a history: from one call of the model to the next."""
    found: list[tuple[int, int]] = []
    size = events = 0
    counting = False
    for event in history.events:
        is_model = (
            event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            and event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
        )
        if is_model and counting:
            found.append((size, events))
            size = events = 0
        counting = counting or is_model
        if counting:
            size, events = size + event.ByteSize(), events + 1
    return found
