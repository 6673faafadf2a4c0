"""What the crash tests of the Temporal driver share: processes that are stopped at a point and killed, and counts.

Every test has its own folder, task queue and ids; the server is shared by the whole run.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client

from acceptance.temporal_worker import main
from standfast import Message, sqlite_store
from standfast.stores import PostgresStore, SQLiteStore
from standfast.temporal import StandfastClient, connect, start_agent
from standfast.temporal.client.queues.servers import temporal_binary
from standfast.temporal.client.runs.owners import Run

# Hundreds of workers begin in the acceptance tests: each is forked from a process that has done the imports.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["standfast.temporal", "standfast.testing"])
LOST = "durability error"


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 60) -> None:
    """Wait until a condition holds, and fail if it does not."""
    try:
        async with asyncio.timeout(seconds):
            pause = 0.01
            # What happens in another process sets no event.
            while not (await met if isinstance(met := condition(), Awaitable) else met):
                await asyncio.sleep(pause)
                pause = min(1.2 * pause, 0.05)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


def read(message: Message) -> str:
    """Return the status of a tool message, and what the model reads in it."""
    content = message.content
    if "tool-durability-error" in content:
        assert json.loads(content).keys() == {"error", "kind", "toolName", "toolCallId"}
        content = LOST
    return f"{message.status}: {content}"


class WorkerProcess:
    """A process of `temporal_worker.py`."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self._folder = name, Path(options["folder"])
        self._log = self._folder / f"{name}.log"
        theirs, self._lifeline = PROCESSES.Pipe(duplex=False)
        self._process = PROCESSES.Process(target=main, args=(theirs, self._log), kwargs={**options, "name": name})
        self._process.start()
        theirs.close()

    async def marked(self, what: str) -> None:
        """Wait until it says that it is "ready" or "stopping"."""
        mark = self._folder / f"{self.name}.{what}"
        await until(lambda: mark.exists() or not self._process.is_alive(), f"worker {self.name} is {what}")
        assert self._process.is_alive(), self.log()

    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """Kill it without notice, and return when it is dead."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def interrupt(self) -> None:
        """Do what Ctrl-C does: its runs are cancelled."""
        self._send(signal.SIGINT)

    def _send(self, what: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self._process.ident or 0, what)

    async def ended(self) -> int | None:
        """Wait for its end, and return its exit code."""
        await until(lambda: not self._process.is_alive(), f"worker {self.name} has ended")
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask it to stop, as a deploy would."""
        self._process.terminate()

    async def stop(self) -> int | None:
        """Ask it to stop, and return its exit code."""
        self.terminate()
        return await self.ended()

    def close(self) -> None:
        self.kill()
        self._process.close()
        self._lifeline.close()


