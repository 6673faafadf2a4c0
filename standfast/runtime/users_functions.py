"""Calls what users declare: functions, approvals of calls, and types that read answers, for a limited time.

An answer is kept before it is read, beside the event loop. If it were read on a worker's loop, an answer that a type's
own validators never finish would stop that worker, and then every other one that reads it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from standfast.agent_loop import open_gates
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.messages import ToolCall, error_text
from standfast.pipeline_loop import Done
from standfast.pipelines import Step
from standfast.runtime.threads import in_thread


async def call_users(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's, and await its result if it is async.

    Raises:
        RuntimeError: it raised SystemExit, which would end an event loop and the thread of all handlers.
    """
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error


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


_LOG = logging.getLogger("standfast")


def ask_at_gates(agent: Agent, calls: Iterable[ToolCall], **options: Any) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that calls have to pass, and by id why some cannot run at all; see `open_gates`."""
    questions, refused, faults = open_gates(agent, calls, **options)
    for fault in faults:
        _LOG.warning("Agent %s: %s", agent.name, fault)
    return questions, refused
