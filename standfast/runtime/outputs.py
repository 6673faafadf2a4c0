"""Reads models' answers by types that users declare, beside the event loop and for a limited time.

An answer is kept before it is read. If it were read on a worker's loop, an answer that a type's own validators never
finish would stop that worker, and then every other one that reads it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from standfast.agents import Agent
from standfast.messages import error_text
from standfast.pipeline_loop import Done
from standfast.pipelines import Step
from standfast.runtime.threads import in_thread

T = TypeVar("T")
READ_SECONDS = 10.0


async def output_problem(agent: Agent, response: str | None) -> str | None:
    """Say why a final answer is not the agent's `output`; None if it is, or there is no answer or no such type."""
    if agent.output is None or response is None:
        return None
    try:
        return await _in_time(lambda: agent.output_problem(response))
    except TimeoutError:
        return f"the answer does not fit the agent's output: reading it took more than {READ_SECONDS:g} s"
    except (Exception, SystemExit) as error:  # of a validator of the user's
        return f"the answer cannot be read by the agent's output: {type(error).__name__}: {error_text(error)}"


async def read_in_time(step: Step[Any], read: Callable[[], tuple[Done, Any]]) -> tuple[Done, Any]:
    """Return what a step's result means, and its output."""
    try:
        return await _in_time(read)
    except TimeoutError:
        text = f"Step '{step.name}': reading its output took more than {READ_SECONDS:g} s"
        return Done(reason="schema-mismatch", error=text), None


async def _in_time(read: Callable[[], T]) -> T:
    async with asyncio.timeout(READ_SECONDS) as until:
        result: T = await in_thread(read, limit=until)
    return result
