"""Starts agents and speaks to runs, with any Temporal client. The `temporal` command does all of it, too."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any, Literal, overload
from uuid import uuid4

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, PipelineResult, RunResult, T
from standfast.errors import InputError, SessionConflictError, StandfastError
from standfast.messages import read_images
from standfast.pipelines import Pipeline
from standfast.runtime.inputs import Images, check_run_key
from standfast.stores.protocol import check_session_id, session_id_of, session_key_of
from standfast.temporal.client.former_names import check_new, has_run
from standfast.temporal.client.items import read_items, read_state, unreadable
from standfast.temporal.client.operator_pauses import paused_by_operators
from standfast.temporal.client.owners import check_owner, start_or_say
from standfast.temporal.client.run_ends import end_of
from standfast.temporal.client.runs import answer, our_run, runs_query
from standfast.temporal.client.sending import Signal, send
from standfast.temporal.client.typed_results import pipeline_result, run_result
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import AgentInput, PipelineInput
from standfast.temporal.wire.limits import CHECKPOINT_BYTES, check_json

Run = WorkflowHandle[Any, dict[str, Any]]
_PATIENCE = timedelta(seconds=2)
_CONFIRMED = 10.0  # seconds in which a worker says whether something counts
_NOT_TOLD = "AcceptedUpdateCompletedWorkflow"  # of a run that was terminated, or whose time was over
_AT_ONCE = 32  # runs that are asked; more would wait for each other longer than anybody waits for an answer


async def start_agent(
    client: Client,
    agent: str | Agent,
    *,
    message: str | None = None,
    images: Images = (),
    session_id: str | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
    max_iterations: int | None = None,
    instance_id: str | None = None,
    checkpoint: Checkpoint | dict[str, Any] | None = None,
    task_queue: str = names.TASK_QUEUE,
    if_running: Literal["refuse", "message"] = "refuse",
    **options: Any,
) -> Run:
    """Start a run of an agent as the workflow `<agent>/<session_id>`; `await handle.result()` is its result.

    With a tenant it is `<agent>/@<tenant_id>/<session_id>`: tenants share no sessions.

    Args:
        images: beside the message: `Image`s, or `{"url"}` or `{"data", "media_type"}`, 1 MiB in all. They cross the
            run's history: large ones are better given by their urls.
        session_id: the conversation to begin or to go on with; if None, that of the run whose export the checkpoint is,
            or a new one.
        checkpoint: a run to go on with, instead of a message.
        if_running: what to do when the session has a run in flight: "refuse", or say `message` to that run.
        options: further arguments of `Client.start_workflow`.

    Raises:
        InputError: an argument cannot be used.
        SessionConflictError: the session has a run in flight.
        SessionAccessDeniedError: that run is somebody else's.
    """
    name = agent.name if isinstance(agent, Agent) else agent
    checkpoint = checkpoint.model_dump(mode="json") if isinstance(checkpoint, Checkpoint) else checkpoint
    session = _session_of(checkpoint) if session_id is None else check_session_id(session_id)
    given = AgentInput.read(
        {
            "message": message,
            "images": _plain_images(images),
            "session_id": session,
            "user_id": user_id,
            "tenant_id": tenant_id,
            "max_iterations": max_iterations,
            "instance_id": instance_id,
            "checkpoint": checkpoint,
        }
    ).plain()
    if if_running not in ("refuse", "message"):
        raise InputError(f'if_running must be "refuse" or "message", got {if_running!r}')
    if if_running == "message":
        if message is None:
            raise InputError('if_running="message" needs a message')
        said = {"text": given["message"]} | ({"images": given["images"]} if images else {})
        check_json(said, "message, with its images")
    options.setdefault("static_summary", None if message is None else " ".join(message.split())[:100])
    options.setdefault("id", names.workflow_id(name, session_key_of(tenant_id, session)))
    options["memo"] = {**(options.get("memo") or {}), names.AGENT_MEMO: name}
    start = partial(client.start_workflow, name, given, task_queue=task_queue, result_type=dict[str, Any], **options)
    try:
        if if_running == "message":
            return await start_or_say(start, client, options["id"], session, said, (user_id, tenant_id))
        return await start()
    except WorkflowAlreadyStartedError as error:
        await check_owner(client, options["id"], error.run_id, session, (user_id, tenant_id))
        raise SessionConflictError(
            f"Session {session} has a run in flight, workflow {options['id']}: wait for its result, or say the message "
            'to it with if_running="message"'
        ) from error


async def start_pipeline(
    client: Client,
    pipeline: str | Pipeline,
    *,
    input: Any = None,  # noqa: A002
    run_key: str | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
    restart_of: str | None = None,
    restart_from: str | None = None,
    task_queue: str = names.TASK_QUEUE,
    **options: Any,
) -> Run:
    """Start a run of a pipeline as the workflow `<pipeline>/<run_key>`; `await handle.result()` is its result.

    Args:
        input: plain JSON data, or a value of the pipeline's input type if the pipeline itself is given.
        run_key: names the run, like a session id; a new one if None.
        restart_of, restart_from: the `run_key` in the result of an earlier run, and a step: what came before that step
            is used again, and the input if none is given.
        options: further arguments of `Client.start_workflow`.

    Raises:
        InputError: an argument cannot be used.
        SessionConflictError: there is a run of that key; it has one, whatever became of it, and whatever the pipeline
            was called then. If it is given by its name alone, a run that was begun under a former name fails this one.
        SessionAccessDeniedError: that run is somebody else's.
    """
    if not isinstance(pipeline, str | Pipeline):
        kind = type(pipeline).__name__
        raise InputError(f"start_pipeline() needs a Pipeline or its name, got a {kind}; end a builder with .build()")
    name, plain = pipeline if isinstance(pipeline, str) else pipeline.name, input
    if isinstance(pipeline, Pipeline) and (input is not None or restart_of is None):
        plain = pipeline.write_input(pipeline.read_input(input))
    if (restart_of is None) != (restart_from is None):
        raise InputError("restart_of= and restart_from= go together")
    key = uuid4().hex if run_key is None else check_run_key(run_key)
    again = None if restart_of is None else {"run": restart_of, "from": restart_from}
    data = {"input": plain, "user_id": user_id, "tenant_id": tenant_id, "restart": again}
    given = PipelineInput.read(data).plain()
    options.setdefault("id", names.workflow_id(name, session_key_of(tenant_id, key)))
    options["memo"] = {**(options.get("memo") or {}), names.PIPELINE_MEMO: name}
    options.setdefault("id_reuse_policy", WorkflowIDReusePolicy.REJECT_DUPLICATE)
    if isinstance(pipeline, Pipeline):  # of a name alone, the worker that opens the run knows those before it
        await check_new(client, pipeline, options["id"], name, (user_id, tenant_id))
    try:
        return await client.start_workflow(name, given, task_queue=task_queue, result_type=dict[str, Any], **options)
    except WorkflowAlreadyStartedError as error:
        await check_owner(client, options["id"], error.run_id, key, (user_id, tenant_id))
        raise has_run(name, key, options["id"]) from error


class StandfastClient:
    """Speaks to runs by their workflow ids; `StandfastClient(await connect())`.

    Every method that changes something raises `InputError`, saying why, if it does not count, and `NotConfirmedError`
    if no worker has said within ten seconds whether it does. Tried again with its `id`, the same thing counts once.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(self, workflow_id: str, run_id: str | None = None) -> Run:
        """Return the handle of a run, the last of its workflow id if none is named."""
        return self.client.get_workflow_handle(workflow_id, run_id=run_id, result_type=dict[str, Any])

    @overload
    async def result(self, workflow_id: str, *, run_id: str | None = None) -> dict[str, Any]: ...
    @overload
    async def result(self, workflow_id: str, of: Agent[T], *, run_id: str | None = None) -> RunResult[T]: ...
    @overload
    async def result(self, workflow_id: str, of: Pipeline, *, run_id: str | None = None) -> PipelineResult: ...
    async def result(self, workflow_id: str, of: Agent | Pipeline | None = None, *, run_id: str | None = None) -> Any:
        """Wait for a run's end and return its result.

        Args:
            of: what runs: then it is what `run` or `run_pipeline` returns, with outputs of their types. The transcript
                is in the store, and so `messages` is empty. Without it the result is JSON, as on the wire.

        Raises:
            StandfastError: it failed, or was cancelled or terminated.
            InputError: its output does not fit its type, or is in the store alone.
        """
        try:
            ended = await end_of(self.client, workflow_id, run_id)
        except WorkflowFailureError as error:
            raise StandfastError(f"Run {workflow_id} failed: {error.cause}") from error
        match of:
            case Agent():
                return run_result(of, ended)
            case Pipeline():
                return pipeline_result(of, ended)
        return ended

    async def status(self, workflow_id: str, *, run_id: str | None = None) -> dict[str, Any]:
        """Return how far a run is, what it waits for, and what messages it could not use."""
        return read_state(await self._query(workflow_id, names.STATUS, run_id))

    async def pending(self, workflow_id: str, *, run_id: str | None = None) -> list[dict[str, Any]]:
        """Return what of a run waits for a person: kind, name, message, since, deadline."""
        run = await our_run(self.client, workflow_id)
        paused = paused_by_operators(run) if run_id in (None, run.run_id) else []
        try:
            return [*read_items(await self._ask(workflow_id, names.PENDING, run_id)), *paused]
        except StandfastError:
            if not paused:
                raise
            return paused

    async def _query(self, workflow_id: str, name: str, run_id: str | None) -> Any:
        await our_run(self.client, workflow_id)
        return await self._ask(workflow_id, name, run_id)

    async def _ask(self, workflow_id: str, name: str, run_id: str | None) -> Any:
        try:
            return await answer(self.run(workflow_id, run_id), name, timedelta(seconds=_CONFIRMED))
        except WorkflowQueryFailedError as error:
            raise StandfastError(f"Run {workflow_id} does not answer: {error}") from error
        except RPCError as error:
            if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
                raise StandfastError(f"Run {workflow_id}: too many ask it at the same time, ask again later") from error
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                raise
            raise StandfastError(f"Run {workflow_id}: no worker has answered within {_CONFIRMED:g} s") from error

    async def waiting(self, *, group: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Return what waits in the whole namespace, as `pending` with the workflow's id; needs search attributes.

        Args:
            group: of approvers, whom it is for; anybody if None.
            limit: of runs that are asked, the last started first; all if None.
        """
        query, few = runs_query(waiting=True, group=group), asyncio.Semaphore(_AT_ONCE)
        runs = [run.id async for run in self.client.list_workflows(query, limit=limit)]
        pending = await asyncio.gather(*(self._pending_soon(run, few) for run in runs))
        return [{**item, "workflow_id": run} for run, items in zip(runs, pending, strict=True) for item in items]

    async def _pending_soon(self, workflow_id: str, few: asyncio.Semaphore) -> list[dict[str, Any]]:
        """Ask a run, but not for long: a queue without a worker must not hide what waits in others."""
        try:
            async with few:
                return read_items(await answer(self.run(workflow_id), names.PENDING, _PATIENCE))
        except InputError as error:
            return [unreadable(str(error))]
        except (RPCError, WorkflowQueryFailedError) as error:
            return [{"kind": "unreachable", "name": "", "message": f"no worker answers for this run: {error}"}]

    async def message(
        self,
        workflow_id: str,
        text: str,
        *,
        images: Images = (),
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Say something to a run; images are those of `start_agent`, 256 KiB in all."""
        data = {"text": text, "images": _plain_images(images), "by": by}
        await self._send(workflow_id, names.MESSAGE, data, id)

    async def answer(
        self,
        workflow_id: str,
        text: str,
        *,
        tool_call_id: str | None = None,
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Answer a question: the one of a call, or the first that is open."""
        await self._send(workflow_id, names.ANSWER, {"text": text, "tool_call_id": tool_call_id, "by": by}, id)

    async def resume(
        self,
        workflow_id: str,
        action: Literal["retry", "abort", "skip"] = "retry",
        *,
        name: str | None = None,
        model: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Let a paused run try again, with another model if given, or give up; or skip what no worker has.

        Args:
            name: of what waits, as `pending` shows it. Without it all that is paused tries again or gives up; one call
                or step is skipped.
            reason: needed to skip: the model reads it.
        """
        data = {"action": action, "name": name, "model": model, "by": by, "reason": reason}
        await self._send(workflow_id, names.RESUME, data, id)

    async def resolve(
        self,
        workflow_id: str,
        tool_call_id: str,
        decision: Literal["happened", "not-happened", "leave"],
        *,
        result: Any = None,
        by: str | None = None,
        reason: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Settle a call of unknown outcome: it happened with this result, or it did not and is run, or nobody knows."""
        data = {"tool_call_id": tool_call_id, "decision": decision, "by": by, "reason": reason}
        await self._send(workflow_id, names.RESOLVE, data, id, {"result": result} if decision == "happened" else {})

    async def decide(
        self,
        workflow_id: str,
        gate: str,
        decision: Literal["approve", "reject"],
        *,
        by: str | None = None,
        comment: str | None = None,
        digest: str | None = None,
        edit: Any = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Approve or reject at a gate; `digest` is that of `pending`, of what was looked at."""
        if decision not in (names.APPROVE, names.REJECT):
            raise InputError(f'decide: decision must be "approve" or "reject", got {decision!r}')
        data = {"gate": gate, "by": by, "comment": comment, "digest": digest, "edit": edit}
        await self._send(workflow_id, decision, data, id, called=names.DECIDE_UPDATE)

    async def export(self, workflow_id: str) -> Checkpoint:
        """Return a run as a checkpoint. With its store that goes on in its session; elsewhere, cancel the run first."""
        exported = await self._send(workflow_id, names.EXPORT_UPDATE, {}, None)
        return Checkpoint.model_validate(exported["checkpoint"])

    async def _send(
        self,
        workflow_id: str,
        name: str,
        data: dict[str, Any],
        id: str | None,  # noqa: A002
        also: dict[str, Any] | None = None,
        *,
        called: str | None = None,
    ) -> dict[str, Any]:
        plain = {key: value for key, value in data.items() if value is not None} | (also or {})
        check_json(plain, called or name)
        signal = Signal(
            name=name,
            called=called or name,
            data=plain,
            id=uuid4().hex if id is None else id,
            is_repeated=id is not None,
            # An export waits until the run is between two actions, for as long as that takes.
            seconds=None if name == names.EXPORT_UPDATE else _CONFIRMED,
        )
        return await send(self.client, workflow_id, signal)


def _session_of(checkpoint: object) -> str:
    """Return the session of the run that was exported as a checkpoint, else a new one."""
    exported = checkpoint.get("exported_from") if isinstance(checkpoint, dict) else None
    if exported is None:
        return f"sess_{uuid4()}"
    return check_session_id(session_id_of(str(exported).rpartition("@")[0]))


def _plain_images(images: Images) -> list[Any] | None:
    return [image.model_dump() for image in read_images(images, CHECKPOINT_BYTES) or ()] or None
