"""Finds runs whose workflow task fails again and again, and says how to rescue them."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from standfast.temporal.client.converters import STORAGE
from standfast.temporal.client.runs.descriptions import failure_text, was_started_by_us
from standfast.temporal.wire import names

_REPORTED = "TemporalReportedProblems IS NOT NULL AND ExecutionStatus = 'Running'"
# A server sets the attribute after five failed tasks, some 50 s; until then the last events tell.
_RECENT = f"{names.STATUS_ATTRIBUTE} IS NOT NULL AND ExecutionStatus = 'Running'"
_UPDATE = "Update machine does not handle this event"
_OTHERWISE = "[TMPRL1100]"  # the history and the workflow's commands differ
_UNREADABLE = "cannot read a value"  # a codec or an external storage; see `converters`
_AT = re.compile(r"HistoryEvent\(id: (\d+)")
_LEFT_OUT = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A run that does not continue automatically.

    Args:
        why: the reason why its workflow task fails.
        reset_to: the event before the one that cannot be replayed or read; None if the cause is something else.
        is_unreadable: whether the workers' codec or external storage cannot read a value that was sent.
        from_start: whether that is the first workflow task, since the point of divergence is unknown.
    """

    workflow_id: str
    run_id: str
    why: str
    reset_to: int | None = None
    is_unreadable: bool = False
    from_start: bool = False

    @property
    def rescue(self) -> str:
        """Advice on how to rescue it."""
        if self.reset_to is None:
            return "a worker with the code that began it continues it; see docs/faults.md, Runs that are stuck"
        run = f"--workflow-id {shlex.quote(self.workflow_id)} --run-id {self.run_id} --event-id {self.reset_to}"
        if self.is_unreadable:
            first = "give its workers the codec and the key of the sender"
            if STORAGE in self.why:
                first = "restore in the external storage what was sent"
            return (
                f"{first}; or drop everything sent since: temporal workflow reset {run} "
                "--reapply-exclude All --reason 'it cannot be read'"
            )
        if self.from_start:
            return (
                "a worker with the code that began it continues it; or, if its workers' store is durable, restart "
                "it, which runs no tool with effects twice and repeats its open questions: temporal workflow "
                f"reset {run} --reason 'it cannot be replayed'"
            )
        return f"temporal workflow reset {run} --reason 'an update beside a query'"


async def find_stuck(client: Client, task_queue: str, limit: int) -> list[Stuck]:
    """Return the stuck runs of a task queue, among those that the server reports and the last ones in flight."""
    found: dict[str, Stuck] = {}
    for query in (_REPORTED, _RECENT):
        try:
            runs = [run async for run in client.list_workflows(query, limit=limit)]
        except RPCError as error:
            if query is _REPORTED and error.status == RPCStatusCode.INVALID_ARGUMENT:
                continue  # an older server, which lacks this attribute
            raise
        for run in runs:
            if run.task_queue != task_queue or run.run_id in found:
                continue
            if (stuck := await _look(client, run.id, run.run_id)) is not None:
                found[run.run_id] = stuck
    return list(found.values())


async def _look(client: Client, workflow_id: str, run_id: str) -> Stuck | None:
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        run = await handle.describe()
        if run.raw_description.pending_workflow_task.attempt < 2:
            return None
        history = [event async for event in handle.fetch_history_events()]
        return await _stuck(client, workflow_id, run_id, history, is_ours=was_started_by_us(run))
    except RPCError:  # it has ended in the meantime
        return None


async def _stuck(
    client: Client, workflow_id: str, run_id: str, history: Sequence[HistoryEvent], *, is_ours: bool
) -> Stuck | None:
    """Return the state of a stuck run, from its history, or None if its last workflow task has not failed."""
    tasks = (EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    last = next((event for event in reversed(history) if event.event_type in tasks), None)
    if last is None or last.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
        return None
    failed = last.workflow_task_failed_event_attributes
    if failed.cause in _LEFT_OUT:
        return None
    why = await failure_text(client, failed.failure)
    done = [event.event_id for event in history if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    at = _AT.search(why)
    if _UNREADABLE in why:
        return Stuck(workflow_id, run_id, why, done[-1] if done else None, is_unreadable=True)
    if _UPDATE in why and at is not None:
        before = [event_id for event_id in done if event_id < int(at[1])]
        return Stuck(workflow_id, run_id, why, before[-1] if before else None)
    if _OTHERWISE in why and is_ours and done:  # the effects of repeating a user's workflow are unknown
        return Stuck(workflow_id, run_id, why, done[0], from_start=True)
    return Stuck(workflow_id, run_id, why)
