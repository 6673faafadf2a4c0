"""Two machines with three workers, one PostgreSQL store and one Temporal server, of which each dies again and again.

Sessions and pipelines with effects, gates and questions continue through it, and people look after them. A worker is
killed or frozen, a machine is cut off from both servers while its workers live, or a server is killed, and all of that
is undone after a while. The time in which runs continue without a dead worker is measured at the Temporal server: from
its death until another worker has read the outcomes of the activities that it was running.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from support.postgres import PostgresServer, new_schema
from support.temporal_runs import last_words
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from acceptance.chaos_people import Books, People
from acceptance.machines import EndedError, Machine, Sink, WorkerProcess
from acceptance.replays import keep_history
from acceptance.temporal_world import World
from standfast import SessionConflictError, StandfastError
from standfast.temporal import StandfastClient, connect, dev_server, start_agent, start_pipeline

APPLICATION = """
import os
from acceptance.machines import Remote
from standfast import postgres_store

outside = Remote(os.environ["NAME"], 0.2, int(os.environ["SINK"]))
agents, pipelines, llm = outside.agents()[:1], outside.pipelines(), outside.model()
store = postgres_store(os.environ["STORE"], schema=os.environ["SCHEMA"])
"""
TURNS = ("charge", "charge", "wire", "look", "charge_plainly", "charge_beside+charge_beside", "wire+look", "pay",
         "pay+charge", "refund", "charge_asking", "look_asking+charge_asking")  # fmt: skip
LINES = ("left-first", "left-second", "right-first", "right-second", "cover", "copy1", "copy2", "copy3")  # of a ledger
TROUBLES = (*["worker"] * 5, "freeze", "cut", "postgres", "temporal")
AT_ONCE = 40  # sessions
RECOVERS = 60  # seconds in which a run must go on without a dead worker
ENDS = 240  # seconds in which a run must end


class TemporalServer:
    """A Temporal server that is killed and restarts with its written data."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._file, self._stack = folder / "temporal.db", stack
        self.port = 0

    async def start(self) -> None:
        self._server = await self._stack.enter_async_context(dev_server(db_filename=self._file, port=self.port))
        self.port = int(self._server.address.rpartition(":")[2])

    def kill(self) -> None:
        self._server.kill()


@dataclass(frozen=True)
class InHand:
    """An activity that a worker had in hand when it died."""

    workflow_id: str
    activity_type: str
    activity_id: str
    attempt: int


