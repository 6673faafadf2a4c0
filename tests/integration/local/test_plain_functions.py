"""Plain functions as tools run in separate threads and block nothing."""

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Any

from support.doubles import ask
from support.transcripts import call, contents, error

from standfast import Agent, Loop, assert_complete, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- plain functions ---


async def test_a_plain_function_runs_off_the_threads_of_the_loop() -> None:
    threads: list[int] = []

    @tool
    def work() -> str:
        threads.append(threading.get_ident())
        return "done"

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert threads != [threading.get_ident()]


async def test_a_plain_function_that_blocks_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    @tool(parallel=True)
    def block() -> bool:
        return release.wait(30)

    @tool(parallel=True)
    async def free() -> str:
        release.set()
        return "freed"

    assert contents(await ask(Agent("a", tools=[block, free]), call("block", "c1"), call("free", "c2"))) == [
        "true",
        "freed",
    ]


async def test_a_plain_function_may_raise_stop_iteration() -> None:
    @tool
    def work() -> str:
        return next(iter(()))

    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert "StopIteration" in error(result)


async def test_a_plain_function_may_return_a_coroutine() -> None:
    async def later() -> str:
        return "later"

    @tool
    def work() -> Any:
        return later()

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["later"]


# --- threads ---


async def test_a_plain_function_starts_at_once_however_many_were_given_up(store: SQLiteStore) -> None:
    release, started = threading.Event(), []

    @tool(timeout=0.05)
    def hang(name: str) -> None:
        """Hang."""
        started.append(name)
        release.wait(30)

    agent = Agent("a", tools=[hang], loop=Loop(stuck_threshold=0, max_tool_calls=100))
    ids = [f"c{number}" for number in range(40)]
    model = ScriptedModel([{"tool_calls": [{"id": i, "name": "hang", "arguments": {"name": i}} for i in ids]}, "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    release.set()
    assert (result.status, started) == ("complete", ids)


async def test_a_function_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import asyncio, threading\n"
        "from standfast import Agent, run, tool\n"
        "from standfast.testing import ScriptedModel\n"
        "@tool(timeout=0.05)\n"
        "def hang() -> None:\n"
        "    threading.Event().wait()\n"
        "model = ScriptedModel([{'tool_calls': [{'id': 'c', 'name': 'hang'}]}, 'done'])\n"
        "print(asyncio.run(run(Agent('a', tools=[hang]), message='go', llm=model)).response)\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.returncode) == ("done\n", 0)


async def test_a_plain_function_sees_the_context_variables_of_its_caller() -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    @tool
    def look() -> str:
        """Look."""
        return tenant.get()

    tenant.set("acme")
    model = ScriptedModel([{"tool_calls": [{"id": "c", "name": "look"}]}, "done"])
    result = assert_complete(await run(Agent("a", tools=[look]), message="go", llm=model))
    assert result.messages[2].content == "acme"
