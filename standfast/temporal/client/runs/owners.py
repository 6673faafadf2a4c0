"""Finds the owner and the context of a run from its input, and denies access to strangers.

The input is read from the history, which cannot be changed and needs no live worker. This protects an application that
passes on its signed-in user. Anyone who may write to the namespace itself can impersonate any user.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError, SessionAccessDeniedError, SessionConflictError
from standfast.messages import JSONObject, check_same, content_digest, error_text
from standfast.temporal.client.runs.descriptions import described, quoted
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import use_of
from standfast.temporal.wire.inputs import Owner, Said, first_message, is_stranger, message_id_of, user_message
from standfast.time_limits import time_limit

Run = WorkflowHandle[Any, JSONObject]
_LOOKED_BACK = 100  # runs of a workflow id
_EARLIER = 3  # runs of a session that are searched for a message
_TOLD, _PAUSE = 3.0, 0.1  # seconds in which a worker reports the outcome of a message, and between two checks
_TRIES = 5  # to meet a run of the session that is not about to end


async def start_or_say(
    start: Callable[[], Awaitable[Run]],
    client: Client,
    workflow_id: str,
    session: str,
    said: JSONObject,
    who: Owner,
    context: Any = None,
) -> Run:
    """Start a run of a session, or send the message to the run in flight.

    Args:
        context: the message's context. A run has one context from its start to its end, so the run in flight must have
            been started with the same context; None matches any context.

    Raises:
        SessionAccessDeniedError: the run in flight belongs to another user.
        SessionConflictError: it has another context.
        WorkflowAlreadyStartedError: no run is in flight, and none may be started.
    """
    for _ in range(_TRIES):
        with suppress(WorkflowAlreadyStartedError):
            return await start()
        if (run := await _said(client, workflow_id, session, said, who, context)) is not None:
            return run
    return await start()


async def run_that_has(client: Client, workflow_id: str, given: Mapping[str, Any], who: Owner) -> Run | None:
    """Return the run that was started with a message, among the last runs of a session, by the message's id.

    Args:
        given: the input with the message.

    Raises:
        InputError: the id belongs to another message.
    """
    said = cast(Said, first_message(given))
    last = await described(client, workflow_id)
    earlier = client.list_workflows(f"WorkflowId = {quoted(workflow_id)}", limit=_EARLIER + 1)
    runs = [last, *[run async for run in earlier]]
    for first in dict.fromkeys(run.raw_info.first_run_id or run.run_id for run in runs):
        data = await _started_with(client, workflow_id, first)
        before = first_message(data)
        if before is None or message_id_of(before) != message_id_of(said):
            continue
        if is_stranger((data.get("user_id"), data.get("tenant_id")), who):
            continue
        check_same(user_message(said), content_digest(user_message(before)), user_message(before).by)
        return client.get_workflow_handle(workflow_id, run_id=first, result_type=JSONObject)
    return None


async def run_with_input(client: Client, workflow_id: str, given: Mapping[str, Any]) -> Run | None:
    """Return the run of a pipeline's workflow id if it was started with the same input and restart, otherwise None.

    Raises:
        InputError: the run is not found, or its input cannot be read.
    """
    last = await described(client, workflow_id)
    data = await _started_with(client, workflow_id, last.raw_info.first_run_id or last.run_id)
    if any(_canonical(data.get(name)) != _canonical(given.get(name)) for name in ("input", "restart")):
        return None
    return client.get_workflow_handle(workflow_id, run_id=last.run_id, result_type=JSONObject)


async def check_owner(
    client: Client, workflow_id: str, run_id: str | None, name: str, who: Owner, *, what: str = "Session"
) -> None:
    """Refuse a stranger any further information about the run with the name of a session or run key."""
    if is_stranger(await owner_of(client, workflow_id, run_id), who):
        raise SessionAccessDeniedError(name, what)


async def owner_of(client: Client, workflow_id: str, run_id: str | None) -> Owner:
    """Return a run's owner, without a user if it was started for none.

    Raises:
        InputError: its input cannot be read, so the owner is unknown.
    """
    data = await _started_with(client, workflow_id, run_id)
    return data.get("user_id"), data.get("tenant_id")


async def _started_with(client: Client, workflow_id: str, run_id: str | None) -> JSONObject:
    """Return a run's input; `{}` if it lacks standfast input.

    Raises:
        InputError: it cannot be read.
    """
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        payloads = event.workflow_execution_started_event_attributes.input.payloads
        try:
            given: Sequence[Any] = await client.data_converter.decode(payloads)
        except Exception as error:  # another program may have written it, and any converter may read it
            raise InputError(f"Run {workflow_id}: its input cannot be decoded: {error_text(error)}") from error
        return given[0] if given and isinstance(given[0], dict) else {}
    return {}


async def last_admitted(client: Client, run: WorkflowExecution) -> str | None:
    """Return the last run of a workflow id, from this one back, that was not refused.

    The result is None if the last hundred have none. So a stranger who starts a run in another user's session does not
    affect its owner.
    """
    if not await _was_denied(client, run):
        return run.run_id
    before = [one async for one in client.list_workflows(f"WorkflowId = {quoted(run.id)}", limit=_LOOKED_BACK)]
    for one in sorted(before, key=lambda one: one.start_time, reverse=True):
        if one.start_time < run.start_time and not await _was_denied(client, one):
            return one.run_id
    return None


async def _was_denied(client: Client, run: WorkflowExecution) -> bool:
    """Whether a run failed because it was started in another user's session."""
    if run.status is not WorkflowExecutionStatus.FAILED:
        return False
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    closing = WorkflowHistoryEventFilterType.CLOSE_EVENT
    kinds = [
        event.workflow_execution_failed_event_attributes.failure.application_failure_info.type
        async for event in handle.fetch_history_events(event_filter_type=closing)
    ]
    return kinds == [SessionAccessDeniedError.__name__]


