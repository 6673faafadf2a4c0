"""Measures the cost of standfast in one process on SQLite, against a minimal equivalent.

    python benchmarks/in_process.py            prints a table
    python benchmarks/in_process.py --save     and appends the rows to benchmarks/results/in_process.jsonl

Machines are noisy, so the rounds of both sides alternate, and the figure is the median of the rounds' ratios.
"""

import argparse
import asyncio
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from figures import provenance

from standfast import Agent, LLMResponse, Loop, Message, ToolCall, run, sqlite_store, tool
from standfast.agent_loop import LoopState, next_action
from standfast.stores.sqlite.migrations import MIGRATIONS

CALL = LLMResponse(tool_calls=(ToolCall(id="", name="note", arguments={"text": "x" * 100}),))


@tool
async def note(text: str) -> dict[str, bool]:
    """Take a note."""
    return {"ok": True}


class EndlessModel:
    """Requests one tool call per turn, without latency, until its turns are used up."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    async def chat(self, messages: object, tools: object) -> LLMResponse:
        self.left -= 1
        return CALL if self.left >= 0 else LLMResponse(text="done")


def agent(steps: int) -> Agent:
    return Agent("bench", tools=[note], loop=Loop(max_iterations=steps + 1))


async def one_run(store: object, session_id: str, steps: int) -> float:
    started = time.perf_counter()
    await run(agent(steps), message="go", session_id=session_id, store=store, llm=EndlessModel(steps))  # type: ignore[arg-type]
    return (time.perf_counter() - started) / steps


def bare_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        db.execute(f"PRAGMA {pragma}")
    db.executescript(MIGRATIONS[0])
    db.execute(
        "INSERT INTO agent_sessions (id, agent_name, state, last_seq, version, created_at, updated_at)"
        " VALUES ('s', 'bench', '{}', 0, 0, 'now', 'now')"
    )
    return db


CALLS = json.dumps([{"id": "call_0000_0", "name": "note", "arguments": {"text": "x" * 100}}])
ROWS = (("assistant", "", CALLS, None, None), ("tool", '{"ok":true}', None, "call_0000_0", "note"))


def bare_transaction(db: sqlite3.Connection, seq: int) -> None:
    """Write the same row as a run, in the same transaction, with nothing around it."""
    db.execute("BEGIN IMMEDIATE")
    db.execute(
        "UPDATE agent_sessions SET updated_at = 'later', last_seq = ?, version = version + 1 WHERE id = 's'", (seq,)
    )
    db.execute(
        "INSERT INTO agent_messages (session_id, seq, role, content, tool_calls, tool_call_id, tool_name, write_key)"
        " VALUES ('s', ?, ?, ?, ?, ?, ?, ?)",
        (seq, *ROWS[seq % 2], f"{seq}.0123456789abcdef"),
    )
    db.execute("COMMIT")


def floor(path: Path, steps: int) -> float:
    """Two transactions a step, blocking: seconds per step."""
    db = bare_database(path)
    started = time.perf_counter()
    for seq in range(2 * steps):
        bare_transaction(db, seq)
    seconds = (time.perf_counter() - started) / steps
    db.close()
    return seconds


async def awaited_floor(path: Path, steps: int) -> float:
    """The same two transactions from a separate thread, since a server cannot block its loop."""
    db, loop = bare_database(path), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        started = time.perf_counter()
        for seq in range(2 * steps):
            await loop.run_in_executor(thread, bare_transaction, db, seq)
        seconds = (time.perf_counter() - started) / steps
    db.close()
    return seconds


async def step_against_floor(folder: Path, rounds: int, steps: int) -> dict[str, float]:
    """Compare with the two transactions alone: blocking the loop, and awaited from a thread, as ours are."""
    ours, bare, awaited = [], [], []
    async with sqlite_store(folder / "ours.db") as store:
        await one_run(store, "warm-up", 20)
        for number in range(rounds):
            ours.append(await one_run(store, f"s{number}", steps))
            bare.append(floor(folder / f"floor{number}.db", steps))
            awaited.append(await awaited_floor(folder / f"awaited{number}.db", steps))
    return {
        "step_ms": statistics.median(ours) * 1e3,
        "blocking_floor_ms": statistics.median(bare) * 1e3,
        "awaited_floor_ms": statistics.median(awaited) * 1e3,
        "ratio_to_blocking": statistics.median(a / b for a, b in zip(ours, bare, strict=True)),
        "ratio_to_awaited": statistics.median(a / b for a, b in zip(ours, awaited, strict=True)),
    }


async def many_at_once(folder: Path, runs: int, steps: int, rounds: int) -> dict[str, float]:
    rates = []
    for number in range(rounds):
        async with sqlite_store(folder / f"many{number}.db") as store:
            await one_run(store, "warm-up", 5)
            started = time.perf_counter()
            await asyncio.gather(*(one_run(store, f"s{n}", steps) for n in range(runs)))
            rates.append(runs * steps / (time.perf_counter() - started))
    return {"runs": runs, "steps_per_second": statistics.median(rates), "best": max(rates)}


async def long_against_short(folder: Path, rounds: int) -> dict[str, float]:
    ratios, long_ms, short_ms = [], [], []
    async with sqlite_store(folder / "long.db") as store:
        await one_run(store, "warm-up", 20)
        for number in range(rounds):
            short = statistics.fmean([await one_run(store, f"short{number}-{n}", 10) for n in range(50)])
            long = await one_run(store, f"long{number}", 1_000)
            ratios.append(long / short)
            long_ms.append(long * 1e3)
            short_ms.append(short * 1e3)
    return {
        "step_of_1000_ms": statistics.median(long_ms),
        "step_of_10_ms": statistics.median(short_ms),
        "ratio": statistics.median(ratios),
    }


def deciding(rounds: int) -> dict[str, float]:
    """Microseconds of `next_action` in the most expensive state: open calls that become batches."""
    base = LoopState(loop=Loop(), tools={"note": note}).with_user_message()
    answer = Message(role="assistant", tool_calls=(ToolCall(id="c", name="note"),))

    def measure(state: LoopState) -> float:
        started = time.perf_counter()
        for _ in range(20_000):
            next_action(state)
        return (time.perf_counter() - started) / 20_000 * 1e6

    return {
        "call_model_us": statistics.median(measure(base) for _ in range(rounds)),
        "call_tools_us": statistics.median(measure(base.replied(answer)) for _ in range(rounds)),
    }


def importing(rounds: int) -> dict[str, float]:
    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    bare = "import pydantic; from pydantic import BaseModel, TypeAdapter; TypeAdapter(int)"
    seconds(bare)
    over = [seconds("from standfast import Agent") - seconds(bare) for _ in range(rounds)]
    return {"over_pydantic_ms": statistics.median(over) * 1e3}


async def measure(quick: bool) -> dict[str, dict[str, float]]:
    rounds = 3 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {
            "a tool step against its two bare transactions": await step_against_floor(folder, rounds, 300),
            "200 runs at once": await many_at_once(folder, 200, 25, rounds),
            "50 runs at once": await many_at_once(folder, 50, 50, rounds),
            "a session of 1,000 steps against one of 10": await long_against_short(folder, rounds),
            "next_action": deciding(rounds),
            "from standfast import Agent": importing(rounds * 2),
        }


def main() -> None:
    options = _arguments()
    results = asyncio.run(measure(options.quick))
    for name, figures in results.items():
        print(f"{name:48}", "  ".join(f"{key} {value:,.3f}" for key, value in figures.items()))
    if options.save:
        path = Path(__file__).parent / "results" / "in_process.jsonl"
        path.parent.mkdir(exist_ok=True)
        measured = {"date": datetime.now(UTC).date().isoformat(), **provenance(), "python": platform.python_version()}
        with path.open("a") as file:
            file.write(json.dumps({**measured, "results": results}) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--save", action="store_true", help="append the figures to the saved rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
