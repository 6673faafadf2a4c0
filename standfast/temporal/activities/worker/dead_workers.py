"""Finds the activities of dead workers, and reports them to Temporal at once, without waiting for heartbeats.

A worker holds its own name in the store for as long as it lives. If another process can take the name, the worker is
dead: this needs no clock and no process table.
"""

import base64
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import StoreError
from standfast.runtime.restored_stores import current_epoch
from standfast.runtime.session_states import scope_of
from standfast.runtime.tasks import repeating
from standfast.stores.protocol import DurableStore, RunningCall
from standfast.temporal.activities.sessions.session_marks import drop_ended
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names

_LOG = logging.getLogger("standfast")
LOOK_EVERY = 1.0  # seconds, unless the store has another value; one read of a table that is nearly always small
MARKS_EVERY = 3  # passes; each asks the server about every session with a mark


@asynccontextmanager
async def watch_for_lost_calls(client: Client, host: AgentHost) -> AsyncIterator[None]:
    """Keep this worker marked as alive, and report the calls of dead workers."""
    with contextlib.suppress(StoreError):  # otherwise as soon as the store is there
        await become_known(host)
    looks, after = itertools.count(), ""

    async def look() -> None:
        nonlocal after
        await become_known(host)
        await report_lost_calls(client, host)
        if next(looks) % MARKS_EVERY == 0:
            after = await drop_ended(client, host.store, after)
            host.records.epoch = await current_epoch(host.store, looks=False)  # its place was checked when it began

    every = getattr(host.store, "look_every", LOOK_EVERY)
    try:
        async with repeating(look, every, "The check for lost calls failed", expected=RPCError):
            yield
    finally:
        if host.identity.is_known and host.is_last:  # another worker of the same plugin continues under the name
            host.identity.is_known = False
            await host.store.drop_worker(host.identity.name)
            await host.store.let_go(host.identity.name)


async def become_known(host: AgentHost) -> None:
    """Mark this worker as alive before it begins a call: other workers would treat the call as a dead worker's."""
    if host.identity.is_known:
        return
    host.identity.scope = await host.store.hold_scope()
    await host.store.hold(host.identity.name)
    await host.store.add_worker(host.identity.name)
    host.identity.is_known = True
    if not host.identity.scope:
        _LOG.info("Calls of dead workers are detected by their heartbeats: this store's holds do not show them")


async def report_lost_calls(client: Client, host: AgentHost) -> int:
    """Fail the calls of dead workers once; return their number.

    The record of a call that this worker no longer runs is removed: the store was away when the call ended, or its
    reply to the claim was lost.
    """
    calls, store = await host.store.running_calls(), host.store
    for call in calls:
        if call.worker == host.identity.name and not host.identity.has_in_hand(call):
            await store.end_call(call.owner)
    lost, scope = 0, scope_of(host.identity.name)
    for name in sorted({call.worker for call in calls} - {host.identity.name}):
        if not scope or scope_of(name) != scope or not await store.hold(name):
            continue  # alive, or another worker is reporting its calls; or this process cannot tell
        try:
            for call in calls:
                if call.worker == name:
                    await _report(client, store, call)
                    lost += 1
        finally:
            await store.let_go(name)
    return lost


async def _report(client: Client, store: DurableStore, call: RunningCall) -> None:
    handle = client.get_async_activity_handle(task_token=base64.b64decode(call.task_token))
    error = ApplicationError(
        f"The worker {call.worker} died while it ran this",
        type=names.WORKER_DIED,
        next_retry_delay=timedelta(milliseconds=1),
    )
    # First, or the next workflow task would go to the dead worker's own queue and wait there (2 s, measured).
    await _tell_server(
        call,
        client.workflow_service.reset_sticky_task_queue(
            ResetStickyTaskQueueRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=call.workflow_id, run_id=call.run_id),
            )
        ),
    )
    await _tell_server(call, handle.fail(error))
    await store.end_call(call.owner)


async def _tell_server(call: RunningCall, request: Awaitable[object]) -> None:
    try:
        await request
    except (RPCError, AsyncActivityCancelledError) as error:
        if isinstance(error, RPCError) and error.status != RPCStatusCode.NOT_FOUND:
            raise  # the server is away; the call is reported when it is back
        _LOG.debug("Call of %s was already settled: %s", call.workflow_id, error)
