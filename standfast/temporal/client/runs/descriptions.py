"""Describes runs from outside: the server's entry, the progress, operators' pauses, and the result."""

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

from temporalio.api.enums.v1 import EventType, PendingActivityState, TaskQueueType
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from standfast.checkpoints import EndStatus
from standfast.errors import InputError, StandfastError, did_you_mean
from standfast.messages import JSONObject, error_text
from standfast.temporal.client.board.waiting_items import read_items, read_state
from standfast.temporal.wire import names
from standfast.time_limits import time_limit

_SOON = 1.0  # seconds in which an idle live worker answers
_POLLS_EVERY = 90.0  # seconds; a long poll ends after 60, and the worker begins the next one at once
_PATIENCE = timedelta(seconds=5)  # for an answer of a worker; there may be none
_KNOWN = 2.0  # seconds, for an answer that tells whether a run is standfast's
_BEGINS = 1.0  # seconds in which a worker must begin a run while a person waits to see it begin
_EVERY = 0.3  # seconds between two checks of a run
_MEMOS = {names.AGENT_MEMO, names.PIPELINE_MEMO}
_ATTRIBUTES = {names.STATUS_ATTRIBUTE, names.WAITING_ATTRIBUTE, names.SESSION_ATTRIBUTE}
_BY_TEMPORAL = {"failed": "Failed", "terminated": "Terminated", "timed-out": "TimedOut"}  # ends that no run can report
_STATUSES = ("running", "waiting", "paused", *get_args(EndStatus), *_BY_TEMPORAL)
DONE = ("complete",)  # the outcomes of a successful run
CANCELLED = ("cancelled", "canceled")  # the outcomes of a cancelled run: standfast's word and Temporal's

_PAUSED = Status.WORKFLOW_EXECUTION_STATUS_PAUSED
_TIMED_OUT = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)  # the server's word, and the SDK's
_SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _read_as_running(known: type[WorkflowExecutionStatus], value: object) -> WorkflowExecutionStatus | None:
    return known.RUNNING if value == _PAUSED else None


# The SDK (1.35) does not know this status, and fails at each list that contains such a run. It is a running workflow on
# hold.
setattr(WorkflowExecutionStatus, "_missing_", classmethod(_read_as_running))  # noqa: B010


def paused_by_operators(run: WorkflowExecutionDescription) -> list[JSONObject]:
    """Return items for a run that is paused, and for its activities that are paused or wait in another task queue.

    A run's activities all run on its task queue's workers; an activity in another queue was moved there.
    """
    described, which = run.raw_description, f"--workflow-id {shlex.quote(run.id)}"
    items = []
    if run.raw_info.status == _PAUSED:
        run_pause = described.workflow_extended_info.pause_info
        what = f"This run{_by(run_pause)}"
        items.append(_item("", what, f"workflow unpause {which}", run_pause.paused_time))
    for activity in described.pending_activities:
        if activity.paused:
            name, pause = activity.activity_type.name, activity.pause_info
            go_on = f"activity unpause {which} --activity-id {shlex.quote(activity.activity_id)}"
            items.append(_item(name, f"Activity {name}{_by(pause.manual)}", go_on, pause.pause_time))
            continue
        queue = activity.activity_options.task_queue.name
        if queue not in ("", run.task_queue) and activity.state == _SCHEDULED:
            name, own = activity.activity_type.name, shlex.quote(run.task_queue)
            what = f"Activity {name} was moved to the task queue {queue} and waits for a worker there"
            which_one = f"{which} --activity-id {shlex.quote(activity.activity_id)}"
            go_on = f"activity update-options {which_one} --task-queue {own}"
            items.append(_item(name, what, go_on, activity.scheduled_time))
    return items


def _by(pause: Any) -> str:
    reason = f" ({pause.reason})" if pause.reason else ""
    return f" was paused by {pause.identity or 'an operator'}{reason}"


def _item(name: str, what: str, go_on: str, since: Any) -> JSONObject:
    message = f"{what}; to continue it, run: temporal {go_on}"
    return {"kind": "operator", "name": name, "message": message, "since": since.ToDatetime(UTC).isoformat()}


