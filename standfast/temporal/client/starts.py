"""Starts agents and pipelines, with any Temporal client. The `temporal` command can do this as well."""

from functools import partial
from typing import Any, Literal
from uuid import uuid4

from pydantic_core import to_json
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.agents import Agent, ForeignAgent, adopted
from standfast.checkpoints import Checkpoint
from standfast.errors import InputError, SessionConflictError
from standfast.messages import JSONObject, check_message_id, read_images, read_json, with_article
from standfast.pipelines import Pipeline
from standfast.runtime.inputs import Images, check_restart_options
from standfast.stores.protocol import check_session_id, session_id_of, session_key_of
from standfast.temporal.client.board.search_attributes import started_attributes
from standfast.temporal.client.history.audits import OnRecord, start_on_record, started_by
from standfast.temporal.client.runs.ended_runs import find_run
from standfast.temporal.client.runs.owners import Run, check_owner, run_that_has, run_with_input, start_or_say
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import CHECKPOINT_BYTES, AgentInput, Owner, PipelineInput, check_json


async def check_new(client: Client, pipeline: Pipeline, workflow_id: str, name: str, who: Owner) -> None:
    """Refuse a run if its key has an earlier run that began under another name of the pipeline.

    Args:
        workflow_id, name: the run's workflow id, and its pipeline's name in it; the run need not exist yet.
        who: the owner who starts it.

    Raises:
        SessionAccessDeniedError: the earlier run belongs to another user.
        SessionConflictError: there is an earlier run; the error names it.
    """
    if (run := await earlier_run(client, pipeline, workflow_id, name, who)) is not None:
        raise has_run(pipeline.name, str(names.session_of(name, workflow_id)), run)


async def earlier_run(client: Client, pipeline: Pipeline, workflow_id: str, name: str, who: Owner) -> str | None:
    """Return the workflow id of the run because of which `check_new` refuses another; None if there is none.

    Raises:
        SessionAccessDeniedError: the earlier run belongs to another user.
    """
    key = names.session_of(name, workflow_id)
    others = [other for other in pipeline.names if other != name]
    if key is None or not others:
        return None
    found = await find_run(client, workflow_id)
    for other in others:
        run = names.workflow_id(other, key)
        before = await find_run(client, run)
        if before is not None and (found is None or before.start_time < found.start_time):
            await check_owner(client, run, None, key, who, what="Run")
            return run
    return None


def has_run(pipeline: str, key: str, workflow_id: str, *, other_input: bool = False) -> SessionConflictError:
    """Return the error for starting a run whose key already has one."""
    what = "with another input, " if other_input else ""
    text = f"Pipeline {pipeline} already has a run {key}, {what}in flight or ended: workflow {workflow_id}"
    return SessionConflictError(f"{text}. To run it again give another run_key, and restart_of= to use its results")


