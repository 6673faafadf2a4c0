"""The process that the crash tests kill: a worker, or a run in process, whose tools leave lines in a file.

It stops wherever the test has put a file, until the file is gone. standfast knows of none of these files.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

from temporalio import activity
from temporalio.worker import Worker, WorkerConfig

from acceptance.kept_agents import kept_agents
from standfast import (
    Agent,
    Approval,
    Happened,
    InterruptError,
    Loop,
    Message,
    NotHappened,
    Pipeline,
    RetryableError,
    RetryPolicy,
    Step,
    StepContext,
    TerminalError,
    Tool,
    ToolContext,
    pipeline,
    run,
    tool,
)
from standfast.agents import Lane
from standfast.stores import Append, LedgerEntry, Session, SQLiteStore
from standfast.stores.file_holds import SessionLocks
from standfast.temporal import StandfastPlugin, connect
from standfast.temporal.activities.worker import activity_guards
from standfast.temporal.workflows.run import activity_options, agent_workflows
from standfast.testing import ScriptedModel

QUICK = RetryPolicy(initial_interval=0.05, maximum_attempts=3)


def append(path: Path, text: str) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def arguments(name: str, call_id: str) -> dict[str, int]:
    """Return what the model gives to a tool: no two calls have the same amount, which is a million at least."""
    return {"amount": 10**6 + crc32(call_id.encode())} if name == "refund" else {}


class Outside:
    """What a process has to do with the test: where it stops, and what it leaves behind.

    Args:
        name: of the process; only its own files stop it, and those for anyone.
        pace: seconds that it stays at each point at most, for tests that kill at random.
    """

    def __init__(self, folder: Path, name: str, pace: float = 0.0) -> None:
        self.folder, self.name, self.pace = folder, name, pace

    def stops(self, call: str, point: str) -> bool:
        for who in (self.name, "anybody"):
            path = self.folder / f"{call}.{point}.{who}"
            if path.exists():
                reached = path.with_name(f"{path.name}.reached")
                if not reached.exists():
                    reached.write_text(self.name)
                return True
        return False

    async def at(self, call: str, point: str) -> None:
        while self.stops(call, point):
            await asyncio.sleep(0.01)
        if self.pace:
            await asyncio.sleep(random.random() * self.pace)

    def at_plainly(self, call: str, point: str) -> None:
        while self.stops(call, point):
            time.sleep(0.01)

    def mark(self, what: str) -> None:
        (self.folder / f"{self.name}.{what}").touch()

    def count(self, what: str, call: str) -> None:
        append(self.folder / f"{what}.txt", call)

    def effect(self, ctx: ToolContext) -> None:
        self.count("effects", ctx.tool_call_id)
        self.count("keys", ctx.idempotency_key)

    # --- tools ---

    async def move(self, ctx: ToolContext) -> str:
        await self.at(ctx.tool_call_id, "before-effect")
        self.effect(ctx)
        await self.at(ctx.tool_call_id, "after-effect")
        return f"did {ctx.tool_call_id}"

    async def move_amount(self, amount: int, ctx: ToolContext) -> str:
        await self.at(ctx.tool_call_id, "before-effect")
        self.count("amounts", f"{ctx.tool_call_id} {amount}")
        self.effect(ctx)
        await self.at(ctx.tool_call_id, "after-effect")
        return f"did {ctx.tool_call_id} with {amount}"

    async def move_in_spite_of_cancel(self, ctx: ToolContext) -> str:
        try:
            return await self.move(ctx)
        except asyncio.CancelledError:
            return f"cleaned up {ctx.tool_call_id}"

    def move_plainly(self, ctx: ToolContext) -> str:
        self.at_plainly(ctx.tool_call_id, "before-effect")
        self.effect(ctx)
        self.at_plainly(ctx.tool_call_id, "after-effect")
        return f"did {ctx.tool_call_id}"

    async def look_for_move(self, ctx: ToolContext) -> Happened | NotHappened | None:
        await self.at(ctx.tool_call_id, "in-verify")
        self.count("verified", ctx.tool_call_id)
        match (self.folder / f"{ctx.tool_call_id}.verdict").read_text():
            case "happened":
                return Happened(f"found {ctx.tool_call_id}")
            case "not-happened":
                return NotHappened()
            case "nobody-knows":
                return None
            case fault:
                raise OSError(fault)

    async def look_into_the_books(self, ctx: ToolContext) -> Happened | NotHappened:
        effects = self.folder / "effects.txt"
        if effects.exists() and ctx.tool_call_id in effects.read_text().splitlines():
            return Happened(f"did {ctx.tool_call_id}")
        return NotHappened()

    async def succeed_late(self, ctx: ToolContext) -> str:
        self.effect(ctx)
        if ctx.attempt < 3:
            raise RetryableError("busy")
        return f"did {ctx.tool_call_id} at attempt {ctx.attempt}"

    async def book(self, line: str) -> str:
        await self.at(line, "before-effect")
        self.count("effects", line)
        await self.at(line, "after-effect")
        return line

    def failing(self, error: Exception | type[BaseException]) -> Callable[[ToolContext], Awaitable[str]]:
        async def fail(ctx: ToolContext) -> str:
            self.effect(ctx)
            raise error

        return fail

    def returning(self, value: Any) -> Callable[[ToolContext], Awaitable[Any]]:
        async def move(ctx: ToolContext) -> Any:
            self.effect(ctx)
            return value

        return move

    def tools(self) -> list[Tool[..., Any]]:
        busy, broken = RetryableError("busy"), ValueError("no luck")
        closed = TerminalError("account closed", 402, {"account": 7})
        both = Approval(message="Refund?", approvers=["ada", "bob"], quorum=2)
        return [
            tool(name="charge", description="Charge.")(self.move),
            tool(name="charge_approved", description="Charge.", approval=Approval(message="Charge?"))(self.move),
            tool(name="look", description="Look.", safe_to_retry=True)(self.move),
            tool(name="look_twice", description="Look.", safe_to_retry=True, retry=RetryPolicy(maximum_attempts=2))(
                self.move
            ),
            tool(name="charge_plainly", description="Charge.")(self.move_plainly),
            tool(name="look_plainly", description="Look.", safe_to_retry=True)(self.move_plainly),
            tool(name="charge_anyway", description="Charge.")(self.move_in_spite_of_cancel),
            tool(name="look_anyway", description="Look.", safe_to_retry=True)(self.move_in_spite_of_cancel),
            tool(name="charge_beside", description="Charge.", parallel=True)(self.move),
            tool(name="look_beside", description="Look.", parallel=True, safe_to_retry=True)(self.move),
            tool(name="transfer", description="Transfer.", verify=self.look_for_move)(self.move),
            tool(name="wire", description="Transfer.", verify=self.look_into_the_books)(self.move),
            tool(name="pay", description="Pay.", approval=Approval(message="Pay?"))(self.move),
            tool(name="refund", description="Refund.", approval=both)(self.move_amount),
            tool(name="late", description="Look.", safe_to_retry=True, retry=QUICK)(self.succeed_late),
            tool(name="busy", description="Look.", safe_to_retry=True, retry=QUICK)(self.failing(busy)),
            tool(name="broken", description="Look.", safe_to_retry=True, retry=QUICK)(self.failing(broken)),
            tool(name="broken_once", description="Look.", safe_to_retry=True)(self.failing(broken)),
            tool(name="charge_busy", description="Charge.")(self.failing(busy)),
            tool(name="charge_broken", description="Charge.")(self.failing(broken)),
            tool(name="charge_closed", description="Charge.")(self.failing(closed)),
            tool(name="look_closed", description="Look.", safe_to_retry=True, retry=QUICK)(self.failing(closed)),
            tool(name="charge_asking", description="Charge.")(self.failing(InterruptError("How much?"))),
            tool(name="look_asking", description="Look.", safe_to_retry=True)(self.failing(InterruptError("Where?"))),
            tool(name="charge_breaking_off", description="Charge.")(self.failing(asyncio.CancelledError)),
            tool(name="charge_opaquely", description="Charge.")(self.returning(object())),
            tool(name="look_opaquely", description="Look.", safe_to_retry=True)(self.returning(object())),
            tool(name="charge_hugely", description="Charge.")(self.returning("x" * (10 * 1024 * 1024 + 1))),
        ]

    @cached_property
    def _agents(self) -> list[Agent]:
        tools = self.tools()
        return [
            Agent("teller", tools=tools),
            Agent("stopper", tools=tools, on_terminal_tool_error="stop"),
            Agent("failer", tools=tools, on_terminal_tool_error="fail"),
            Agent("asker", tools=tools, loop=Loop(on_unknown="ask")),
            *kept_agents(self),
        ]

    def agents(self) -> list[Agent]:
        return self._agents

    def pipelines(self) -> list[Pipeline]:
        book = tool(name="book", description="Book a line.")(self.book)

        def line(name: str) -> Callable[[StepContext], dict[str, str]]:
            return lambda ctx: {"line": f"{ctx.input['case']}.{name}{'' if ctx.item is None else ctx.item}"}

        def pages(name: str) -> Pipeline:
            steps = (Step(step, run=book, input=line(f"{name}-{step}")) for step in ("first", "second"))
            return pipeline(f"page-{name}", input=dict).step(next(steps)).step(next(steps)).build()

        def page(name: str) -> Step[Any]:
            return Step(name, pipeline=pages(name), input=lambda ctx: ctx.input)

        return [
            pipeline("desk", input=dict)
            .step("serve", agent=self.agents()[0], input=lambda ctx: f"{ctx.input['case']}: pay+charge wire")
            .step("closing", approval=Approval(message="Close the desk?"))
            .build(),
            pipeline("ledger", input=dict)
            .parallel("pages", page("left"), page("right"), Step("cover", run=book, input=line("cover")))
            .step("closing", approval=Approval(message="Close the books?"))
            .map("copies", Step("copy", run=book, input=line("copy")), over=lambda ctx: [1, 2, 3])
            .build(),
        ]

    # --- the model ---

    def model(self) -> ScriptedModel:
        """Return a model that does what the user says: "case: charge look+look" is two turns, the second of two calls.

        The calls of a case are `case.1`, `case.2` …, so that every file about a call is named after it.
        """

        async def answer(messages: list[Message], tools: list[Any]) -> Any:
            start = max(index for index, message in enumerate(messages) if message.role == "user")
            case, _, plan = messages[start].content.partition(": ")
            turn = sum(message.role == "assistant" for message in messages[start:])
            results = [message for message in messages[start:] if message.role == "tool"]
            reads, calls = [one.content[:2_000] for one in results], [one.tool_call_id for one in results]
            append(self.folder / "model.txt", json.dumps({"case": case, "turn": turn, "reads": reads, "calls": calls}))
            await self.at(f"{case}.{turn}", "in-model")
            turns = [turn for turn in plan.split() if not turn.startswith("#")]  # a word that tells messages apart
            if turn >= len(turns):
                return f"done {case}"
            before = sum(len(message.tool_calls or ()) for message in messages)
            return {
                "tool_calls": [
                    {"id": (id_ := f"{case}.{number}"), "name": name, "arguments": arguments(name, id_)}
                    for number, name in enumerate(turns[turn].split("+"), before + 1)
                ]
            }

        return ScriptedModel(answer)


class StoppingStore(SQLiteStore):
    """A store that stops around what it writes of a call."""

    def __init__(self, outside: Outside, locks: str | None = None) -> None:
        super().__init__(outside.folder / "standfast.db")
        self._outside = outside
        if locks is not None:  # as on another machine, where nobody's holds are seen
            self._locks = SessionLocks(str(outside.folder / locks))

    async def claim(self, scope: str, call_key: str, **options: Any) -> LedgerEntry:
        call = call_key.partition("/")[2].partition("#")[0]
        try:
            await self._outside.at(call, "before-claim")
        except asyncio.CancelledError:
            self._outside.mark("cancelled")
            raise
        entry = await super().claim(scope, call_key, **options)
        await self._outside.at(call, "after-claim")
        return entry

    async def finish(self, scope: str, call_key: str, **options: Any) -> bool:
        finished = await super().finish(scope, call_key, **options)
        await self._outside.at(call_key.partition("/")[2].partition("#")[0], "after-record")
        return finished

    async def append_reply(self, appends: Sequence[Append], **options: Any) -> str:
        calls = [call.id for call in appends[-1].messages[-1].tool_calls or ()] or [f"{appends[-1].session.id}.end"]
        for call in calls:
            await self._outside.at(call, "before-reply")
        kept = await super().append_reply(appends, **options)
        for call in calls:
            await self._outside.at(call, "after-reply")
        return kept


def put_run_into_keys() -> None:
    """Break standfast: let the keys of calls be the run's, so that each run of a session has its own ledger."""

    whole = Session.key.fget  # type: ignore[attr-defined]
    Session.key = property(lambda session: f"{whole(session)}.{activity.info().workflow_run_id}")  # type: ignore[method-assign,assignment]