def runs_query(
    *,
    status: str | None = None,
    waiting: bool = False,
    kind: str | None = None,
    session: str | None = None,
    tenant: str | None = None,
    group: str | None = None,
    query: str | None = None,
) -> str:
    """Return a filter that finds runs, in Temporal's list filter language.

    Args:
        status: "running", "waiting", "paused", or the way in which runs ended.
        waiting: only runs that wait for a person or a worker.
        kind: the name of an agent or a pipeline.
        group: the group of approvers that they ask now.
        query: further conditions in that language.

    Raises:
        InputError: no run has such a status; or a name or id has characters that are never allowed, such as NUL, at
            which some servers retry for ever.
    """
    if status is not None and status not in _STATUSES:
        raise InputError(
            f"No run has the status {status!r:.80}; the statuses are "
            f"{', '.join(_STATUSES)}{did_you_mean(status, _STATUSES)}"
        )
    by = "ExecutionStatus" if status in _BY_TEMPORAL else names.STATUS_ATTRIBUTE
    wanted = {
        by: _BY_TEMPORAL.get(status or "", status),
        "WorkflowType": kind,
        names.SESSION_ATTRIBUTE: session,
        names.TENANT_ATTRIBUTE: tenant,
        names.GROUP_ATTRIBUTE: group,
    }
    parts = [f"{name} = {quoted(value)}" for name, value in wanted.items() if value is not None]
    if waiting:
        parts.append(f"{names.WAITING_ATTRIBUTE} IS NOT NULL AND ExecutionStatus = 'Running'")
    if status is None and kind is None and query is None:  # other filters also find runs that failed at their input
        parts.insert(0, f"{names.STATUS_ATTRIBUTE} IS NOT NULL")
    return " AND ".join([*parts, *([f"({query})"] if query else [])])


def quoted(value: str) -> str:
    """Return a text quoted for a filter.

    Raises:
        InputError: it cannot be in a filter.
    """
    if not value.isprintable():
        raise InputError(f"A filter is a line of text, got {value!r:.80}")
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def listed(run: WorkflowExecution) -> JSONObject:
    """Return the server's list entry for a run, as JSON data."""
    attributes = {pair.key.name: pair.value for pair in run.typed_search_attributes}
    ended = run.status is not None and run.status.name != "RUNNING"
    status = str(attributes.get(names.STATUS_ATTRIBUTE) or "running")
    if ended and status in ("running", "waiting", "paused"):  # it was cut off before it could report the reason
        status = str(run.status and run.status.name.lower())
    deadline = attributes.get(names.DEADLINE_ATTRIBUTE)
    found = {
        "workflow_id": run.id,
        "run_id": run.run_id,
        "first_run_id": run.raw_info.first_run_id or run.run_id,
        "type": run.workflow_type,
        "status": status,
        "waiting": [] if ended else list(attributes.get(names.WAITING_ATTRIBUTE) or ()),
        "session_id": attributes.get(names.SESSION_ATTRIBUTE),
        "parent": run.parent_id,
        "tenant_id": attributes.get(names.TENANT_ATTRIBUTE),
        "deadline": _time(deadline if isinstance(deadline, datetime) else None),
        "started": _time(run.start_time),
        "closed": _time(run.close_time),
    }
    return {name: value for name, value in found.items() if value is not None}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


async def looked_at(client: Client, workflow_id: str, run_id: str | None = None) -> JSONObject:
    """Return all known facts of a run.

    These are its list entry, its `state`, and its `result` or `error` if it has ended; also the `failed_step` of a
    pipeline that failed with an error. Activities that are being retried are in `retries`, with the reason of the last
    failure, and the time of the `next` attempt.

    Args:
        run_id: as `run_of` takes it.

    Raises:
        InputError: there is none, or it belongs to another program.
    """
    run = await run_of(client, workflow_id, run_id)
    seen = listed(run)
    if "closed" in seen:
        return seen | await _end(client, workflow_id, run.run_id)
    tried = [item for item in run.raw_description.pending_activities if item.attempt > 1]
    if retries := [await _retry(client, item) for item in tried]:
        seen["retries"] = retries
    paused = paused_by_operators(run)
    try:
        state = await _state(client, workflow_id, seen["status"])
    except StandfastError as error:
        return seen | {"unreachable": "; ".join([str(error), *(item["message"] for item in paused)])}
    return seen | {"state": {**state, "waiting": [*state["waiting"], *paused]}}


async def _retry(client: Client, pending: Any) -> JSONObject:
    error = await failure_text(client, pending.last_failure)
    retry = {"activity": pending.activity_type.name, "attempt": pending.attempt, "error": error}
    if pending.HasField("next_attempt_schedule_time"):
        retry["next"] = pending.next_attempt_schedule_time.ToDatetime(UTC).isoformat()
    return retry