async def start_agent(
    client: Client,
    agent: str | Agent | ForeignAgent,
    *,
    message: str | None = None,
    message_id: str | None = None,
    images: Images = (),
    session_id: str | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
    max_iterations: int | None = None,
    context: Any = None,
    instance_id: str | None = None,
    checkpoint: Checkpoint | JSONObject | None = None,
    task_queue: str = names.TASK_QUEUE,
    if_running: Literal["refuse", "message"] = "refuse",
    on_record: OnRecord | None = None,
    **options: Any,
) -> Run:
    """Start a run of an agent as the workflow `<agent>/<session_id>`; `await handle.result()` is its result.

    With a tenant it is `<agent>/@<tenant_id>/<session_id>`: tenants share no sessions.

    Args:
        message_id: identifies the message in its session, 1 to 200 characters. The same message with the same id counts
            once: this returns the handle of the run that has it, or starts a run that continues with it or returns its
            result. Another message with that id is refused.
        images: `Image`s, or `{"url"}` or `{"data", "media_type"}`, beside the message, 1 MiB in total. The run's
            history contains them: pass large images by URL.
        session_id: the conversation to begin or to continue; if None, the session of the checkpoint's run, or a new
            one.
        context: the input of the agent's `deps`, in the agent's type, or as JSON data if only its name is given; it is
            kept with the message. If None, a session continues with its current context. A run in flight that receives
            the message must have been started with the same context.
        checkpoint: a run to continue, instead of a message.
        if_running: the action if the session has a run in flight: "refuse", or "message" to send it the message.
        on_record: the audit trail for the start, which is recorded there beforehand, and the person who starts it.
        options: further arguments of `Client.start_workflow`.

    Raises:
        InputError: an argument is invalid.
        SessionConflictError: the session has a run in flight, or one that has another context.
        SessionAccessDeniedError: that run belongs to another user.
        StoreError: the start could not be put on the audit trail, and so the run was not started.
    """
    given_agent = adopted(agent)
    name = given_agent.name if isinstance(given_agent, Agent) else given_agent
    checkpoint = checkpoint.model_dump(mode="json") if isinstance(checkpoint, Checkpoint) else checkpoint
    _check_message_id(message_id, session_id, checkpoint)
    session = _session_of(checkpoint) if session_id is None else check_session_id(session_id)
    given = AgentInput.read(
        {
            "message": message,
            "message_id": message_id,
            "images": plain_images(images),
            "session_id": session,
            "user_id": user_id,
            "tenant_id": tenant_id,
            "max_iterations": max_iterations,
            "context": plain_context(given_agent, context),
            "instance_id": instance_id,
            "checkpoint": checkpoint,
        }
    ).plain()
    if if_running not in ("refuse", "message"):
        raise InputError(f'if_running must be "refuse" or "message", got {if_running!r}')
    if if_running == "message":
        if message is None:
            raise InputError('if_running="message" needs a message')
        said = {"text": given["message"], **({} if message_id is None else {"id": message_id})} | (
            {"images": given["images"]} if images else {}
        )
        check_json(said, "message, with its images")
    options.setdefault("static_summary", None if message is None else " ".join(message.split())[:100])
    options.setdefault("id", names.workflow_id(name, session_key_of(tenant_id, session)))
    options["memo"] = {**(options.get("memo") or {}), names.AGENT_MEMO: name, **started_by(on_record)}
    begin = partial(
        _begin, client, name, given, session, tenant_id, task_queue=task_queue, result_type=dict[str, Any], **options
    )

    async def start() -> Run:
        whose, context = (user_id, tenant_id), given.get("context")
        try:
            if if_running == "message" and message_id is None:
                return await start_or_say(begin, client, options["id"], session, said, whose, context)
            return await begin()
        except WorkflowAlreadyStartedError as error:
            await check_owner(client, options["id"], error.run_id, session, whose)
            if message_id is not None and (run := await run_that_has(client, options["id"], given, whose)) is not None:
                return run
            if message_id is not None and if_running == "message":
                return await start_or_say(begin, client, options["id"], session, said, whose, context)
            raise SessionConflictError(
                f"Session {session} has a run in flight, workflow {options['id']}: wait for its result, or send it "
                'the message with if_running="message"'
            ) from error

    return await start_on_record(client, options["id"], message, on_record, start, once=_is_once(options))


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
    on_record: OnRecord | None = None,
    **options: Any,
) -> Run:
    """Start a run of a pipeline as the workflow `<pipeline>/<run_key>`; `await handle.result()` is its result.

    Args:
        input: plain JSON data, or a value of the pipeline's input type if the pipeline itself is given.
        run_key: names the run, like a session id; a new one if None. A key has one run, however it ended and whatever
            the pipeline's name was. With the same input, this returns the handle of that run.
        restart_of, restart_from: the `run_key` of an earlier run of the same user, in process or on Temporal, and a
            step: the results before that step are used again, and the input if none is given. If the key has several
            runs, the last counts; the run fails with an InputError if it has none.
        on_record: the audit trail for the start, which is recorded there beforehand, and the person who starts it.
        options: further arguments of `Client.start_workflow`.

    Raises:
        InputError: an argument is invalid.
        SessionConflictError: the run of that key has another input. If only the pipeline's name is given here, an
            earlier run under a former name makes this one fail.
        SessionAccessDeniedError: that run belongs to another user.
    """
    if not isinstance(pipeline, str | Pipeline):
        kind = type(pipeline).__name__
        raise InputError(
            f"start_pipeline() needs a Pipeline or its name, got {with_article(kind)}; end a builder with .build()"
        )
    name, plain = pipeline if isinstance(pipeline, str) else pipeline.name, input
    if isinstance(pipeline, Pipeline) and (input is not None or restart_of is None):
        plain = pipeline.write_input(pipeline.read_input(input))
    restart = check_restart_options(restart_of, restart_from)
    key = uuid4().hex if run_key is None else check_session_id(run_key, "run_key")
    again = None if restart is None else {"run_key": restart[0], "from": restart[1]}
    data = {"input": plain, "run_key": key, "user_id": user_id, "tenant_id": tenant_id, "restart": again}
    given = PipelineInput.read(data).plain()
    options.setdefault("id", names.workflow_id(name, session_key_of(tenant_id, key)))
    options["memo"] = {**(options.get("memo") or {}), names.PIPELINE_MEMO: name, **started_by(on_record)}
    options.setdefault("id_reuse_policy", WorkflowIDReusePolicy.REJECT_DUPLICATE)
    who = (user_id, tenant_id)

    async def start() -> Run:
        earlier = None
        if isinstance(pipeline, Pipeline):  # otherwise the worker that opens the run knows its former names
            earlier = await earlier_run(client, pipeline, options["id"], name, who)
        if earlier is None:
            try:
                return await _begin(
                    client, name, given, None, tenant_id, task_queue=task_queue, result_type=dict[str, Any], **options
                )
            except WorkflowAlreadyStartedError as error:
                earlier = options["id"]
                await check_owner(client, earlier, error.run_id, key, who, what="Run")
        if (run := await run_with_input(client, earlier, given)) is None:
            raise has_run(name, key, earlier, other_input=True)
        return run

    with_input = None if given.get("input") is None else to_json(given["input"]).decode()
    again_from = None if again is None else f"again from {restart_from} of {restart_of}"
    said = ": ".join(filter(None, [again_from, with_input])) or None
    return await start_on_record(client, options["id"], said, on_record, start, once=_is_once(options))


