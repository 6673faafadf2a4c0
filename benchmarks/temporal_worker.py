"""A worker in a separate process, so that its CPU time and memory can be read from outside.

    python benchmarks/temporal_worker.py ADDRESS (floor | standfast) [--store STORE] [--stores KIND] …

It says "ready" on stdout, works until its stdin is closed, and then writes one line of JSON with its store's calls.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from temporal_floor import floor_worker
from temporalio.worker import Worker

from standfast import (
    Agent,
    Approval,
    ContextCompression,
    InterruptError,
    LLMResponse,
    Loop,
    Message,
    ToolCall,
    pipeline,
    tool,
)
from standfast.messages import Usage
from standfast.stores import open_store
from standfast.stores.protocol import AgentStore, Append, Ledger, LedgerEntry, RunningCall
from standfast.stores.sqlite import SQLiteStore
from standfast.temporal import StandfastPlugin, connect
from standfast.temporal.workflows.run import agent_workflows

# --- the agents ---------------------------------------------------------------------------------------------------


@tool(parallel=True)
async def note(n: int, size: int) -> str:
    """Take a note."""
    return f"{n} " + random.Random(n).randbytes(size // 2).hex()  # incompressible


@tool
async def ask(n: int) -> str:
    """Ask a person."""
    raise InterruptError("Go on?")


async def _begin(path: str) -> str:
    """Write a line to a file, and hang if it is the first one."""
    with Path(path).open("a") as file:
        print(time.time(), os.getpid(), file=file)
    if len(Path(path).read_text().splitlines()) == 1:
        await asyncio.sleep(600)
    return "0 again"


@tool(safe_to_retry=True)
async def fetch(path: str) -> str:
    """Fetch; safe to repeat."""
    return await _begin(path)


@tool
async def pay(path: str) -> str:
    """Pay, which must not happen twice."""
    return await _begin(path)


class PlannedModel:
    """Follows the plan in the first message, without latency or state."""

    async def chat(self, messages: Sequence[Message], tools: object, **settings: Any) -> LLMResponse:
        plan = json.loads(messages[1].content)
        last = messages[-1]
        done = int(last.content.split(" ", 1)[0]) + 1 if last.tool_name == "note" else 0
        usage = Usage(input_tokens=1_000, output_tokens=100)
        if last.tool_name in ("ask", "fetch", "pay") or done > plan["steps"]:
            return LLMResponse(text="done", usage=usage)
        calls = [ToolCall(name="note", arguments={"n": done, "size": plan.get("size", 100)})] * plan.get("tools", 1)
        if done == plan["steps"]:
            match plan.get("then"):
                case None:
                    return LLMResponse(text="done", usage=usage)
                case "ask":
                    calls = [ToolCall(name="ask", arguments={"n": done})]
                case name:
                    calls = [ToolCall(name=name, arguments={"path": plan["path"]})]
        return LLMResponse(tool_calls=tuple(calls), usage=usage)


def shortened(messages: Sequence[Message]) -> list[Message]:
    """Keep the first message and the last twenty, without results of dropped calls."""
    last = list(messages[-20:])
    while last and last[0].role == "tool":
        del last[0]
    return [messages[0], *last]


ENDLESS = Loop(max_iterations=1_000_000, max_tool_concurrency=8)
SHORT = Loop(max_iterations=1_000_000, context_compression=ContextCompression(shortened, max_messages=50))
AGENTS = (
    Agent("bench", tools=[note, ask, fetch, pay], instructions="Do.", loop=ENDLESS),
    Agent("short", tools=[note], instructions="Do.", loop=SHORT),
)

GATED = (
    pipeline("gated")
    .step("ok", approval=Approval(message="Go on?", timeout="7d"))
    .step("note", run=note, input=lambda ctx: {"n": 1, "size": 100})
    .build()
)

# --- stores -------------------------------------------------------------------------------------------------------


class TimedStore(SQLiteStore):
    """Records the duration of each operation: milliseconds by name."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.took: dict[str, list[float]] = {}
        for name in (*vars(Ledger), *vars(AgentStore)):
            if asyncio.iscoroutinefunction(getattr(self, name, None)):
                setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        took = self.took.setdefault(name, [])

        async def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return await operation(*args, **options)
            finally:
                took.append((time.perf_counter() - started) * 1e3)

        return timed


class NoLedger(SQLiteStore):
    """Answers like a ledger and journal, from memory, without durability."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._entries: dict[tuple[str, str], LedgerEntry] = {}

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        return LedgerEntry(state="claimed", owner=owner, arguments_hash=arguments_hash)

    async def finish(self, scope: str, call_key: str, *, owner: str, state: Any, result: str) -> bool:
        self._entries[scope, call_key] = LedgerEntry(state=state, owner=owner, result=result)
        return True

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        return self._entries[scope, call_key]

    async def load_entries(self, scope: str, call_keys: Sequence[str]) -> dict[str, LedgerEntry]:
        return {key: self._entries[scope, key] for key in call_keys}

    async def begin_call(self, running: RunningCall) -> None:
        pass

    async def end_call(self, owner: str) -> None:
        pass


class NoReplies(NoLedger):
    """Also keeps the model's replies in memory."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._replies: dict[tuple[str, int], str] = {}

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        return self._replies.setdefault((journal_key, turn), reply)

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        return self._replies.get((journal_key, turn))

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        await super().append_reply(appends, journal_key="none", turn=0, reply="")
        return await self.save_reply(journal_key, turn, reply)


class Stranger(SQLiteStore):
    """The store from another machine's view: the name of a dead worker cannot be taken."""

    async def hold(self, session_id: str) -> bool:
        return not session_id.startswith("worker_") and await super().hold(session_id)


STORES: dict[str, Any] = {
    "sqlite": SQLiteStore,
    "timed": TimedStore,
    "no-ledger": NoLedger,
    "no-replies": NoReplies,
    "stranger": Stranger,
}

# --- the process --------------------------------------------------------------------------------------------------


async def make_worker(options: argparse.Namespace, store: Any) -> Worker:
    if options.kind == "floor":
        return await floor_worker(options.address)
    agent_workflows.STEPS = options.steps
    client = await connect(options.address)
    plugin = StandfastPlugin(agents=AGENTS, pipelines=[GATED], store=store, llm=PlannedModel(), lane=options.lane)
    return Worker(client, task_queue=options.queue, plugins=[plugin])


async def main(options: argparse.Namespace) -> None:
    store = None
    if options.kind == "standfast":
        store = open_store(options.store) if "://" in options.store else STORES[options.stores](options.store)
    async with await make_worker(options, store):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(store.took if isinstance(store, TimedStore) else {}), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("kind", choices=("floor", "standfast"))
    parser.add_argument("--store", help="the SQLite file, or the address of a PostgreSQL database")
    parser.add_argument("--stores", choices=STORES, default="sqlite", help="how it is wrapped")
    parser.add_argument("--lane", choices=("each", "fast"), default="each", help="of the agents")
    parser.add_argument("--queue", default="standfast", help="the task queue")
    parser.add_argument("--steps", type=int, default=agent_workflows.STEPS, help="after which a run continues as new")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(_arguments()))