async def _said(
    client: Client, workflow_id: str, session: str, said: JSONObject, who: Owner, context: Any
) -> Run | None:
    """Send a message to the run of a session, and return its handle; None if the run is just ending."""
    try:
        run = await client.get_workflow_handle(workflow_id).describe()
        if run.close_time is not None:
            return None
        await check_owner(client, workflow_id, run.run_id, session, who)
        if context is not None:  # only the first run of a chain has it in its input
            first = await _started_with(client, workflow_id, run.raw_info.first_run_id or run.run_id)
            if _canonical(first.get("context")) != _canonical(context):
                raise SessionConflictError(
                    f"Session {session} has a run in flight, workflow {workflow_id}, that was not started with "
                    "this context: send the message without a context, or wait for the end of the run"
                )
        # To this exact run: the next one of the session may belong to another user. The run also checks the owner
        # itself.
        speaker = {"from": {name: value for name, value in zip(("user_id", "tenant_id"), who, strict=True) if value}}
        handle, sent = client.get_workflow_handle(workflow_id, run_id=run.run_id), {**said, **speaker}
        await handle.signal(names.MESSAGE, sent, rpc_timeout=timedelta(seconds=10))
        if "id" in sent and (refusal := await _refusal(handle, sent)) is not None:
            await asyncio.sleep(_PAUSE)
            if (await handle.describe()).close_time is None:
                raise InputError(refusal)
            return None
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
    return WorkflowHandle(client, workflow_id, result_run_id=run.run_id, result_type=JSONObject)


async def _refusal(run: WorkflowHandle[Any, Any], sent: Mapping[str, Any]) -> str | None:
    """Return why a run refuses a message with an id; None if it does not, or if no worker reports it in time."""
    asks = [sent["id"], use_of(names.MESSAGE, sent)[1]]
    with suppress(TimeoutError, WorkflowQueryFailedError):
        async with time_limit(_TOLD):
            while not (found := await run.query(names.OUTCOME, args=asks)):  # noqa: ASYNC110  # a run tells nobody
                await asyncio.sleep(_PAUSE)
            return cast("str | None", found.get("refused"))
    return None


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True)  # which distinguishes true, 1 and 1.0
