"""Reads the executions of a run and their histories, with payloads decoded.

A run has several executions if it continued as new or was reset. Any client may have written these values: a payload
that cannot be decoded is None, and never raises an error here.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType as Kind
from temporalio.api.enums.v1 import TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution
from temporalio.converter import default
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError
from standfast.messages import JSONObject
from standfast.temporal.client.runs.descriptions import failure_text, our_run, quoted
from standfast.temporal.wire import names
from standfast.time_limits import time_limit

_RESETTER = "history-resetter"  # the identity with which a server ends an execution that is reset
_LONGEST = 30.0  # seconds for an answer of the server, which takes 20 to report that there is nothing new
_LOCAL = "core_local_activity"  # the name of a local activity's marker
LOST_WORDS = {  # by the type of a failure
    names.TIMED_OUT: "its timeout passed while it ran",
    names.CALL_NOT_OURS: "an earlier attempt at it was lost",
    names.WORKER_DIED: "its worker died while it ran",
    "WorkerShutdown": "its worker was shut down while it ran",
}
_FIELDS = {
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "workflow_execution_started",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "workflow_execution_completed",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "workflow_execution_failed",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "workflow_execution_canceled",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "workflow_execution_terminated",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "workflow_execution_timed_out",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "workflow_execution_continued_as_new",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: "workflow_execution_cancel_requested",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "workflow_execution_signaled",
    Kind.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "workflow_execution_update_accepted",
    Kind.EVENT_TYPE_WORKFLOW_TASK_FAILED: "workflow_task_failed",
    Kind.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upsert_workflow_search_attributes",
    Kind.EVENT_TYPE_MARKER_RECORDED: "marker_recorded",
    Kind.EVENT_TYPE_TIMER_STARTED: "timer_started",
    Kind.EVENT_TYPE_TIMER_FIRED: "timer_fired",
    Kind.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity_task_scheduled",
    Kind.EVENT_TYPE_ACTIVITY_TASK_STARTED: "activity_task_started",
    Kind.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "activity_task_completed",
    Kind.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed",
    Kind.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out",
    Kind.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity_task_canceled",
    Kind.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "start_child_workflow_execution_initiated",
    Kind.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: "child_workflow_execution_completed",
    Kind.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: "child_workflow_execution_failed",
    Kind.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: "child_workflow_execution_canceled",
    Kind.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: "child_workflow_execution_timed_out",
    Kind.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: "child_workflow_execution_terminated",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An event of a history, with the fields that concern a run.

    Args:
        kind: such as "activity_task_completed".
        of: the number of the event that it refers to.
        name: of an activity, workflow, signal or update.
        value: its input, or its result.
        error: the reason of its failure, as text.
        attempts: of the activity; `is_safe` if it may have several.
        run_id: of a beginning, the execution that it began as; of an end, the execution that continues it.
        by_reset: it ends an execution that continues as another, or marks the new part of that other execution.
    """

    number: int
    kind: str
    at: datetime
    of: int = 0
    name: str = ""
    value: Any = None
    error: str = ""
    attempts: int = 0
    is_safe: bool = False
    by_reset: bool = False
    workflow_id: str = ""
    run_id: str = ""
    summary: str = ""
    is_continued: bool = False


async def executions(client: Client, workflow_id: str, run_id: str | None = None) -> list[WorkflowExecution]:
    """Return the executions of a run, in the order in which they began.

    Args:
        run_id: any of them; the last run of the workflow id if None.

    Raises:
        InputError: there is none, or it belongs to another program.
    """
    last: WorkflowExecution = await our_run(client, workflow_id)
    listed = [one async for one in client.list_workflows(f"WorkflowId = {quoted(workflow_id)}")]
    found = {one.run_id: one for one in [*listed, last]}
    asked = found[last.run_id] if run_id is None else await _described(client, workflow_id, run_id, found)
    first = _first(asked)
    await _described(client, workflow_id, first, found)
    return sorted((one for one in found.values() if _first(one) == first), key=lambda one: (one.start_time, one.run_id))


async def _described(
    client: Client, workflow_id: str, run_id: str, found: dict[str, WorkflowExecution]
) -> WorkflowExecution:
    """Return an execution, which may be too new to be listed, or already forgotten by the server."""
    if run_id not in found:
        try:
            found[run_id] = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise InputError(
                f"Run {workflow_id} has no events of {run_id}, or the server has forgotten them"
            ) from error
    return found[run_id]


def _first(run: WorkflowExecution) -> str:
    return run.raw_info.first_run_id or run.run_id


