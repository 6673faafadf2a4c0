"""Runs agents in this process. A durable store and a session let a run survive the death of the process."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Unpack
from uuid import uuid4

from standfast.agents import Agent, ForeignAgent, adopted
from standfast.checkpoints import PendingApproval, PipelineResult, RunResult, T
from standfast.errors import InputError, MemoryStoreNotDurableError, did_you_mean
from standfast.events import Event, GateOpened, RunEnded
from standfast.llm import LLM
from standfast.local.gates import GivenDecision
from standfast.local.pipelines import OnProgress, PipelineRun
from standfast.local.runs import Run
from standfast.local.tool_calls import RunRequest
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
    """Run an agent until it is done or asks a person. The result's `status` tells which.

    With a durable store and a session, the run survives the death of the process: run the same session again, and it
    continues. Lost calls are repaired first. Safe calls run again, and the model is told about the others.

    Args:
        message: the user's message. Without a message, a session or transcript continues where it stopped. If it is
            finished, its response is returned again without a model call.
        message_id: identifies the message in its session, 1 to 200 characters. The same message with the same id counts
            once: the run continues with it, or its result is returned again. A different text under the same id is
            rejected.
        images: sent with the message: `Image`s, or `{"url"}` or `{"data", "media_type"}`.
        messages: a transcript to continue from, instead of a stored one.
        checkpoint: a run to continue from: a `Checkpoint`, its JSON, or a dict.
        decisions: people's decisions on calls that wait for approval: `Decision`s, or `{"gate": <id of the call>,
            "decision": "approve" | "reject", "by"?, "comment"?, "digest"?, "edit"?}`; `edit` replaces all arguments.
        llm: an adapter, or a function from the agent's `model` to one.
        store: stores the session. Without a store, nothing is written.
        session_id: the session; if None, a new one.
        create_session: if False, a session that does not exist is an error.
        max_stored_messages: how many messages a session keeps (200), cut at turns when a run ends.
        user_id, tenant_id: the user who runs the agent. A new session belongs to this user; a stored one must match.
        tools: handlers by tool name, instead of the declared ones. They also apply to invoked agents.
        instance_id: the value of `ctx.agent.id`; a new id if None.
        context: the input of the agent's `deps`, of the agent's type. It is stored with the message. If None, the
            session keeps its stored context.
        checkpoint_key: a secret of at least 16 bytes. It signs checkpoints. Checkpoints without its signature are
            rejected. Decisions at the gates of a signed checkpoint count. Without a key, the gates of a checkpoint ask
            again.

    Raises:
        InputError: an argument cannot be used, and nothing of it was written; or a decision does not count.
        SessionNotFoundError, SessionAccessDeniedError, SessionConflictError, MemoryStoreNotDurableError: the session
            cannot be used.
        StoreError: the database refused. Earlier writes stay. Run again to continue.
        TerminalError: a tool raised it, and the agent has `on_terminal_tool_error="fail"`.

    Every error that ends a run after it has begun carries its `checkpoint` with all results, even if a hook raised it.
    """
    _check_options(run, options)
    work = Run(RunRequest(agent=adopted(agent), **options))
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
    """Continue an interrupted run in any process, with an answer to its question or decisions on its calls.

    Args:
        answer: becomes the result of the call that asked. If there is no open question, it is a user message. An empty
            one continues without a message.
        decisions: on calls that wait for approval; see `run`.
        options: the options of `run`. With a store, the session named in the checkpoint continues.

    Raises:
        InputError: the session no longer waits for this answer. Also everything that `run` raises.
    """
    _check_options(resume, options)
    work = Run(RunRequest(agent=adopted(agent), **options))
    return await work.go(checkpoint=checkpoint, answer=answer, decisions=decisions)


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

    With a durable store, the run survives the death of the process and waits for people as long as it takes. The same
    `run_key` continues where it stopped, without its input. Without a store, use `resume_after` and `previous_results`.

    Args:
        input: the pipeline's input, validated by its type.
        llm: an adapter, or a function from an agent's `model` to one.
        store: stores the run, and the session of each step.
        run_key: names the run in the store, like a session id. If None, the result has a new one.
        resume_after: the name of a step. It and all earlier steps count as done. If it is a gate, `user_id` approves
            it.
        previous_results: the `step_results` of an earlier run, or their JSON. A step that is complete in them does not
            run again.
        restart_of, restart_from: the `run_key` of an earlier run of the same user, in process or on Temporal, and a
            step: a new run uses the results from before that step, and the input if none is given. If the key has
            several runs, the last counts. Gates before that step ask again.
        decisions: people's decisions at gates: `Decision`s, or `{"gate", "decision": "approve" | "reject", "by"?,
            "comment"?, "digest"?, "edit"?}`.
        on_progress: called at the start and end of every agent and tool. Its errors are logged.
        tools: handlers by tool name, instead of the declared ones.
        user_id, tenant_id: the user who runs it.

    Raises:
        InputError: an argument cannot be used, a decision does not count, a step lacks an agent, or there is no run to
            restart.
        SessionAccessDeniedError, SessionConflictError: the run belongs to another user, or is in flight.
        StoreError: the database refused. Earlier results stay. Run again to continue.
        Exception: any error that a function of the pipeline raises. An error that ends a run has the attributes
            `step_results` and `run_key` of the completed part.
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
    """Run an agent and yield its events. The last one, `RunEnded`, has the result that `run` would return.

    Closing the generator early cancels the run; its session can be resumed. If you may leave the loop early, use
    `contextlib.aclosing`; otherwise Python closes the generator at some later time. Arguments and errors are those of
    `run`; `answer` goes with a checkpoint that asks.
    """
    _check_options(run_streaming, options)
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def go() -> None:
        try:
            work = Run(RunRequest(agent=adopted(agent), emit=events.put_nowait, **options))
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


def _check_options(function: Callable[..., object], options: RunOptions) -> None:
    known = [*inspect.signature(function).parameters, *RunOptions.__annotations__]
    for name in options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"{function.__name__}() has no option {name!r}{did_you_mean(name, known)}")