async def _begin(client: Client, name: str, given: Any, session: str | None, tenant: str | None, **options: Any) -> Run:
    """Start a workflow that lists show at once, and not only when a worker has begun it."""
    theirs = options.get("search_attributes")
    if theirs is None or isinstance(theirs, TypedSearchAttributes):
        known = {pair.key.name: pair for pair in [*started_attributes(session, tenant), *(theirs or ())]}
        try:
            shown = TypedSearchAttributes(list(known.values()))
            begun: Run = await client.start_workflow(name, given, **{**options, "search_attributes": shown})
            return begun
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
            # The namespace may lack the attributes; a fault of anything else is raised by the next attempt.
    run: Run = await client.start_workflow(name, given, **options)
    return run


def _is_once(options: dict[str, Any]) -> bool:
    return options.get("id_reuse_policy") == WorkflowIDReusePolicy.REJECT_DUPLICATE


def _check_message_id(message_id: str | None, session_id: str | None, checkpoint: object) -> None:
    if message_id is None:
        return
    check_message_id(message_id)
    if session_id is None and checkpoint is None:
        raise InputError("message_id= needs session_id=: without it, each run begins a new session")


def _session_of(checkpoint: object) -> str:
    """Return the session of the run that was exported as a checkpoint, otherwise a new one."""
    exported = checkpoint.get("exported_from") if isinstance(checkpoint, dict) else None
    if exported is None:
        return f"sess_{uuid4()}"
    return check_session_id(session_id_of(str(exported).rpartition("@")[0]))


def plain_context(agent: str | Agent, context: Any) -> Any:
    """Return the context of a run in its wire form; None if there is none."""
    if context is None or isinstance(agent, str):
        return context
    written = agent.write_context(context)
    return None if written is None else read_json(written)


def plain_images(images: Images) -> list[Any] | None:
    """Return images in their wire form; None if there are none."""
    return [image.model_dump() for image in read_images(images, CHECKPOINT_BYTES) or ()] or None
