"""Tools for scripted runs, and ways to start, await or delegate a run."""

import asyncio
from collections.abc import Callable
from typing import Any

from standfast import Agent, RetryPolicy, RunResult, Tool, ToolCall, ToolContext, assert_complete, run, tool
from standfast.testing import ScriptedModel
from support.transcripts import asks_for


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
async def fail() -> None:
    """Raise."""
    raise ValueError("out of paper")


def poster(effects: list[str], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        return f"posted {text}"

    return post


def delegating(child: Agent, **options: Any) -> Tool[..., Any]:
    @tool
    async def delegate(ctx: ToolContext) -> Any:
        return await ctx.agents.invoke(child, message="go", **options)

    return delegate


def recording(seen: list[Any], read: Callable[[ToolContext], Any]) -> Tool[..., Any]:
    @tool
    async def record(ctx: ToolContext) -> None:
        seen.append(read(ctx))

    return record


SOON = RetryPolicy(initial_interval=0.001, maximum_attempts=3)


async def ask(agent: Agent, *calls: ToolCall, **options: Any) -> RunResult:
    """Run an agent whose model asks for these calls in one turn and then is done."""
    model = ScriptedModel([asks_for(*calls), "done"])
    async with asyncio.timeout(30):
        return assert_complete(await run(agent, message="go", llm=model, **options))


async def reached(event: asyncio.Event, task: "asyncio.Task[Any]") -> None:
    """Wait for an event; fail if the task ends without it."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert event.is_set(), task


def watching(log: list[str], **options: Any) -> Agent:
    """An agent whose hooks and tool note that they are called."""

    def note(name: str) -> Any:
        return lambda context: log.append(name)

    @tool
    async def work() -> str:
        """Work."""
        log.append("work")
        return "ok"

    return Agent(
        "a", tools=[work, fail], on_start=note("start"), on_complete=note("complete"), on_stuck=note("stuck"), **options
    )
