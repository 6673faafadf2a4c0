"""The usage of invoked agents always counts, including against their caller's budget."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.drivers import Driver
from support.questions import ask_user
from support.transcripts import asks_for, call, says

from standfast import (
    Agent,
    LLMResponse,
    Loop,
    Message,
    TerminalError,
    ToolContext,
    Usage,
    assert_complete,
    is_interrupted,
    resume,
    run,
    sqlite_store,
    tool,
)
from standfast.llm import ToolDescription
from standfast.testing import ScriptedModel


async def test_tokens_of_children_are_counted() -> None:
    child = Agent("child")
    model = ScriptedModel([asks_for(call("child", "c", message="go"), tokens=1), says("ok", 10), says("done", 100)])
    result = assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model))
    assert (result.usage, result.checkpoint.usage) == (Usage(input_tokens=111), Usage(input_tokens=111))


async def test_tokens_of_grandchildren_and_failed_children_are_counted() -> None:
    inner = Agent("inner", loop=Loop(max_iterations=1))
    middle = Agent("middle", tools=[inner])
    model = ScriptedModel(
        [
            asks_for(call("middle", "m", message="go"), tokens=1),
            asks_for(call("inner", "i", message="go"), tokens=10),
            asks_for(call("nope", "c"), tokens=100),
            says("two", 1_000),
            says("one", 10_000),
        ]
    )
    result = assert_complete(await run(Agent("outer", tools=[middle]), message="hi", llm=model))
    assert result.usage == Usage(input_tokens=11_111)


async def test_tokens_of_a_child_that_asks_are_counted() -> None:
    child = Agent("child", tools=[ask_user])
    parent = Agent("parent", tools=[child])
    first = ScriptedModel(
        [asks_for(call("child", "d", message="go"), tokens=1), asks_for(call("ask_user", "c", question="?"), tokens=10)]
    )
    asked = await run(parent, message="hi", llm=first)
    assert is_interrupted(asked)
    assert asked.checkpoint.usage == Usage(input_tokens=11)
    result = assert_complete(await resume(parent, asked.checkpoint, "x", llm=ScriptedModel([says("done", 100)])))
    assert result.usage == Usage(input_tokens=111)


async def test_tokens_of_a_child_that_failed_for_good_are_counted() -> None:
    @tool
    async def charge() -> None:
        raise TerminalError("blocked")

    child = Agent("child", tools=[charge], on_terminal_tool_error="fail")
    model = ScriptedModel(
        [
            asks_for(call("child", "d", message="go"), tokens=1),
            asks_for(call("charge", "c"), tokens=10),
            says("done", 100),
        ]
    )
    result = assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model))
    assert result.usage == Usage(input_tokens=111)


async def test_what_children_use_counts_against_the_budget_of_their_parent() -> None:
    child = Agent("child")
    parent = Agent("parent", tools=[child], loop=Loop(token_budget=100))
    model = ScriptedModel([asks_for(call("child", "c", message="go"), tokens=1), says("ok", 200)])
    result = assert_complete(await run(parent, message="hi", llm=model))
    assert (result.status, len(model.calls)) == ("token-budget-exhausted", 2)


async def test_tokens_of_a_child_that_is_cut_off_or_raises_are_counted(driver: Driver) -> None:
    asked = list[str]()

    @tool
    async def look() -> str:
        return "seen"

    @tool
    async def charge() -> None:
        raise TerminalError("blocked")

    async def answer(messages: Any, tools: Any) -> Any:
        names = {one.name for one in tools}
        if "delegate" in names:
            return says("done", 1_000) if messages[-1].role == "tool" else asks_for(call("delegate", "d"), tokens=1)
        if messages[-1].role == "tool":
            asked.append("slow")
            await asyncio.Event().wait()
        return asks_for(call("look", "l"), tokens=10) if "look" in names else asks_for(call("charge", "c"), tokens=100)

    slow = Agent("slow", tools=[look])
    failing = Agent("failing", tools=[charge], on_terminal_tool_error="fail")

    @tool
    async def delegate(ctx: ToolContext) -> str:
        """Let two agents work: one is cut off, and one raises."""
        with contextlib.suppress(TerminalError):
            await ctx.agents.invoke(failing, message="go")
        task = asyncio.ensure_future(ctx.agents.invoke(slow, message="go"))
        while not asked:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return "gave up"

    parent = Agent("parent", tools=[delegate])
    ended = await driver.run(parent, ScriptedModel(answer), also=[slow, failing])
    assert (ended.status, ended.error, ended.usage) == ("complete", None, Usage(input_tokens=1_111))


async def test_usage_stays_none_when_neither_parent_nor_child_reports_any() -> None:
    child = Agent("child")
    model = ScriptedModel([asks_for(call("child", "c", message="go")), "ok", "done"])
    assert assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model)).usage is None


DIES = """
import asyncio, os, signal, sys
from integration.local.test_invoked_usage import MODEL, asking
from standfast import Agent, run, sqlite_store

agent = asking(lambda: os.kill(os.getpid(), signal.SIGKILL), safe=sys.argv[2] == "safe")
asyncio.run(run(agent, message="go", session_id="s", llm=MODEL, store=sqlite_store(sys.argv[1])))
"""


def _answer(messages: Sequence[Message], tools: Sequence[ToolDescription]) -> LLMResponse:
    names, has_called = {one.name for one in tools}, messages[-1].role == "tool"
    if "ask" in names:
        return says("done", 10_000) if has_called else asks_for(call("ask", "c1"), tokens=1)
    if "third" in names:
        return says("two", 1_000) if has_called else asks_for(call("third", "c2", message="go"), tokens=10)
    return says("three", 100)


MODEL = ScriptedModel(_answer)


def asking(then: Callable[[], None], *, safe: bool) -> Agent:
    """Return an agent whose tool invokes another, which calls a third, and does `then` when both have answered."""
    second = Agent("second", tools=[Agent("third")])

    @tool(safe_to_retry=safe)
    async def ask(ctx: ToolContext) -> str:
        answer = await ctx.agents.invoke(second, message="go")
        then()
        return answer["response"]

    return Agent("a", tools=[ask])


@pytest.mark.parametrize("kind", ["safe", "unsafe"])
async def test_what_agents_used_counts_if_the_process_that_ran_them_was_killed(tmp_path: Path, kind: str) -> None:
    path, tests = tmp_path / "standfast.db", Path(__file__).parents[2]
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES, str(path), kind, cwd=tests)
    assert await killed.wait() == -signal.SIGKILL
    async with contextlib.AsyncExitStack() as stack:
        store = sqlite_store(path)
        stack.push_async_callback(store.close)
        agent = asking(lambda: None, safe=kind == "safe")
        result = assert_complete(await run(agent, session_id="s", llm=MODEL, store=store))
        session = await store.load_session("s")
    assert session is not None
    twice = 1_110 if kind == "safe" else 0
    assert result.usage == Usage(input_tokens=1_110 + twice + 10_000)
    assert session.usage == Usage(input_tokens=1 + 1_110 + twice + 10_000)
