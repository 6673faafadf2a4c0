"""Queries all waiting runs for their items, where the board does not have them."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from standfast.errors import InputError
from standfast.temporal.client.items import read_items, unreadable
from standfast.temporal.client.runs import answer, runs_query
from standfast.temporal.wire import names

_PATIENCE = timedelta(seconds=2)
_AT_ONCE = 32  # runs that are queried; with more, each answer would take too long


async def ask_all(client: Client, group: str | None, limit: int | None) -> list[dict[str, Any]]:
    """Return the waiting items that the runs themselves report.

    Args:
        limit: the number of runs, the last started first; all if None.
    """
    query, few = runs_query(waiting=True, group=group), asyncio.Semaphore(_AT_ONCE)
    runs = [run.id async for run in client.list_workflows(query, limit=limit)]
    pending = await asyncio.gather(*(_pending_soon(client, run, few) for run in runs))
    return [{**item, "workflow_id": run} for run, items in zip(runs, pending, strict=True) for item in items]


async def _pending_soon(client: Client, workflow_id: str, few: asyncio.Semaphore) -> list[dict[str, Any]]:
    """Query a run, but not for long: a queue without a worker must not hide the items of others."""
    try:
        async with few:
            return read_items(await answer(client, client.get_workflow_handle(workflow_id), names.PENDING, _PATIENCE))
    except InputError as error:
        return [unreadable(str(error))]
    except (RPCError, WorkflowQueryFailedError) as error:
        return [{"kind": "unreachable", "name": "", "message": f"no worker answers for this run: {error}"}]
