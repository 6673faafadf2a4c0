"""How runs look from outside: what the server lists of one, how far it says it is, what it came to."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from holdfast.errors import HoldfastError, InputError
from holdfast.temporal import names

_PATIENCE = timedelta(seconds=5)  # for an answer of a worker; there may be none
_EVERY = 0.3  # seconds between two looks at a run
DONE = ("complete",)  # what a run ends with that went well


def listed(run: WorkflowExecution) -> dict[str, Any]:
    """Return what the server lists of a run, as JSON data."""
    attributes = {pair.key.name: pair.value for pair in run.typed_search_attributes}
    ended = run.status is not None and run.status.name != "RUNNING"
    status = str(attributes.get(names.STATUS_ATTRIBUTE) or "running")
    if ended and status in ("running", "waiting", "paused"):  # it did not get to say how
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
        "tenant_id": attributes.get(names.TENANT_ATTRIBUTE),
        "deadline": _time(deadline if isinstance(deadline, datetime) else None),
        "started": _time(run.start_time),
        "closed": _time(run.close_time),
    }
    return {name: value for name, value in found.items() if value is not None}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")


async def looked_at(client: Client, workflow_id: str) -> dict[str, Any]:
    """Return all that is known of a run: what is listed, its `state`, and its `result` or `error` if it has ended.

    What is tried again stands in `retries`, with why it failed before.

    Raises:
        InputError: there is none.
    """
    run = await described(client, workflow_id)
    seen = listed(run)
    if "closed" in seen:
        return seen | await _end(client, workflow_id, run.run_id)
    if retries := [_retry(item) for item in run.raw_description.pending_activities if item.attempt > 1]:
        seen["retries"] = retries
    try:
        return seen | {"state": await _state(client, workflow_id)}
    except HoldfastError as error:
        return seen | {"unreachable": str(error)}


def _retry(pending: Any) -> dict[str, Any]:
    return {
        "activity": pending.activity_type.name,
        "attempt": pending.attempt,
        "error": pending.last_failure.message,
    }


async def described(client: Client, workflow_id: str) -> WorkflowExecutionDescription:
    """Return what the server knows of a run.

    Raises:
        InputError: there is none.
    """
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
        raise InputError(
            f"There is no run {workflow_id!r} in namespace {client.namespace}; `holdfast ls` lists those that are"
        ) from error


async def _state(client: Client, workflow_id: str) -> dict[str, Any]:

    try:
        handle = client.get_workflow_handle(workflow_id)
        state: dict[str, Any] = await handle.query(names.STATUS, rpc_timeout=_PATIENCE)
    except (RPCError, WorkflowQueryFailedError) as error:
        raise HoldfastError(f"No worker answers for run {workflow_id}: {error}") from error
    return state


async def _end(client: Client, workflow_id: str, run_id: str) -> dict[str, Any]:

    try:
        return {"result": await client.get_workflow_handle(workflow_id, run_id=run_id).result()}
    except WorkflowFailureError as error:
        return {"error": str(error.cause)}


async def watched(client: Client, workflow_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yield a run whenever it looks otherwise than before, the last time when it has ended."""
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
    """Return how a run ended: its own word for it, or Temporal's."""
    result = seen.get("result")
    return str(result["status"]) if isinstance(result, dict) and "status" in result else str(seen["status"])
