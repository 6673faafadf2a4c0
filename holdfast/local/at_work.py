"""Who is at work on a session, and which workers live: asked of the store by both drivers."""

from typing import cast

from holdfast.errors import SessionConflictError
from holdfast.stores.protocol import AgentStore, DurableStore


async def check_not_at_work(store: AgentStore, session_id: str) -> None:
    """Refuse a session that a Temporal run is at work on, as long as a worker lives that may go on with it.

    Otherwise the session is free; a mark that is left over is dropped by the next worker. To be asked by who holds the
    session.

    Raises:
        SessionConflictError: naming the workflow.
    """
    if not hasattr(store, "find_work"):  # it is for runs in process alone
        return
    store = cast(DurableStore, store)
    for work in await store.find_work(session_id):
        own = await store.hold_scope()
        for worker in await store.list_workers():
            if await is_alive(store, worker, own):
                raise SessionConflictError(
                    f"Session {session_id} has a run in flight on Temporal: workflow {work.workflow_id}. Wait for "
                    "its end, cancel it, or send it the message"
                )
            await store.drop_worker(worker)


def scope_of(worker: str) -> str:
    """Return by which holds others can tell whether a worker lives; its name ends with it."""
    return worker.rpartition("_")[2]


async def is_alive(store: AgentStore, worker: str, scope: str) -> bool:
    """Whether a worker lives; True where nobody can tell.

    Args:
        scope: of the holds that are seen here.
    """
    if not scope or scope_of(worker) != scope or not await store.hold(worker):
        return True
    await store.let_go(worker)
    return False


async def may_run(store: DurableStore, owner: str | None, scope: str) -> bool:
    """Whether an attempt that has claimed a call may still be running."""
    running = [call for call in await store.running_calls() if call.owner == owner]
    if not running:  # it has ended, or its worker was found dead, if it was known at all
        return not scope
    return await is_alive(store, running[0].worker, scope)