class WithoutWorkflows(StandfastPlugin):
    """Makes a worker that only runs activities."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        return {**super().configure_worker(config), "workflows": []}


async def work(
    outside: Outside,
    address: str,
    queue: str,
    *,
    workflows: bool = True,
    drain: float = 0.0,
    locks: str | None = None,
    mutant: bool = False,
    steps: int = agent_workflows.STEPS,
    dead_after: float | None = None,
    silent: bool = False,
    lane: Lane = "each",
    **options: Any,
) -> None:
    """Work until SIGTERM, and then for as long as `drain` says.

    Args:
        dead_after: seconds of silence after which the server gives an activity up; above 3, after which a worker says
            that it lives.
        silent: it never reports that, so it never learns that a call is not needed any more.
    """
    if mutant:
        put_run_into_keys()
    agent_workflows.STEPS = steps
    if dead_after is not None:
        activity_options.HEARTBEAT = activity_options.MODEL_HEARTBEAT = timedelta(seconds=dead_after)
        activity_options.STORE_OPTIONS["heartbeat_timeout"] = timedelta(seconds=dead_after)
    if silent:
        activity_guards.HEARTBEAT_EVERY = 3_600.0
    if drain:
        options["graceful_shutdown_timeout"] = timedelta(seconds=drain)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect(address)
    plugin_type = StandfastPlugin if workflows else WithoutWorkflows
    async with StoppingStore(outside, locks) as store:
        plugin = plugin_type(
            agents=outside.agents(),
            pipelines=outside.pipelines(),
            store=store,
            llm=outside.model(),
            lane=lane,
        )
        async with Worker(client, task_queue=queue, plugins=[plugin], **options):
            outside.mark("ready")
            await stop.wait()
            outside.mark("stopping")


async def run_here(outside: Outside, sessions: dict[str, str], once: bool = False) -> None:
    """Run an agent in this process, in each of these sessions with its message, which counts once if so told."""
    teller, model = outside.agents()[0], outside.model()
    async with StoppingStore(outside) as store:
        await asyncio.gather(
            *(
                run(teller, message=said, message_id=said if once else None, llm=model, store=store, session_id=id_)
                for id_, said in sessions.items()
            )
        )


def main(lifeline: Connection, log: Path, *, folder: str, name: str, pace: float = 0.0, **options: Any) -> None:
    """Do what the options say, but never longer than the test lives: it holds the other end of the lifeline."""
    threading.Thread(target=lambda: lifeline.poll(None) and os._exit(1), daemon=True).start()
    warnings.simplefilter("error")
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    outside = Outside(Path(folder), name, pace)
    asyncio.run(work(outside, **options) if "queue" in options else run_here(outside, **options))
