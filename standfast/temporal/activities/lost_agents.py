"""Looks for agents that were called by a lost run; what they did is in sessions of their own."""

import asyncio

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from standfast.runtime.dispatches import has_started
from standfast.temporal.activities.at_work import is_running
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AgentEnd, LostReference
from standfast.temporal.wire.results import LOST

_LOOK_EVERY = 0.3  # seconds; one that was cancelled with its run has ended soon


async def lost_agent(host: AgentHost, reference: LostReference) -> AgentEnd | None:
    """Return that the agent of a call goes on; None if a run in process had it, and nobody knows what it did there.

    It is waited for while its workflow runs: it was cancelled when the run that called it was closed.
    """
    record = await host.load_record(reference["run"], reference["turn"])
    position = reference.get("position", 0)
    call, child = record.calls[position], reference["child"]
    parent = await host.store.load_session(reference["session"])
    started_by = None if parent is None else parent.workflow_id
    while await _is_asked(started_by, call.id, reference["asked"]) or await _is_at_work(host, child):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY)
    session = await host.store.load_session(child)
    if session is None and await has_started(host.store, record.key, position, call.id):
        return None
    if session is not None and session.user_id not in (None, record.user_id):
        return None
    return dict(LOST)


async def _is_asked(parent: str | None, call_id: str, asked: str) -> bool:
    """Whether the child that the lost run has started for the call still runs, be its session open or not."""
    if parent is None:
        return False
    child = activity.client().get_workflow_handle(names.child_id(parent, call_id))
    try:
        described = await child.describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    ours = await described.memo_value(names.ASKED_MEMO, default=None) == asked
    return ours and described.status is WorkflowExecutionStatus.RUNNING


async def _is_at_work(host: AgentHost, child: str) -> bool:
    client = activity.client()
    return any([await is_running(client, work) for work in await host.store.find_work(child)])
