"""Runs agents in this process. With a durable store and a session, that is enough to survive its death."""

import asyncio
import difflib
from collections.abc import AsyncGenerator
from typing import Unpack

from holdfast.agents import Agent
from holdfast.checkpoints import InterruptedResponse, RunResult
from holdfast.local.events import CheckpointReached, Event, MessageAdded, RunEnded, TextDelta, ToolEnded, ToolStarted
from holdfast.local.inputs import GivenCheckpoint, Transcript
from holdfast.local.runs import Run, RunOptions

__all__ = [
    "CheckpointReached",
    "Event",
    "MessageAdded",
    "RunEnded",
    "RunOptions",
    "TextDelta",
    "ToolEnded",
    "ToolStarted",
    "resume",
    "run",
    "run_streaming",
]


async def run(
    agent: Agent,
    *,
    message: str | None = None,
    messages: Transcript | None = None,
    checkpoint: GivenCheckpoint | None = None,
    **options: Unpack[RunOptions],
) -> RunResult | InterruptedResponse:
    """Run an agent until it is done, or asks a person.

    With a durable store and a session the run survives the death of the process: run the same session again and it
    goes on. Calls that were lost are repaired first: safe ones run again, the model reads of the others.

    Args:
        message: what the user says. Left out, a session or transcript goes on where it is; one that is finished
            returns its response again without calling the model.
        messages: a transcript to go on from, instead of a stored one.
        checkpoint: a run to go on from: a `Checkpoint`, its JSON, or a dict.
        llm: an adapter, or a function from the agent's `model` to one.
        store: where the session is kept; without one nothing is written.
        session_id: which session; without one, a new one.
        create_session: False: a session that does not exist is an error.
        max_stored_messages: how many messages a session keeps (200), cut at turns when a run ends.
        user_id, tenant_id: who runs; owner of a new session, checked against a stored one.
        tools: handlers by tool name, in place of those declared; also for invoked agents.
        instance_id: what `ctx.agent.id` is; else a new id.

    Raises:
        InputError: something given cannot be used, and nothing of it was written.
        SessionNotFoundError, SessionAccessDeniedError, SessionConflictError, MemoryStoreNotDurableError: the session.
        StoreError: the database refused; what was written before stays, run again to go on.
        TerminalError: of a tool, if the agent says `on_terminal_tool_error="fail"`.
    """
    _check_options("run", options)
    return await Run(agent, **options).go(message=message, messages=messages, checkpoint=checkpoint)


async def resume(
    agent: Agent, checkpoint: GivenCheckpoint, answer: str, **options: Unpack[RunOptions]
) -> RunResult | InterruptedResponse:
    """Answer the question of an interrupted run and go on, in this process or any other.

    Args:
        answer: becomes the result of the call that asked. With nothing asked it is a user message, and an empty
            one just goes on.
        options: those of `run`. With a store, the session named in the checkpoint goes on.

    Raises:
        InputError: the session does not wait for this answer any more; and all that `run` raises.
    """
    _check_options("resume", options)
    return await Run(agent, **options).go(checkpoint=checkpoint, answer=answer)


async def run_streaming(
    agent: Agent,
    *,
    message: str | None = None,
    messages: Transcript | None = None,
    checkpoint: GivenCheckpoint | None = None,
    answer: str | None = None,
    **options: Unpack[RunOptions],
) -> AsyncGenerator[Event, None]:
    """Run an agent and yield what happens; the last event, `RunEnded`, has the result that `run` would return.

    Closing the generator early cancels the run, and a session can be resumed: use `contextlib.aclosing` if you may
    leave the loop, since Python closes one that is only left whenever it gets to it. Arguments and errors are those of
    `run`, and `answer` goes with a checkpoint that asks.
    """
    _check_options("run_streaming", options)
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def go() -> None:
        try:
            work = Run(agent, emit=events.put_nowait, **options)
            result = await work.go(message=message, messages=messages, checkpoint=checkpoint, answer=answer)
            events.put_nowait(RunEnded(result))
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(go())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check_options(function: str, options: RunOptions) -> None:
    for name in options.keys() - RunOptions.__annotations__.keys():
        close = difflib.get_close_matches(name, RunOptions.__annotations__, n=1, cutoff=0.5)
        raise TypeError(f"{function}() has no option {name!r}{f'; do you mean {close[0]!r}?' if close else ''}")