async def failure_text(client: Client, failed: Failure) -> str:
    """Return the message of a failure, which a codec may have encoded."""
    failure = Failure()
    failure.CopyFrom(failed)
    try:
        decoded = await client.data_converter.decode_failure(failure)
    except StandfastError as wrong:  # with the codec
        return str(wrong)
    return decoded.message if isinstance(decoded, FailureError) else str(decoded)


async def described(client: Client, workflow_id: str, run_id: str | None = None) -> WorkflowExecutionDescription:
    """Return the server's description of a run.

    Args:
        run_id: the newest if None.

    Raises:
        InputError: there is none.
    """
    try:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except (RPCError, UnicodeEncodeError) as error:  # no run has an id of lone surrogates
        if isinstance(error, RPCError) and error.status not in (
            RPCStatusCode.NOT_FOUND,
            RPCStatusCode.INVALID_ARGUMENT,
        ):
            raise
        which = repr(workflow_id) if run_id is None else f"{workflow_id!r} with run id {run_id!r}"
        raise InputError(
            f"There is no run {which} in namespace {client.namespace}; `standfast ls` lists the runs"
        ) from error


def looks_ours(run: WorkflowExecutionDescription) -> bool:
    """Whether standfast has started a run, or the run has standfast's search attributes."""
    info = run.raw_info
    return bool(info.memo.fields.keys() & _MEMOS or info.search_attributes.indexed_fields.keys() & _ATTRIBUTES)


def was_started_by_us(run: WorkflowExecution) -> bool:
    """Whether a run is an agent's or a pipeline's, and not a user's workflow with standfast gates in it."""
    return bool(run.raw_info.memo.fields.keys() & _MEMOS)


async def run_of(client: Client, workflow_id: str, run_id: str | None = None) -> WorkflowExecutionDescription:
    """Return the server's description of a standfast run that began with a run id, wherever it has continued as new.

    Args:
        run_id: of the run's beginning or any later part; the newest run of this workflow id if None.

    Raises:
        InputError: there is none, or it belongs to another program.
    """
    newest = await our_run(client, workflow_id)
    if run_id in (None, newest.run_id, newest.raw_info.first_run_id):
        return newest
    run = await our_run(client, workflow_id, run_id)
    return newest if run.raw_info.first_run_id == newest.raw_info.first_run_id else run


async def our_run(client: Client, workflow_id: str, run_id: str | None = None) -> WorkflowExecutionDescription:
    """Return the server's description of a standfast run.

    It is a standfast run if standfast has started it or it has standfast's search attributes. It is also one if it
    answers as only standfast runs and workflows with an `approval` do.

    Args:
        run_id: the newest if None.

    Raises:
        InputError: there is none, or it belongs to another program.
    """
    run = await described(client, workflow_id, run_id)
    if looks_ours(run):
        return run
    handle = client.get_workflow_handle(workflow_id, run_id=run.run_id)
    try:
        async with time_limit(_KNOWN):  # the SDK retries an RPC whose own timeout has passed
            await handle.query(names.OUTCOME, "")
    except (RPCError, WorkflowQueryFailedError, TimeoutError) as error:
        why = "no worker answers for it" if isinstance(error, TimeoutError) else str(error)
        what = f"Workflow {workflow_id}, of type {run.workflow_type}, is not known as a standfast run"
        raise InputError(f"{what} ({why}); use the `temporal` command for other workflows") from error
    return run


async def has_no_gates(client: Client, workflow_id: str) -> bool:
    """Whether a worker reports that a workflow does not answer `pending`, as before its first `approval`."""
    try:
        async with time_limit(_KNOWN):
            await client.get_workflow_handle(workflow_id).query(names.PENDING)
    except WorkflowQueryFailedError as error:
        return f"Query handler for '{names.PENDING}' expected but not found" in str(error)
    except (RPCError, TimeoutError, UnicodeEncodeError, StandfastError):
        return False
    return False


async def failed_at_once(client: Client, workflow_id: str) -> JSONObject | None:
    """Return a new run, as `looked_at` does, if its first workflow task failed it; None if it continues.

    That task reads the input, so an invalid input fails there, some 10 ms after the start. The result of a task is in
    the history at once.

    Raises:
        TimeoutError: no worker has begun the run within a second.
    """
    events = client.get_workflow_handle(workflow_id).fetch_history_events(wait_new_event=True)
    async with time_limit(_BEGINS):
        while True:
            await events.fetch_next_page()
            kinds = {event.event_type for event in events.current_page or ()}
            if EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds or events.next_page_token is None:
                break
    failed = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED in kinds
    return await looked_at(client, workflow_id) if failed else None


