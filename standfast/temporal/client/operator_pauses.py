"""Finds what an operator has paused with the `temporal` command, of which no run can tell, and says how it goes on."""

import shlex
from datetime import UTC
from typing import Any

from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

_PAUSED = Status.WORKFLOW_EXECUTION_STATUS_PAUSED


def _read_as_running(known: type[WorkflowExecutionStatus], value: object) -> WorkflowExecutionStatus | None:
    return known.RUNNING if value == _PAUSED else None


# The SDK (1.35) does not know this status, and fails at each list that has such a run in it: it runs, only not now.
setattr(WorkflowExecutionStatus, "_missing_", classmethod(_read_as_running))  # noqa: B010


def paused_by_operators(run: WorkflowExecutionDescription) -> list[dict[str, Any]]:
    """Return as items that wait a run that is paused, and its activities that are."""
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
    return items


def _by(pause: Any) -> str:
    reason = f" ({pause.reason})" if pause.reason else ""
    return f" was paused by {pause.identity or 'an operator'}{reason}"


def _item(name: str, what: str, go_on: str, since: Any) -> dict[str, Any]:
    message = f"{what}; it goes on after: temporal {go_on}"
    return {"kind": "operator", "name": name, "message": message, "since": since.ToDatetime(UTC).isoformat()}