@dataclass
class ChaosOfMachines:
    """Sessions of a world, and all that happens to its machines.

    Args:
        seed: of all that is left to chance here.
        environment: of the workers' application.
        recoveries: seconds until a run continued without a dead worker, with the type of the activity that it had in
            hand; `calm` are those during which nothing else was wrong.
        faults: what did not end as it should.
    """

    world: World
    seed: int
    machines: list[Machine]
    postgres: PostgresServer
    temporal: TemporalServer
    environment: dict[str, str]
    books: Books = field(default_factory=Books)
    desks: dict[str, str] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    calm: list[tuple[str, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._names, self._words = count(1), count()
        client = StandfastClient(self.world.client, timeout=10)
        self.people = People(client, self.books, self.chance, self._word)
        self._alive: list[tuple[Machine, WorkerProcess]] = []
        self._open: set[str] = set()  # runs
        self._wrong = 0  # troubles other than dead workers that last
        self._few = asyncio.Semaphore(AT_ONCE)
        self._began = time.monotonic()

    def _word(self) -> str:
        return f"#{next(self._words)}"

    def note(self, text: str) -> None:
        self.books.notes.append(f"{time.monotonic() - self._began:.1f} {text}")

    # --- troubles ---

    async def hire(self, machine: Machine) -> None:
        """Start a worker, again if it ends: without its servers it does not begin."""
        while True:
            name = f"w{next(self._names)}"
            try:
                worker = await machine.worker(name, APPLICATION, self.world.queue, NAME=name, **self.environment)
            except EndedError as error:
                self.note(f"{name} ended: {error}")
                await asyncio.sleep(0.5)
            else:
                self._alive.append((machine, worker))
                return

    async def dismiss(self) -> None:
        for _, worker in self._alive:
            with contextlib.suppress(ProcessLookupError):
                worker.send(signal.SIGCONT)
            await worker.kill()

    async def trouble(self, enough: asyncio.Event) -> None:
        """Make trouble, each kind at least once, until it is enough; then undo it."""
        async with asyncio.TaskGroup() as undoing:
            while not enough.is_set() or self.deaths.keys() < set(TROUBLES):
                for trouble in self.chance.sample(TROUBLES, len(TROUBLES)):
                    await asyncio.sleep(self.chance.uniform(0.8, 2.0))
                    if not enough.is_set() or not self.deaths[trouble]:
                        await getattr(self, f"_{trouble}")(undoing)

    def _taken(self) -> tuple[Machine, WorkerProcess] | None:
        """Return one of the workers, if others are left."""
        return self._alive.pop(self.chance.randrange(len(self._alive))) if len(self._alive) > 1 else None

    async def _worker(self, undoing: asyncio.TaskGroup) -> None:
        if (taken := self._taken()) is None:
            return
        self.deaths["worker"] += 1
        machine, worker = taken
        identity, wrong = worker.identity, self._wrong
        worker.send(signal.SIGSTOP)  # so that it has in hand when it dies what it is seen to have
        had = await self._in_hand(identity)
        await worker.kill()
        since = time.monotonic()
        self.note(f"killed {worker.name}, which had {len(had)} activities in hand")
        for one in had:
            undoing.create_task(self._recovers(one, identity, since, wrong))
        undoing.create_task(_later(self.chance.uniform(0.0, 3.0), self.hire(machine)))

    async def _freeze(self, undoing: asyncio.TaskGroup) -> None:
        if (taken := self._taken()) is None:
            return
        self.deaths["freeze"] += 1
        taken[1].send(signal.SIGSTOP)
        self.note(f"froze {taken[1].name}")

        async def thaw() -> None:
            taken[1].send(signal.SIGCONT)
            self._alive.append(taken)

        self._undo(undoing, self.chance.uniform(1.0, 6.0), thaw())

    async def _cut(self, undoing: asyncio.TaskGroup) -> None:
        machine = self.chance.choice(self.machines)
        machine.cut_off()
        self.deaths["cut"] += 1
        self.note("cut a machine off")

        async def mend() -> None:
            machine.mend()

        self._undo(undoing, self.chance.uniform(1.0, 6.0), mend())

    async def _postgres(self, undoing: asyncio.TaskGroup) -> None:
        self._wrong += 1
        await asyncio.to_thread(self.postgres.kill)
        self.deaths["postgres"] += 1
        self.note("killed PostgreSQL")
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await asyncio.to_thread(self.postgres.start)
        self._wrong += 1

    async def _temporal(self, undoing: asyncio.TaskGroup) -> None:
        self._wrong += 1
        self.temporal.kill()
        self.deaths["temporal"] += 1
        self.note("killed the Temporal server")
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await self.temporal.start()
        self._wrong += 1

    def _undo(self, undoing: asyncio.TaskGroup, seconds: float, undo: Coroutine[Any, Any, None]) -> None:
        async def end() -> None:
            await _later(seconds, undo)
            self._wrong += 1

        self._wrong += 1
        undoing.create_task(end())

    # --- what a dead worker had in hand ---

    async def _pending(self, workflow_id: str) -> tuple[list[Any], bool]:
        """Return what a run waits for: activities, and a workflow task."""
        described = await self.world.client.get_workflow_handle(workflow_id).describe()
        raw = described.raw_description
        if described.close_time is not None:
            return [], False
        return list(raw.pending_activities), raw.HasField("pending_workflow_task")

    async def _in_hand(self, identity: str) -> list[InHand]:
        async def of(workflow_id: str) -> list[InHand]:
            with contextlib.suppress(RPCError):
                return [
                    InHand(workflow_id, one.activity_type.name, one.activity_id, one.attempt)
                    for one in (await self._pending(workflow_id))[0]
                    if one.last_worker_identity == identity
                    and one.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                ]
            return []

        return [one for found in await asyncio.gather(*map(of, self._open)) for one in found]

    async def _recovers(self, had: InHand, identity: str, since: float, wrong: int) -> None:
        while time.monotonic() < since + RECOVERS:
            try:
                pending, has_task = await self._pending(had.workflow_id)
            except RPCError:
                await asyncio.sleep(0.1)
                continue
            ours = [one for one in pending if (one.activity_id, one.attempt) == (had.activity_id, had.attempt)]
            lost = [one for one in ours if one.last_worker_identity == identity]
            if not lost and not has_task:
                self.recoveries.append((had.activity_type, time.monotonic() - since))
                if self._wrong == wrong:
                    self.calm.append(self.recoveries[-1])
                return
            await asyncio.sleep(0.05)
        self.faults.append(f"{had} waited for {identity} for {RECOVERS} s after its death")

    # --- sessions and pipelines ---

    async def live(self, case: str) -> None:
        """Let a session have a run, to which someone may say more."""
        turns = [self.chance.choice(TURNS) for _ in range(self.chance.randint(2, 4))]
        async with self._few:
            said = f"{case}: {' '.join(turns)}"
            start = partial(start_agent, self.world.client, "teller", message=said, message_id=said, session_id=case)
            says = case if self.chance.random() < 0.3 else None
            ended = await self._to_the_end(f"{case}/{self.world.queue}", start, says)
            if ended is not None and self.chance.random() < 0.5:
                ended = await self._reset(f"{case}/{self.world.queue}")
        if ended is not None and ended["status"] != "complete":
            self.faults.append(f"{case} ended so: {ended}")

    async def _reset(self, workflow_id: str) -> dict[str, Any] | None:
        """Reset a run that has ended, if the servers let us, and return its result; None if it does not end again."""
        self.note(f"{workflow_id}: reset after its end")
        with contextlib.suppress(RPCError, TimeoutError):
            async with asyncio.timeout(5):
                await self.world.reset_anywhere(self.people.client.run(workflow_id), self.chance)
        return await self._ended(workflow_id)

    async def run_pipeline(self, case: str) -> None:
        async with self._few:
            key = f"{case}-{self.world.queue}"
            start = partial(start_pipeline, self.world.client, "ledger", input={"case": case}, run_key=key)
            ended = await self._to_the_end(f"ledger/{key}", start, None)
        if ended is not None and ended["status"] == "complete":
            missing = [line for line in LINES if self.world.effects(f"{case}.{line}") != 1]
            self.faults += [f"{case} is complete, and {line} has not happened once" for line in missing]
        elif ended is not None and ended["error_reason"] not in ("approval-rejected", "tool-failed"):
            self.faults.append(f"{case} ended so: {ended}")

    async def _to_the_end(self, workflow_id: str, start: Any, says: str | None) -> dict[str, Any] | None:
        """Start a run and return its result; None if it does not end."""
        await self._start(workflow_id, start)
        saying = asyncio.create_task(self._say(workflow_id, says))
        try:
            return await self._ended(workflow_id)
        finally:
            await saying

    async def _say(self, workflow_id: str, case: str | None) -> None:
        if case is not None:
            await asyncio.sleep(self.chance.uniform(0.0, 1.5))
            await self.people.say(case, workflow_id)

    async def _ended(self, workflow_id: str) -> dict[str, Any] | None:
        self._open.add(workflow_id)
        handle = self.people.client.run(workflow_id)
        until = time.monotonic() + ENDS
        try:
            while time.monotonic() < until:
                with contextlib.suppress(RPCError, TimeoutError):
                    async with asyncio.timeout(5):
                        ended: dict[str, Any] = await handle.result()
                        return ended
        except WorkflowFailureError as error:
            kept = await self._keep(workflow_id)
            self.faults.append(f"{workflow_id} failed, see {kept}: {error.__cause__}")
            return None
        finally:
            self._open.discard(workflow_id)
        self.faults.append(
            f"{workflow_id} does not end, see {await self._keep(workflow_id)}: {await last_words(handle)}"
        )
        return None

    async def _keep(self, workflow_id: str) -> list[Path]:
        """Write the histories of all runs with an id as JSON; return the files."""
        client, kept = self.world.client, []
        async for run in client.list_workflows(f'WorkflowId = "{workflow_id}"'):
            history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            kept.append(keep_history(self.world, self.seed, f"{run.id}-{run.run_id}", history))
        return kept

    async def _start(self, workflow_id: str, start: Any) -> None:
        options = {"task_queue": self.world.queue, "task_timeout": timedelta(seconds=2)}
        if "session_id" in start.keywords:
            options["id"] = workflow_id
        while True:
            with contextlib.suppress(RPCError, StandfastError):
                try:
                    await start(**options)
                except SessionConflictError:  # it was started, without an acknowledgement
                    self.note(f"{workflow_id} was started before")
                return
            await asyncio.sleep(0.2)
            with contextlib.suppress(RPCError):
                await self.world.client.get_workflow_handle(workflow_id).describe()
                return

    # --- people ---

    async def look_after(self) -> None:
        """Decide and answer what waits, for ever."""
        at: set[tuple[str, str]] = set()

        async def see_to(item: dict[str, Any]) -> None:
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))
            await self.people.look_after(item["workflow_id"], item)
            at.discard((item["workflow_id"], item["name"]))

        async with asyncio.TaskGroup() as seeing:
            while True:
                await asyncio.sleep(0.3)
                with contextlib.suppress(RPCError, StandfastError):
                    for item in await self.people.client.waiting():
                        what = (item["workflow_id"], item["name"])
                        if what not in at and item["kind"] in ("approval", "question", "pause"):
                            at.add(what)
                            seeing.create_task(see_to(item))


async def _later(seconds: float, act: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(seconds)
    await act


@asynccontextmanager
async def chaos_of_machines(folder: Path, postgres: PostgresServer, seed: int) -> AsyncIterator[ChaosOfMachines]:
    """Make two machines with three workers, and what they share; end all of it."""
    schema = new_schema()
    async with AsyncExitStack() as stack:
        temporal = TemporalServer(folder, stack)
        await temporal.start()
        ports = {"temporal": temporal.port, "postgres": postgres.port}
        machines = [
            await stack.enter_async_context(Machine(folder / name, address, **ports).running())
            for name, address in (("one", "127.0.0.2"), ("two", "127.0.0.3"))
        ]
        sink = await stack.enter_async_context(Sink(folder).open())
        store = await stack.enter_async_context(postgres.store(schema))
        world = World(folder, await connect(f"127.0.0.1:{temporal.port}"), store)
        environment = {"SCHEMA": schema, "SINK": str(sink.port)}
        chaos = ChaosOfMachines(world, seed, machines, postgres, temporal, environment)
        stack.push_async_callback(chaos.dismiss)
        await chaos.hire(machines[0])  # makes the schema
        await asyncio.gather(*(chaos.hire(machine) for machine in machines))
        yield chaos
