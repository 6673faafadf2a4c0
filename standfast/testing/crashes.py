"""Stops runs at the worst moments and inspects the remains, for users' agents and for standfast's own tests.

A crash here is an exception after which the store accepts no more writes, as if the process had died. It cannot show
the effects of a real SIGKILL on the operating system; the acceptance tests do that.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from standfast.agent_loop import Decision
from standfast.agents import Agent
from standfast.checkpoints import PendingApproval, RunResult
from standfast.local import resume, run
from standfast.messages import Message
from standfast.stores import AgentStore
from standfast.testing.models import ScriptedModel
from standfast.tools import Tool, ToolContext

StoreT = TypeVar("StoreT", bound=AgentStore)
_WRITES = ("append_messages_atomic", "append_messages", "save_session", "prune_messages", "delete_session")


class SimulatedCrash(BaseException):
    """The process is dead from here on. `except Exception` does not catch it."""


def crash_after_tool_results(store: StoreT, fail_on_call: int = 2) -> StoreT:
    """Return the store with its `fail_on_call`-th `append_messages_atomic` failing and writing nothing.

    In a new session, the second one is the write of the first tool results: the tools ran, and their results are lost.
    """
    return cast(StoreT, _FailingStore(store, fail_on_call))


class _FailingStore:
    def __init__(self, store: Any, fail_on_call: int) -> None:
        self._store = store
        self._left = fail_on_call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_messages_atomic(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("simulated crash after tool results")
        return await self._store.append_messages_atomic(*args, **options)


@dataclass(slots=True)
class CrashedRun:
    """One run that was stopped, and the run that continued it.

    Args:
        stopped_at: the boundaries, such as "before write 2" or "after handler of call_1".
        calls: how often each call's handler was started, in all processes; the key is "agent/tool_call_id".
        unsafe_calls: the calls whose tools have effects.
        messages: the session's final messages.
        written: every message that a store had accepted before a crash.
    """

    stopped_at: tuple[str, ...]
    calls: Counter[str] = field(default_factory=Counter)
    unsafe_calls: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)
    written: list[Message] = field(default_factory=list)
    result: RunResult | None = None

    @property
    def double_executions(self) -> list[str]:
        """Calls with effects whose handler was started more than once."""
        return [call for call in self.unsafe_calls if self.calls[call] > 1]

    @property
    def lost_messages(self) -> list[str]:
        """Accepted messages that are lost, and calls without exactly one result."""
        lost, kept = [], list(self.messages)
        for message in self.written:
            if message in kept:
                kept.remove(message)
            else:
                lost.append(f"{message.role}: {message.content!r}")
        asked = Counter(call.id for message in self.messages for call in message.tool_calls or ())
        given = Counter(message.tool_call_id for message in self.messages if message.role == "tool")
        lost += [
            f"{given[call]} results for {count} requests of {call}"
            for call, count in asked.items()
            if given[call] != count
        ]
        return lost


@dataclass(slots=True)
class CrashReport:
    """All runs of a scenario, one per boundary."""

    runs: list[CrashedRun]

    @property
    def double_executions(self) -> list[tuple[tuple[str, ...], str]]:
        return [(run.stopped_at, call) for run in self.runs for call in run.double_executions]

    @property
    def lost_messages(self) -> list[tuple[tuple[str, ...], str]]:
        return [(run.stopped_at, message) for run in self.runs for message in run.lost_messages]

    @property
    def unfinished(self) -> list[tuple[str, ...]]:
        """The boundaries after which the resumed run did not end with "complete"."""
        return [run.stopped_at for run in self.runs if run.result is None or run.result.status != "complete"]


def _approves(waiting: PendingApproval) -> Decision:
    """Approve as the first approver who has not yet done so; approvers that are groups need a `decide=`."""
    who = next((name for name in waiting.approvers if name not in waiting.approved_by), None)
    return Decision(gate=waiting.gate, decision="approve", by=who, digest=waiting.digest)


async def crash_everywhere(
    agent: Agent,
    *,
    message: str,
    model: Callable[[list[Message], list[Any]], Any],
    store: Callable[[str], AgentStore],
    answer: Callable[[str], str] = lambda question: "yes",
    decide: Callable[[PendingApproval], Decision] = _approves,
    invoked: Sequence[Agent] = (),
    crashes: int = 1,
) -> CrashReport:
    """Run an agent repeatedly, stop it at each store write and each handler in turn, and resume it.

    Args:
        model: answers from the transcript, since a resumed run asks a new process (see `ScriptedModel`).
        store: opens a durable store by name: the same name again is the same database in another process.
        answer: answers the questions of interrupted runs.
        decide: decides on items that wait for approval; by default approves as the first approver who is still needed.
        invoked: agents that tools invoke; agents among the tools are already known.
        crashes: 2 also stops every resumed run at each of its boundaries.
    """
    report = CrashReport([])
    await _explore(_Scenario(agent, message, model, store, answer, decide, tuple(invoked)), (), crashes, report)
    return report


@dataclass(slots=True, frozen=True)
class _Scenario:
    agent: Agent
    message: str
    model: Callable[[list[Message], list[Any]], Any]
    store: Callable[[str], AgentStore]
    answer: Callable[[str], str]
    decide: Callable[[PendingApproval], Decision]
    invoked: tuple[Agent, ...]


async def _explore(scenario: _Scenario, stops: tuple[int, ...], crashes: int, report: CrashReport) -> None:
    boundary = 0
    while True:
        boundary += 1
        crashed = await _run_stopped(scenario, (*stops, boundary))
        if len(crashed.stopped_at) <= len(stops):  # it ended before this boundary: all boundaries are explored
            if not stops:
                report.runs.append(crashed)
            return
        report.runs.append(crashed)
        if crashes > 1:
            await _explore(scenario, (*stops, boundary), crashes - 1, report)


async def _run_stopped(scenario: _Scenario, stops: tuple[int, ...]) -> CrashedRun:
    """Run with one process per stop, and a last one without interruption."""
    record = CrashedRun(())
    name = "-".join(str(stop) for stop in stops)
    for stop in (*stops, None):
        process = _Process(scenario, name, stop, record)
        try:
            record.result = await process.run()
            break
        except SimulatedCrash:
            record.stopped_at += (process.stopped_at,)
        finally:
            await process.close()
    return record


class _Process:
    def __init__(self, scenario: _Scenario, name: str, stop: int | None, record: CrashedRun) -> None:
        self.stopped_at = ""
        self._scenario = scenario
        self._store: Any = scenario.store(name)
        self._stop = stop
        self._record = record
        self._boundaries = 0
        self._writes = 0

    async def run(self) -> RunResult:
        scenario, options = self._scenario, self._options()
        known = await self._store.load_session("crash")
        # The caller of the run sends the message again only if none of it arrived.
        message = None if known else scenario.message
        result = await run(scenario.agent, message=message, session_id="crash", **options)
        while result.interrupted:
            decisions = [scenario.decide(waiting) for waiting in result.approvals]
            answer = None if decisions else scenario.answer(result.question)
            result = await resume(scenario.agent, result.checkpoint, answer, decisions=decisions, **options)
        self._record.messages = await self._store.load_messages("crash")
        return result

    async def close(self) -> None:
        if hasattr(self._store, "close"):
            await self._store.close()

    def _options(self) -> dict[str, Any]:
        tools: dict[str, dict[str, Tool[..., Any]]] = {}
        for agent_name, tool in _all_tools((self._scenario.agent, *self._scenario.invoked)):
            if tool.handler is not None:
                tools.setdefault(tool.name, {})[agent_name] = tool
        return {
            "llm": ScriptedModel(self._scenario.model),
            "store": _WatchedStore(self, self._store),
            "tools": {name: self._watched(by_agent) for name, by_agent in tools.items()},
        }

    def reach(self, boundary: str) -> None:
        self._boundaries += 1
        if self.stopped_at:
            raise SimulatedCrash(self.stopped_at)
        if self._boundaries == self._stop:
            self.stopped_at = boundary
            raise SimulatedCrash(boundary)

    async def write(self, method: Callable[..., Any], args: Any, options: Any) -> Any:
        self._writes += 1
        number = self._writes
        self.reach(f"before write {number}")
        result = await method(*args, **options)
        if method.__name__.startswith("append"):
            self._record.written.extend(args[1])
        self.reach(f"after write {number}")
        return result

    def _watched(self, by_agent: dict[str, Tool[..., Any]]) -> Callable[..., Any]:
        """Return the handler that runs instead of the tools of one name, for all agents."""

        async def watched(*value: Any, standfast_context: ToolContext, **arguments: Any) -> Any:
            tool = by_agent[standfast_context.agent_name]
            assert tool.handler is not None
            call = f"{standfast_context.agent_name}/{standfast_context.tool_call_id}"
            self.reach(f"before handler of {call}")
            self._record.calls[call] += 1
            if not tool.safe_to_retry:
                self._record.unsafe_calls.add(call)
            result = tool.bind(tool.handler, value[0] if value else arguments, standfast_context)()
            result = await result if inspect.isawaitable(result) else result
            self.reach(f"after handler of {call}")
            return result

        return watched


class _WatchedStore:
    def __init__(self, process: _Process, store: Any) -> None:
        self._process = process
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _WRITES:
            return method

        async def write(*args: Any, **options: Any) -> Any:
            return await self._process.write(method, args, options)

        return write


def _all_tools(agents: Iterable[Agent]) -> Iterable[tuple[str, Tool[..., Any]]]:
    for agent in agents:
        for tool in agent.tool_map.values():
            yield agent.name, tool
        yield from _all_tools(item for item in agent.tools if isinstance(item, Agent))
