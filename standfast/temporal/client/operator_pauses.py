"""Finds runs and activities that an operator has paused or moved, and explains how to continue them.

Runs cannot report this themselves.
"""

import shlex
from datetime import UTC
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

_PAUSED = Status.WORKFLOW_EXECUTION_STATUS_PAUSED
_SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _read_as_running(known: type[WorkflowExecutionStatus], value: object) -> WorkflowExecutionStatus | None:
    return known.RUNNING if value == _PAUSED else None


# The SDK (1.35) does not know this status, and fails at each list that contains such a run. It is a running workflow on
# hold.
setattr(WorkflowExecutionStatus, "_missing_", classmethod(_read_as_running))  # noqa: B010


def paused_by_operators(run: WorkflowExecutionDescription) -> list[dict[str, Any]]:
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


def _item(name: str, what: str, go_on: str, since: Any) -> dict[str, Any]:
    message = f"{what}; to continue it, run: temporal {go_on}"
    return {"kind": "operator", "name": name, "message": message, "since": since.ToDatetime(UTC).isoformat()}