class World:
    """A task queue, its workers, a store, and what tools and models do outside of it."""

    def __init__(self, folder: Path, client: Client, store: SQLiteStore | PostgresStore | None = None) -> None:
        self.folder, self.client = folder, client
        self.queue = f"q-{uuid4().hex[:12]}"
        self.store = sqlite_store(folder / "standfast.db") if store is None else store
        self.processes: list[WorkerProcess] = []

    @property
    def people(self) -> StandfastClient:
        return StandfastClient(self.client, timeout=60)  # several worlds may start workers at once

    @property
    def address(self) -> str:
        return self.client.service_client.config.target_host

    # --- processes ---

    async def worker(self, name: str, **options: Any) -> WorkerProcess:
        """Start a worker, and return when it works."""
        return await self._process(name, {"address": self.address, "queue": self.queue, **options})

    async def run_in_process(self, name: str, plans: dict[str, str], **options: Any) -> WorkerProcess:
        """Start a process that runs an agent by itself, in a session for each case."""
        sessions = {case: f"{case}: {plan}" for case, plan in plans.items()}
        return await self._process(name, {"sessions": sessions, **options}, wait=False)

    async def _process(self, name: str, options: dict[str, Any], *, wait: bool = True) -> WorkerProcess:
        process = WorkerProcess(name, {"folder": str(self.folder), **options})
        self.processes.append(process)
        if wait:
            await process.marked("ready")
        return process

    # --- where they stop ---

    def stop_at(self, point: str, call: str, *, worker: str) -> Path:
        """Let a worker stop at a point of a call until `go_on`."""
        path = self.folder / f"{call}.{point}.{worker}"
        path.touch()
        return path

    async def stands(self, point: str, call: str, *, worker: str) -> None:
        """Wait until a worker stands at the point."""
        path = self.folder / f"{call}.{point}.{worker}.reached"
        await until(path.exists, f"{call} stands at {point} in worker {worker}")

    def go_on(self, point: str, call: str, *, worker: str) -> None:
        (self.folder / f"{call}.{point}.{worker}").unlink()

    def verify_says(self, verdict: str, call: str) -> None:
        (self.folder / f"{call}.verdict").write_text(verdict)

    # --- runs ---

    async def start(self, case: str, plan: str, *, agent: str = "teller", **options: Any) -> Run:
        """Start a run whose model makes the calls of the plan, see `Outside.model`."""
        return await start_agent(
            self.client,
            agent,
            message=f"{case}: {plan}",
            session_id=case,
            task_queue=self.queue,
            id=f"{case}/{self.queue}",  # the server is shared by worlds with the same cases
            **options,
        )

    async def start_and_stop(
        self, case: str, plan: str, point: str, *, worker: str, call: int = 1, agent: str = "teller"
    ) -> Run:
        """Start a run, and return when its worker stands at a point of its call."""
        self.stop_at(point, f"{case}.{call}", worker=worker)
        run = await self.start(case, plan, agent=agent)
        await self.stands(point, f"{case}.{call}", worker=worker)
        return run

    async def activity(self, run: Run) -> PendingActivityInfo | None:
        """Return the one activity that a run waits for, if there is one."""
        pending = (await run.describe()).raw_description.pending_activities
        return pending[0] if pending else None

    async def no_activity(self, run: Run) -> None:
        """Wait until a run waits for no activity."""

        async def is_gone() -> bool:
            return await self.activity(run) is None

        await until(is_gone, f"{run.id} waits for no activity")

    async def next_heartbeat(self, run: Run) -> None:
        """Wait until a run's activity has sent a heartbeat, and so has heard what the server wants of it."""
        for _ in range(2):  # the first may have left before
            await self._next_heartbeat(run, await self.activity(run))

    async def _next_heartbeat(self, run: Run, first: PendingActivityInfo | None) -> None:
        async def has_come() -> bool:
            now = await self.activity(run)
            return first is None or now is None or now.last_heartbeat_time != first.last_heartbeat_time

        await until(has_come, f"{run.id} has sent a heartbeat")

    async def nothing_runs(self) -> None:
        """Wait until no worker has a call in hand that it claimed, or found claimed."""

        async def is_empty() -> bool:
            return not await self.store.running_calls()

        await until(is_empty, "no call runs")

    async def asks(self, run: Run) -> None:
        """Wait until a run asks a question."""

        async def is_pending() -> bool:
            return bool(await self.people.pending(run.id))

        await until(is_pending, f"{run.id} asks")

    async def answer(self, run: Run, text: str) -> None:
        """Answer a run's question when it asks."""
        await self.asks(run)
        await self.people.answer(run.id, text)

    async def reset_anywhere(self, run: Run, chance: random.Random) -> None:
        """Reset a run, which may have ended, to before one of its workflow tasks, if the server lets it be there.

        What people have sent it since is sent again, or not.
        """
        events = (await run.fetch_history()).events
        points = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
        if points:
            which = ["--workflow-id", run.id, "--event-id", str(chance.choice(points))]
            which += chance.choice(([], ["--reapply-exclude", "All"]))
            with contextlib.suppress(AssertionError):
                await self.temporal("workflow", "reset", *which, "--reason", "chaos")

    async def temporal(self, *arguments: str) -> str:
        """Run the `temporal` command, as an operator would."""
        command = [temporal_binary(), *arguments, "--address", self.address]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    # --- the outcome ---

    def count(self, what: str, case: str) -> int:
        """Return how many "effects", or looks by `verify` ("verified"), the calls of a case had."""
        path = self.folder / f"{what}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(line.rpartition(".")[0] == case for line in lines)

    def effects(self, call: str) -> int:
        path = self.folder / "effects.txt"
        return path.read_text().splitlines().count(call) if path.exists() else 0

    def model_calls(self, case: str) -> list[int]:
        """Return for which turn the model was asked, each time."""
        return [asked["turn"] for asked in self._asked(case)]

    def read_by_model(self, case: str) -> list[str]:
        """Return the results that the model was given last."""
        messages = [
            Message(role="tool", content=content, tool_call_id="c") for content in self._asked(case)[-1]["reads"]
        ]
        return [read(message).partition(": ")[2] for message in messages]

    def _asked(self, case: str) -> list[dict[str, Any]]:
        path = self.folder / "model.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [asked for line in lines if (asked := json.loads(line))["case"] == case]

    async def results(self, case: str) -> list[str]:
        """Return the results in the transcript, with their status."""
        return [read(message) for message in await self.store.load_messages(case) if message.role == "tool"]

    async def transcript(self, case: str) -> list[str]:
        """Return the transcript, a line for each message."""
        lines = []
        for message in await self.store.load_messages(case):
            calls = " ".join(call.id for call in message.tool_calls or ())
            lines.append(f"calls {calls}" if calls else read(message) if message.role == "tool" else message.content)
        return lines


@asynccontextmanager
async def world(folder: Path, address: str) -> AsyncIterator[World]:
    """Make a world, and end all its processes."""
    os.makedirs(folder, exist_ok=True)
    made = World(folder, await connect(address))
    try:
        yield made
    finally:
        for process in made.processes:
            process.close()
        await made.store.close()
