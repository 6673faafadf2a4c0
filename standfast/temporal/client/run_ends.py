"""Finds a run, and how it ended: a reset ends it for Temporal, and another goes on from it."""

from contextlib import suppress
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistoryEventFilterType,
)
from temporalio.exceptions import TerminatedError
from temporalio.service import RPCError, RPCStatusCode


async def find_run(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Return what the server knows of the last run of a workflow id; None if there is none."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None


async def next_run(client: Client, workflow_id: str, run_id: str) -> str | None:
    """Return the run that goes on from one that continued as new, or was reset; the run itself if it is not over."""
    run, last = client.get_workflow_handle(workflow_id, run_id=run_id), client.get_workflow_handle(workflow_id)
    over, latest = await run.describe(), await last.describe()
    if over.status == WorkflowExecutionStatus.RUNNING:
        return run_id
    if over.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
        closing = run.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
        async for event in closing:
            return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    is_reset = over.status == WorkflowExecutionStatus.TERMINATED and latest.run_id != run_id
    return latest.run_id if is_reset and latest.raw_info.first_run_id == over.raw_info.first_run_id else None


async def end_of(client: Client, workflow_id: str, run_id: str | None = None) -> dict[str, Any]:
    """Wait for the result of a run, the last one if none is named.

    A reset ends a run for Temporal, and another goes on from it: then this waits for the result of that one.

    Raises:
        WorkflowFailureError: it failed, or was cancelled or terminated.
    """
    run_id = run_id or (await client.get_workflow_handle(workflow_id).describe()).run_id
    while True:
        try:
            result: dict[str, Any] = await client.get_workflow_handle(workflow_id, run_id=run_id).result()
        except WorkflowFailureError as error:
            if not isinstance(error.cause, TerminatedError):
                raise
            if (run_id := await next_run(client, workflow_id, str(run_id))) is None:
                raise
        else:
            return result


async def cancelled_end(client: Client, workflow_id: str) -> None:
    """Cancel a run that is not over, and wait for its end."""
    with suppress(RPCError):  # it has ended
        await client.get_workflow_handle(workflow_id).cancel()
    with suppress(WorkflowFailureError):
        await end_of(client, workflow_id)
