"""Runs agents in this process. With a durable store and a session, that is enough to survive its death."""

import asyncio
import difflib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Unpack
from uuid import uuid4

from standfast.agents import Agent, ForeignAgent, adopted
from standfast.checkpoints import PendingApproval, PipelineResult, RunResult, T
from standfast.errors import InputError, MemoryStoreNotDurableError
from standfast.events import Event, GateOpened, RunEnded
from standfast.llm import LLM
from standfast.local.gates import GivenDecision
from standfast.local.pipelines import OnProgress, PipelineRun
from standfast.local.runs import Run
from standfast.messages import ToolCall
from standfast.pipelines import Pipeline
from standfast.runtime.inputs import (
    GivenCheckpoint,
    Handlers,
    Images,
    RunOptions,
    Transcript,
    check_restart_options,
)
from standfast.stores import AgentStore
from standfast.stores.protocol import check_session_id

__all__ = ["RunOptions", "resume", "run", "run_pipeline", "run_streaming"]


async def run(
    agent: Agent[T] | ForeignAgent,
    *,
    message: str | None = None,
    message_id: str | None = None,
    images: Images = (),
    messages: Transcript | None = None,
    checkpoint: GivenCheckpoint | None = None,
    decisions: Sequence[GivenDecision] = (),
    **options: Unpack[RunOptions],
) -> RunResult[T]:
    """Run an agent until it is done or asks a person; the result's `status` says which.

    With a durable store and a session the run survives the death of the process: run the same session again, and it
    goes on. Calls that were lost are repaired first: safe ones run again, and the model is told of the others.

    Args:
        message: what the user says. Without one, a session or transcript goes on where it stopped; one that is
            finished returns its response again without calling the model.
        message_id: identifies the message in its session, 1 to 200 characters. The same message with the same id counts
            once: the run goes on with it, or its result is returned again. Other words with that id are refused.
        images: beside the message: `Image`s, or `{"url"}` or `{"data", "media_type"}`.
        messages: a transcript to go on from, instead of a stored one.
        checkpoint: a run to go on from: a `Checkpoint`, its JSON, or a dict.
        decisions: what people decided on calls that wait for approval: `Decision`s, or `{"gate": <id of the call>,
            "decision": "approve" | "reject", "by"?, "comment"?, "digest"?, "edit"?}`; `edit` replaces all arguments.
        llm: an adapter, or a function from the agent's `model` to one.
        store: where the session is kept; without one nothing is written.
        session_id: which session; without one, a new one.
        create_session: if False, a session that does not exist is an error.
        max_stored_messages: how many messages a session keeps (200), cut at turns when a run ends.
        user_id, tenant_id: who runs the agent. They own a new session, and must match a stored one.
        tools: handlers by tool name, in place of those declared; also for invoked agents.
        instance_id: the value of `ctx.agent.id`; a new id if None.
        context: of which the agent's `deps` are made, by the agent's type; it is kept with the message. If None, a
            session goes on with the context that it has.
        checkpoint_key: a secret of at least 16 bytes. Checkpoints are signed with it, and others are refused; what was
            decided at the gates of a signed one counts. Without a key the gates of a checkpoint are asked again.

    Raises:
        InputError: something given cannot be used, and nothing of it was written; or a decision does not count.
        SessionNotFoundError, SessionAccessDeniedError, SessionConflictError, MemoryStoreNotDurableError: the session.
        StoreError: the database refused; what was written before stays. Run again to go on.
        TerminalError: a tool raised it, and the agent says `on_terminal_tool_error="fail"`.

    Every error that ends a run which had begun, also one of a hook, carries its `checkpoint` with all that ran.
    """
    _check_options("run", options)
    work = Run(adopted(agent), **options)
    return await work.go(
        message=message,
        message_id=message_id,
        images=images,
        messages=messages,
        checkpoint=checkpoint,
        decisions=decisions,
    )


async def resume(
    agent: Agent[T] | ForeignAgent,
    checkpoint: GivenCheckpoint,
    answer: str | None = None,
    *,
    decisions: Sequence[GivenDecision] = (),
    **options: Unpack[RunOptions],
) -> RunResult[T]:
    """Continue an interrupted run with an answer to its question, or with decisions on its calls, in any process.

    Args:
        answer: becomes the result of the call that asked. If nothing was asked, it is a user message; an empty one
            continues without a message.
        decisions: on calls that wait for approval; see `run`.
        options: those of `run`. With a store, the session named in the checkpoint goes on.

    Raises:
        InputError: the session does not wait for this answer any more.
        All that `run` raises.
    """
    _check_options("resume", options)
    return await Run(adopted(agent), **options).go(checkpoint=checkpoint, answer=answer, decisions=decisions)


