"""Workflow resets: later events are undone in the history, but not in the outside world."""

from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.service import RPCError

from support.temporal_runs import Run, Temporal, events

NOTHING = (
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
)


_REFUSALS = ("must be at the boundary", "Can only reset workflow to event ID in range")


async def tasks(handle: Run) -> list[int]:
    """Return the points to which a run can be reset, in order."""
    return [
        event.event_id
        for event in await events(handle)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]


async def reset(
    temporal: Temporal, handle: Run, task: int, *, with_messages: bool = False, with_signals: bool = False
) -> Run:
    """Reset a run to before its n-th workflow task (from 0), and return the new one.

    Args:
        with_messages: send it again what came behind that point, as the server does unless it is told otherwise.
        with_signals: send it only the signals again.
    """
    again = await temporal.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution={"workflow_id": handle.id, "run_id": handle.result_run_id},
            workflow_task_finish_event_id=(await tasks(handle))[task],
            request_id=uuid4().hex,
            reset_reapply_exclude_types=() if with_messages else NOTHING[:1] if with_signals else NOTHING,
        )
    )
    return temporal.client.get_workflow_handle(handle.id, run_id=again.run_id, result_type=dict)


async def resets(
    temporal: Temporal, handle: Run, at: Iterable[int] | None = None, **options: Any
) -> AsyncIterator[Run]:
    """Reset a run to each of its workflow tasks, one after the other, or to some of them.

    The server refuses those that it has written in one piece with their beginning, as the task of an update may be.
    """
    run: Run = temporal.client.get_workflow_handle(handle.id, run_id=handle.result_run_id)
    for task in range(len(await tasks(run))) if at is None else at:
        try:
            yield await reset(temporal, run, task, **options)
        except RPCError as error:
            if not any(why in error.message for why in _REFUSALS):
                raise
