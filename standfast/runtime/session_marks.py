"""Finds the run that is working on a session, and the workers that are alive, in the store; for both drivers."""

import asyncio
from functools import partial
from typing import cast

from standfast.errors import SessionConflictError
from standfast.runtime.cancellation import uninterrupted
from standfast.stores.protocol import AgentStore, DurableStore

_LOOKS = (0.01, 0.05, 0.2)  # seconds between tries: a look (`is_held`) takes microseconds once it runs


async def hold(store: AgentStore, name: str) -> bool:
    """Hold a session or a worker's name; False if another holder is working on it, and not merely checking."""
    for delay in _LOOKS:
        if await store.hold(name):
            return True
        await asyncio.sleep(delay)
    return await store.hold(name)


async def is_held(store: AgentStore, name: str) -> bool:
    """Whether a session or a worker's name is held."""
    if not await hold(store, name):
        return True
    await uninterrupted(partial(store.let_go, name))
    return False


async def check_not_at_work(store: AgentStore, session_id: str) -> None:
    """Refuse a session that a Temporal run is working on, as long as a worker lives that may continue it.

    Otherwise the session is free; the next worker drops a mark that was left over. Only the holder of the session may
    ask.

    Raises:
        SessionConflictError: naming the workflow.
    """
    if not hasattr(store, "find_work"):  # the store is only for in-process runs
        return
    store = cast(DurableStore, store)
    for work in await store.find_work(session_id):
        if work.ended_at is not None:
            continue
        own = await store.hold_scope()
        for worker in await store.list_workers():
            if await is_alive(store, worker, own):
                raise SessionConflictError(
                    f"Session {session_id} has a run in flight on Temporal: workflow {work.workflow_id}. Wait for "
                    "its end, cancel it, or send it the message"
                )
            await store.drop_worker(worker)


def scope_of(worker: str) -> str:
    """Return the scope of the holds that show whether a worker is alive; the worker's name ends with it."""
    return worker.rpartition("_")[2]


async def is_alive(store: AgentStore, worker: str, scope: str) -> bool:
    """Whether a worker is alive; True if that is unknown.

    Args:
        scope: the scope of the holds that this process sees.
    """
    return not scope or scope_of(worker) != scope or await is_held(store, worker)


async def may_run(store: DurableStore, owner: str | None, scope: str) -> bool:
    """Whether an attempt that has claimed a call may still be running."""
    running = [call for call in await store.running_calls() if call.owner == owner]
    if not running:  # it has ended, or its worker was found dead, or it was never recorded
        return not scope
    return await is_alive(store, running[0].worker, scope)