async def entries(client: Client, workflow_id: str, run_id: str, *, follow: bool) -> AsyncIterator[Entry]:
    """Yield the entries of an execution; `follow` waits for further entries until its end."""
    events = client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events(wait_new_event=follow)
    while events.current_page is None or events.next_page_token:
        try:
            async with time_limit(_LONGEST):  # the server forgets to answer some long polls (measured)
                await events.fetch_next_page()
        except TimeoutError:
            continue
        for event in events.current_page or ():
            if event.event_type in _FIELDS:
                yield await _entry(client, run_id, event)


async def _entry(client: Client, run_id: str, event: HistoryEvent) -> Entry:
    kind = _FIELDS[event.event_type]
    attributes = getattr(event, f"{kind}_event_attributes")
    found: JSONObject = {"number": event.event_id, "kind": kind, "at": event.event_time.ToDatetime(tzinfo=UTC)}
    if kind.startswith("activity_task_") and kind != "activity_task_scheduled":
        found["of"] = attributes.scheduled_event_id
    elif kind == "timer_fired":
        found["of"] = attributes.started_event_id
    elif kind.startswith("child_workflow_"):
        found["of"] = attributes.initiated_event_id
    found |= await _particulars(client, kind, attributes, run_id)
    if kind in ("activity_task_scheduled", "timer_started"):
        found["summary"] = await _decoded(client, [event.user_metadata.summary]) or ""
    for field in ("input", "result"):
        if "value" not in found and hasattr(attributes, field):
            found["value"] = await _decoded(client, getattr(attributes, field).payloads)
    for field in ("failure", "last_failure"):
        if "error" not in found and hasattr(attributes, field) and attributes.HasField(field):
            found["error"] = await _words(client, getattr(attributes, field))
    return Entry(**found)


async def _particulars(client: Client, kind: str, attributes: Any, run_id: str) -> JSONObject:
    """Return the fields that only one kind of event has."""
    match kind:
        case "workflow_execution_started":
            began = attributes.original_execution_run_id or run_id
            is_continued = bool(attributes.continued_execution_run_id)
            return {"run_id": began, "is_continued": is_continued, "name": attributes.workflow_type.name}
        case "workflow_execution_continued_as_new":
            return {"run_id": attributes.new_execution_run_id}
        case "workflow_execution_terminated":
            return {"by_reset": attributes.identity == _RESETTER, "error": attributes.reason}
        case "workflow_execution_cancel_requested":
            return {"error": attributes.cause}
        case "workflow_execution_signaled":
            return {"name": attributes.signal_name}
        case "workflow_execution_update_accepted":
            given = attributes.accepted_request.input
            return {"name": given.name, "value": await _decoded(client, given.args.payloads)}
        case "workflow_task_failed":
            is_reset = attributes.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
            return {"by_reset": is_reset and attributes.new_run_id == run_id}
        case _:
            return await _of_work(client, kind, attributes)


async def _of_work(client: Client, kind: str, attributes: Any) -> JSONObject:
    match kind:
        case "upsert_workflow_search_attributes":
            fields = attributes.search_attributes.indexed_fields
            return {"value": {name: _value(payload) for name, payload in fields.items()}}
        case "marker_recorded" if attributes.marker_name == _LOCAL and "result" in attributes.details:
            return {"value": await _decoded(client, attributes.details["result"].payloads)}
        case "activity_task_scheduled":
            return {
                "name": attributes.activity_type.name,
                "is_safe": attributes.retry_policy.maximum_attempts != 1,
            }
        case "activity_task_started":
            return {"attempts": attributes.attempt}
        case "start_child_workflow_execution_initiated":
            return {"workflow_id": attributes.workflow_id, "name": attributes.workflow_type.name}
    return {}


async def _decoded(client: Client, payloads: Sequence[Payload]) -> Any:
    """Return the first value; None if there is none, or it cannot be decoded."""
    try:
        values = await client.data_converter.decode([one for one in payloads if one.metadata or one.data])
    except Exception:  # any converter may read it, and any client may have written it
        return None
    return values[0] if values else None


def _value(payload: Payload) -> Any:
    """Return the value of a search attribute, which no codec encodes."""
    try:
        return default().payload_converter.from_payloads([payload])[0]
    except Exception:
        return None


async def _words(client: Client, failure: Failure) -> str:
    """Describe why something failed."""
    if failure.HasField("timeout_failure_info"):
        timeout = failure.timeout_failure_info.timeout_type
        if timeout == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START:
            return "no worker has taken it"
        lost = timeout == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
        return f"{'its worker was lost' if lost else 'its timeout passed'} while it ran"
    known = LOST_WORDS.get(failure.application_failure_info.type)
    return known or await failure_text(client, failure)