async def cancel_run(client: Client, workflow_id: str, *, by: str | None = None) -> None:
    """Cancel a run; its history records who did.

    Raises:
        InputError: there is none, it belongs to another program, or it has ended.
    """
    if (await our_run(client, workflow_id)).close_time is not None:
        raise InputError(f"Run {workflow_id} has already ended")
    await client.get_workflow_handle(workflow_id).cancel(reason="" if by is None else f"cancelled by {by}")


async def _state(client: Client, workflow_id: str, listed_as: str) -> JSONObject:
    handle = client.get_workflow_handle(workflow_id)
    try:
        try:
            return read_state(await answer(client, handle, names.STATUS, _PATIENCE))
        except InputError:  # a user's workflow with its own `status`, and a standfast gate
            items = read_items(await answer(client, handle, names.PENDING, _PATIENCE))
            return {"status": listed_as, "waiting": items}
    except (RPCError, WorkflowQueryFailedError) as error:
        raise StandfastError(f"No worker answers for run {workflow_id}: {error}") from error


class NoWorkerError(RPCError):
    """No worker polls a run's task queue, so a query will not be answered."""

    def __init__(self, task_queue: str) -> None:
        super().__init__(f"no worker polls its task queue {task_queue!r}", RPCStatusCode.DEADLINE_EXCEEDED, b"")


async def answer(client: Client, handle: WorkflowHandle[Any, Any], query: str, patience: timedelta) -> Any:
    """Return the answer of a workflow, unvalidated.

    A slow answer is awaited only while a worker polls the run's task queue.

    Raises:
        InputError: it cannot be decoded.
        NoWorkerError: no worker polls the queue.
        RPCError: a worker has polled it, but none answers in time; or the server's own error.
    """
    asking = asyncio.ensure_future(handle.query(query, rpc_timeout=patience))
    try:
        if not (await asyncio.wait({asking}, timeout=_SOON))[0]:
            queue = (await handle.describe()).task_queue
            if not (await pollers_of(client, queue)).alive:
                raise NoWorkerError(queue)
        return await asking
    except RPCError as error:
        if isinstance(error, NoWorkerError) or error.status not in _TIMED_OUT:
            raise
        seconds = f"{patience.total_seconds():g} s"
        why = f"none has within {seconds}, although one has polled recently: it may have died, or be busy"
        raise RPCError(why, RPCStatusCode.DEADLINE_EXCEEDED, b"") from error
    except WorkflowQueryFailedError:
        raise
    except Exception as error:  # another program may have written it, and any converter may read it
        raise InputError(f"its answer to {query} cannot be decoded: {error_text(error)}") from error
    finally:
        asking.cancel()


class Pollers(NamedTuple):
    """The identities of the workers that have recently polled a task queue."""

    alive: list[str]
    dead: list[str]


async def pollers_of(client: Client, task_queue: str) -> Pollers:
    """Return the workers of a task queue, and the dead ones: the server remembers each for 5 minutes."""
    found = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    since = datetime.now(UTC) - timedelta(seconds=_POLLS_EVERY)
    polled = {poller.identity: poller.last_access_time.ToDatetime(UTC) for poller in found.pollers}
    alive = sorted(name for name, last in polled.items() if last >= since and not _has_died_here(name))
    return Pollers(alive, sorted(polled.keys() - {*alive}))


def _has_died_here(identity: str) -> bool:
    """Whether a poller was a process of this machine that has ended: the SDK's identity is PID@HOST."""
    pid, _, host = identity.partition("@")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


async def _end(client: Client, workflow_id: str, run_id: str) -> JSONObject:
    try:
        return {"result": await client.get_workflow_handle(workflow_id, run_id=run_id).result()}
    except WorkflowFailureError as error:
        details = getattr(error.cause, "details", ())
        step = details[0].get("failed_step") if details and isinstance(details[0], dict) else None
        return {"error": str(error.cause)} | ({} if step is None else {"failed_step": step})
    except StandfastError as error:  # its result cannot be read
        return {"error": str(error)}


async def watched(client: Client, workflow_id: str) -> AsyncIterator[JSONObject]:
    """Yield a run whenever it has changed, the last time when it has ended."""
    before: Mapping[str, Any] | None = None
    while True:
        now = await looked_at(client, workflow_id)
        if now != before:
            yield now
            before = now
        if "closed" in now:
            return
        await asyncio.sleep(_EVERY)


def outcome(seen: Mapping[str, Any]) -> str:
    """Return how a run ended: its own outcome, or Temporal's status."""
    result = seen.get("result")
    return str(result["status"]) if isinstance(result, dict) and "status" in result else str(seen["status"])