async def run_pipeline(
    pipeline: Pipeline,
    *,
    input: Any = None,  # noqa: A002
    llm: LLM | None = None,
    store: AgentStore | None = None,
    run_key: str | None = None,
    resume_after: str | None = None,
    previous_results: Mapping[str, Any] | None = None,
    restart_of: str | None = None,
    restart_from: str | None = None,
    decisions: Sequence[GivenDecision] = (),
    on_progress: OnProgress | None = None,
    tools: Handlers | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
) -> PipelineResult:
    """Run a pipeline to its end, or to a gate that waits for people.

    With a durable store the run survives the death of the process and waits for people as long as it takes: the same
    `run_key` goes on where it stopped, without its input. Without a store, `resume_after` and `previous_results` do.

    Args:
        input: the pipeline's input, which is read by its type.
        llm: an adapter, or a function from an agent's `model` to one.
        store: where the run is kept, and the session of each step.
        run_key: names the run in the store, like a session id; if None, the result has a new one.
        resume_after: the name of a step; it and those before it count as done. If it is a gate, `user_id` approves it.
        previous_results: the `step_results` of an earlier run, or their JSON; a step that is complete in them does not
            run again.
        restart_of, restart_from: the `run_key` of an earlier run of the same user, in process or on Temporal, and a
            step: a new run uses what came before that step, and the input if none is given. If the key has several
            runs, the last counts. Gates before that step are asked again.
        decisions: what people decided at gates: `Decision`s, or `{"gate", "decision": "approve" | "reject", "by"?,
            "comment"?, "digest"?, "edit"?}`.
        on_progress: is called at the start and end of every agent and tool; what it raises is logged.
        tools: handlers by tool name, in place of those declared.
        user_id, tenant_id: who runs it.

    Raises:
        InputError: something given cannot be used, a decision does not count, a step has no agent, or there is no run
            to restart.
        SessionAccessDeniedError, SessionConflictError: the run belongs to somebody else, or is in flight.
        StoreError: the database refused; what was kept before stays. Run again to go on.
        Exception: whatever a function of the pipeline raises. What ends a run has the `step_results` and `run_key` of
            what ran before as attributes.
    """
    if not isinstance(pipeline, Pipeline):
        raise InputError(f"run_pipeline() needs a Pipeline, got {pipeline!r:.80}; end the builder with .build()")
    for name, key in (("run_key", run_key), ("restart_of", restart_of)):
        if key is not None and store is None:
            raise InputError(f"{name}= needs a store to find the run in")
    restart = check_restart_options(restart_of, restart_from)
    if restart is not None and (resume_after is not None or previous_results is not None):
        raise InputError("restart_of= takes the results from the store: leave out resume_after= and previous_results=")
    if store is not None and not store.durable:
        raise MemoryStoreNotDurableError("run_pipeline(store=…)")
    if store is not None:
        run_key = uuid4().hex if run_key is None else check_session_id(run_key, "run_key")
    options: RunOptions = {"llm": llm, "store": store, "tools": tools, "user_id": user_id, "tenant_id": tenant_id}
    work = PipelineRun(pipeline, options, run_key, on_progress, restart)
    return await work.go(input, resume_after=resume_after, previous_results=previous_results, decisions=decisions)


async def run_streaming(
    agent: Agent | ForeignAgent,
    *,
    message: str | None = None,
    message_id: str | None = None,
    images: Images = (),
    messages: Transcript | None = None,
    checkpoint: GivenCheckpoint | None = None,
    answer: str | None = None,
    decisions: Sequence[GivenDecision] = (),
    **options: Unpack[RunOptions],
) -> AsyncGenerator[Event, None]:
    """Run an agent and yield what happens; the last event, `RunEnded`, has the result that `run` would return.

    Closing the generator early cancels the run, whose session can be resumed. Use `contextlib.aclosing` if you may
    leave the loop: otherwise Python closes the generator at some later time. Arguments and errors are those of `run`;
    `answer` goes with a checkpoint that asks.
    """
    _check_options("run_streaming", options)
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def go() -> None:
        try:
            work = Run(adopted(agent), emit=events.put_nowait, **options)
            result = await work.go(
                message=message,
                message_id=message_id,
                images=images,
                messages=messages,
                checkpoint=checkpoint,
                answer=answer,
                decisions=decisions,
            )
            for item in result.approvals:
                events.put_nowait(_opened(item))
            events.put_nowait(RunEnded(result, result.status, result.response, result.error, result.usage))
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


def _opened(item: PendingApproval) -> GateOpened:
    call = ToolCall(id=item.gate, name=item.tool, arguments=item.arguments)
    return GateOpened(item.gate, item.message, item.digest, call, item.approvers, item.quorum, item.deadline)


def _check_options(function: str, options: RunOptions) -> None:
    for name in options.keys() - RunOptions.__annotations__.keys():
        close = difflib.get_close_matches(name, RunOptions.__annotations__, n=1, cutoff=0.5)
        raise TypeError(f"{function}() has no option {name!r}{f'; do you mean {close[0]!r}?' if close else ''}")
