"""Sessions that live through many runs, one after the other, in both drivers, while everything goes wrong.

Each session has several runs: on Temporal under one of two workflow ids, or in a process. While they run, workers are
killed, runs are terminated, timed out, cancelled, reset and exported, operators act on activities by hand, people
decide, edit and answer, and users say more. However a run ends, it may be reset, and its message sent again.
Some calls are lost by two runs, one after the other, each at a different point. The books (`Books`) keep what people
were told; `chaos_faults` compares them with effects and transcripts, and replays every history.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from support.operators import OperatedActivity
from support.temporal_runs import last_words
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError

from acceptance.chaos_people import Books, People
from acceptance.replays import keep_history
from acceptance.temporal_worker import Outside
from acceptance.temporal_world import World
from standfast import SessionConflictError, StandfastError, resume
from standfast.agent_loop import unanswered
from standfast.runtime.child_agents import child_session
from standfast.temporal import StandfastClient, start_agent, start_pipeline
from standfast.temporal.client.runs.owners import Run

TOOLS = ("charge", "wire", "look", "charge_plainly", "charge_beside+charge_beside", "wire+look")
GATED = ("pay", "pay+charge", "refund", "refund+charge")
ASKING = ("charge_asking", "look_asking+charge_asking")
ACTIONS = ("nothing", "terminate", "cancel", "cancel", "reset", "reset", "export", "operate", "operate")
OPERATIONS = (
    OperatedActivity.fail, OperatedActivity.fail_to_be_retried, OperatedActivity.complete,
    OperatedActivity.complete_with_junk, OperatedActivity.pause_for_a_while, OperatedActivity.reset,
    OperatedActivity.time_out,
)  # fmt: skip
ENDS = ("nothing", "kill", "interrupt", "interrupt twice")
LOSABLE = ("charge", "charge", "charge_plainly", "wire", "look")
ENDS_WITHIN = 120  # seconds; each worker that dies with an activity in hand may cost 15
POINTS = ("before-claim", "before-effect", "after-effect", "after-record")  # of a call, in order


class Chaos:
    """Sessions of a world, and all that happens to them.

    Args:
        seed: of all that is left to chance here; processes and servers add their own.
    """

    def __init__(self, world: World, seed: int, **options: Any) -> None:
        self.world, self.seed, self.books, self.options = world, seed, Books(), options
        self.chance = random.Random(seed)
        self._fates: dict[str, random.Random] = {}  # by case, of its runs: whatever else happens beside them
        self._names: Iterator[str] = (f"w{number}" for number in count())
        self._words: Iterator[str] = (f"#{number}" for number in count())
        self.people = People(StandfastClient(world.client), self.books, self.chance, partial(next, self._words))
        self.desks: dict[str, str] = {}  # the sessions of agents that are steps, by case
        self._alive: list[Any] = []
        self._operated: set[str] = set()  # types of activities

    def note(self, text: str) -> None:
        self.books.notes.append(text)

    # --- workers ---

    async def hire(self) -> None:
        self._alive.append(await self.world.worker(next(self._names), pace=0.2, **self.options))

    async def trouble_workers(self) -> None:
        """Kill a worker, or freeze it for a while, and have another one; for ever."""
        async with asyncio.TaskGroup() as thawing:
            while True:
                await asyncio.sleep(self.chance.uniform(0.8, 2.0))
                worker = self._alive.pop(self.chance.randrange(len(self._alive)))
                if self.chance.random() < 0.3:
                    thawing.create_task(self._freeze(worker))
                else:
                    self.note(f"kills {worker.name}")
                    worker.kill()
                await self.hire()

    async def _freeze(self, worker: Any) -> None:
        """Let a worker lose its place while it is frozen, and then go on where it was, once more among others."""
        self.note(f"freezes {worker.name}")
        worker.freeze()
        try:
            await asyncio.sleep(self.chance.uniform(0.5, 5.0))
        finally:
            worker.thaw()
        await asyncio.sleep(1.0)
        self.note(f"kills {worker.name}, thawed")
        worker.kill()

    # --- a session ---

    def fate(self, case: str) -> random.Random:
        """Return the chance that decides what happens to the runs of a session: for a seed it is always the same."""
        return self._fates.setdefault(case, random.Random(f"{self.seed} {case}"))

    def plan(self, case: str, *, gated: bool) -> str:
        kinds, fate = TOOLS + GATED * 2 + ASKING * 2 if gated else TOOLS, self.fate(case)
        return " ".join([*(fate.choice(kinds) for _ in range(fate.randint(1, 3))), next(self._words)])

    async def live(self, case: str, runs: int) -> None:
        """Let a session have so many runs of which none needs to end well, and one more that must."""
        for _ in range(runs):
            which = self.fate(case).random()
            if which < 0.25:
                await self.lose(case)
            elif which < 0.45:
                await self.run_in_process(case)
            elif which < 0.65:
                await asyncio.gather(self.run_on_temporal(case), self.run_in_process(case))
            else:
                await self.run_on_temporal(case)
        async with asyncio.timeout(2 * ENDS_WITHIN):
            while True:
                try:
                    run = await self.start(case, f"look {next(self._words)}", id=f"{case}/{self.world.queue}")
                    result = await self._decided(run)
                except (WorkflowFailureError, SessionConflictError) as error:
                    why = str(error.__cause__ or error)
                    assert "in flight" in why or "at work" in why, (case, why)  # of a run that is just ending
                    await asyncio.sleep(0.2)
                    continue
                assert result["status"] == "complete", (case, result)
                return

    async def _decided(self, run: Run) -> dict[str, Any]:
        """Return the result of a run, which people help to its end: gates of the run before may be open in it."""
        deciding = asyncio.create_task(self.decide(run))
        try:
            return await self.end_of(run)
        finally:
            deciding.cancel()
            await asyncio.gather(deciding, return_exceptions=True)

    async def end_of(self, run: Run) -> dict[str, Any]:
        """Return the result of a run, or of the run that a reset made; one that does not end reports its state."""
        handle: Any = self.world.client.get_workflow_handle(run.id)
        try:
            async with asyncio.timeout(ENDS_WITHIN):
                result: dict[str, Any] = await handle.result()
        except TimeoutError:
            kept = keep_history(self.world, self.seed, run.id, await handle.fetch_history())
            self.note(f"{run.id} does not end, see {kept}: {await last_words(handle)}")
            raise
        return result

    async def run_in_process(self, case: str) -> None:
        name = f"{case}-{next(self._words)[1:]}"
        plans, once = {case: self.plan(case, gated=False)}, self.chance.random() < 0.5
        self.note(f"{case}: in process, {plans} {once}")
        process = await self.world.run_in_process(name, plans, once=once)
        end, moment = self.fate(case).choice(ENDS), self.fate(case).uniform(0.5, 1.5)
        if end != "nothing":
            await asyncio.sleep(moment)
        self.note(f"{case}: {end} to {name}")
        if end == "kill":
            process.kill()
        for _ in range(end.count("interrupt") + end.count("twice")):
            process.interrupt()
        await process.ended()
        if once:  # as its program does when it starts again after a crash
            await (await self.world.run_in_process(f"{name}-again", plans, once=True)).ended()

    async def start(self, case: str, plan: str, *, once: bool = False, **options: Any) -> Run:
        self.note(f"{case}: {plan} {once} {options}")
        return await start_agent(
            self.world.client,
            "teller",
            message=f"{case}: {plan}",
            message_id=f"{case}: {plan}" if once else None,
            session_id=case,
            task_queue=self.world.queue,
            task_timeout=timedelta(seconds=2),
            **options,
        )

    async def run_on_temporal(self, case: str) -> None:
        fate = self.fate(case)
        options: dict[str, Any] = {"id": f"{fate.choice(('', 'desk-'))}{case}/{self.world.queue}"}
        if fate.random() < 0.2:
            options["execution_timeout"] = timedelta(seconds=fate.uniform(0.5, 2))
        start = partial(self.start, case, self.plan(case, gated=True), once=self.chance.random() < 0.5, **options)
        run = await start()
        people = [asyncio.create_task(self.decide(run)), asyncio.create_task(self.say(case, run))]
        try:
            await asyncio.sleep(fate.uniform(0.1, 1.0))
            with contextlib.suppress(RPCError):  # it has ended
                await self.meddle(run)
            await self._ended(case, run)
            if start.keywords["once"]:
                with contextlib.suppress(StandfastError):  # another run is at work, or its answer is not to be had
                    await self._ended(case, await start())
            if self.chance.random() < 0.5:
                self.note(f"{run.id}: reset after its end")
                await self.world.reset_anywhere(run, self.chance)
                await self._ended(case, run)
        finally:
            for task in people:
                task.cancel()
            await asyncio.gather(*people, return_exceptions=True)

    async def _ended(self, case: str, run: Run) -> None:
        """Wait until a run has ended, well or not."""
        try:
            await self.end_of(run)
        except WorkflowFailureError as error:
            self.note(f"{case}: ended, {error.__cause__!r:.200}")
            if isinstance(error.__cause__, CancelledError):
                await self.look_for_unanswered(case, run)

    async def lose(self, case: str) -> None:
        """Have two runs meet the same call, one after the other: each is terminated at a point of it, with its worker.

        The first point comes before the second, so that an effect may come after a dispatch that had none.
        """
        fate, messages = self.fate(case), await self.world.store.load_messages(case)
        call = f"{case}.{sum(len(message.tool_calls or ()) for message in messages) + 1}"
        points = sorted(fate.sample(range(len(POINTS)), 2))
        for plan, point in zip((fate.choice(LOSABLE), "look"), (POINTS[number] for number in points), strict=True):
            stop = self.world.stop_at(point, call, worker="anybody")
            try:
                await self._lose_at(case, f"{plan} {next(self._words)}", stop)
            finally:
                stop.unlink()

    async def _lose_at(self, case: str, plan: str, stop: Path) -> None:
        """Terminate a run and kill its worker where the worker is, unless the run ends before it comes there."""
        reached = Path(f"{stop}.reached")
        reached.unlink(missing_ok=True)
        run = await self.start(case, plan, id=f"{case}/{self.world.queue}")
        people = asyncio.create_task(self.decide(run))
        try:
            ended = asyncio.create_task(self.end_of(run))
            while not (reached.exists() and reached.read_text()) and not ended.done():
                await asyncio.sleep(0.01)
            with contextlib.suppress(RPCError):  # it has ended
                await run.terminate()
            await asyncio.gather(ended, return_exceptions=True)
        finally:
            people.cancel()
            await asyncio.gather(people, return_exceptions=True)
        who = reached.read_text() if reached.exists() else None
        self.note(f"{case}: lost at {stop.name} by {who}")
        for worker in [worker for worker in self._alive if worker.name == who]:
            self._alive.remove(worker)
            worker.kill()
            await self.hire()

    async def look_for_unanswered(self, case: str, run: Run) -> None:
        """Check the turns that a cancelled run left; an earlier run's turns may not have results yet."""
        messages, session = await self.world.store.load_messages(case), await self.world.store.load_session(case)
        if session is not None and (session.journal_key or "").startswith(f"{run.first_execution_run_id}/"):
            asking = {question.tool_call_id for question in session.questions or () if question.gate is None}
            left = [call.id for call in unanswered(messages) if call.id not in asking]  # the next run asks again
            self.books.unanswered += [f"{call} of a run that was cancelled" for call in left]

    async def run_pipeline(self, case: str, name: str = "ledger") -> None:
        """Run a pipeline, and reset it again and again: of nested ones beside each other, or of an agent that asks."""
        run = await start_pipeline(
            self.world.client,
            name,
            input={"case": case},
            run_key=f"{case}-{self.world.queue}",
            task_queue=self.world.queue,
            task_timeout=timedelta(seconds=2),
        )
        deciding = asyncio.gather(self.decide(run), self.decide(run, f"{run.id}/serve"))
        try:
            for _ in range(self.chance.randint(1, 3)):
                await asyncio.sleep(self.chance.uniform(0.1, 1.5))
                with contextlib.suppress(RPCError):  # it has ended
                    await self.meddle(run, ("reset", "reset", "operate", "nothing"))
            await self._ended(case, run)
            if self.chance.random() < 0.5:
                await self.world.reset_anywhere(run, self.chance)
            result = await self.end_of(run)
            self.note(f"{case}: {result['status']} {result.get('error')}")
            if name == "desk":
                self.desks[case] = child_session(result["journal_key"], "serve")
        except WorkflowFailureError as error:  # an operator has failed a step by hand
            self.note(f"{case}: ended, {error.__cause__!r:.200}")
        finally:
            deciding.cancel()
            await asyncio.gather(deciding, return_exceptions=True)

    async def meddle(self, run: Run, actions: Sequence[str] = ACTIONS) -> None:
        """Do what an operator can do to a run."""
        action = self.chance.choice(actions)
        self.note(f"{run.id}: {action}")
        if action == "terminate":
            await run.terminate()
        elif action == "cancel":
            await run.cancel()
        elif action == "reset":
            await self.world.reset_anywhere(run, self.chance)
        elif action == "export":
            await self.take_over(run)
        elif action == "operate":
            await self.operate(run)

    async def operate(self, run: Run) -> None:
        """Act by hand on an activity of a run, preferably of a type that has not had an act yet."""
        one, until = None, time.monotonic() + 2
        while time.monotonic() < until and (one is None or one.activity_type.name in self._operated):
            pending = (await run.describe()).raw_description.pending_activities
            one = min(pending, key=lambda one: one.activity_type.name in self._operated, default=one)
            await asyncio.sleep(0.01)
        if one is not None:
            operation = self.chance.choice(OPERATIONS)
            self._operated.add(one.activity_type.name)
            self.note(f"{run.id}: {operation.__name__} {one.activity_type.name} {one.activity_id}")
            await operation(OperatedActivity(self.world.client, run.id, one.activity_id))

    async def take_over(self, run: Run) -> None:
        """Go on in this process from the export of a run that may be at work: in its session, or not at all."""
        here = Outside(self.world.folder, "here")
        try:
            async with asyncio.timeout(30):
                checkpoint = await self.people.client.export(run.id)
                await asyncio.sleep(self.chance.choice((0, 0, 1, 5)))  # in which the run may end
                await resume(here.agents()[0], checkpoint, llm=here.model(), store=self.world.store)
                self.note(f"{run.id}: taken over")
        except (StandfastError, RPCError, TimeoutError) as error:
            self.note(f"{run.id}: not taken over, {error!r:.200}")

    # --- people ---

    async def decide(self, run: Run, workflow_id: str | None = None) -> None:
        """Look after a run, or a child of it, for ever."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))
            try:
                pending = await self.people.client.pending(workflow_id or run.id)
            except (StandfastError, RPCError):
                continue
            for item in pending:
                await self.people.look_after(workflow_id or run.id, item)

    async def say(self, case: str, run: Run) -> None:
        """Say something more, once."""
        await asyncio.sleep(self.chance.uniform(0.1, 1.5))
        if self.chance.random() < 0.5:
            return
        await self.people.say(case, run.id)
