"""Marks sessions in the store while a workflow works on them, so that no other run of either driver begins."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from standfast.errors import SessionConflictError
from standfast.stores.deletion import NotedRun
from standfast.stores.protocol import DurableStore, Session, has_deletion
from standfast.stores.workers import AtWork
from standfast.temporal.client.runs.ended_runs import find_run
from standfast.temporal.wire.activity_types import Located

T = TypeVar("T")
_MOST = 100  # marks that are checked in one pass
LATE = timedelta(hours=1)  # after a run's end in which its activities may still write; a model call has 15 minutes


def mark(reference: Located) -> AtWork:
    """Return the mark of the run that an activity works for."""
    info = activity.info()
    return AtWork(
        session_id=reference["session"],
        namespace=info.namespace,
        workflow_id=info.workflow_id or "",
        journal_key=reference["run"],
    )


async def begin_work(store: DurableStore, reference: Located) -> None:
    """Mark a run's session, unless the workflow that marked it before is still running.

    Raises:
        SessionConflictError: naming that workflow.
    """
    ours = mark(reference)
    theirs = await store.begin_work(ours)
    while theirs != ours:
        if (theirs.namespace, theirs.workflow_id) == (ours.namespace, ours.workflow_id):
            # Only the latest run of a workflow id can be running. This activity may be of an earlier one.
            latest = await find_run(activity.client(), ours.workflow_id)
            is_free = latest is None or _is_own_and_running(latest)
        else:
            is_free = not await is_running(activity.client(), theirs)
        if not is_free:
            raise SessionConflictError(f"Session {ours.session_id} has a run in flight: workflow {theirs.workflow_id}")
        theirs = await store.begin_work(ours, instead_of=theirs)


async def note_run(store: DurableStore, reference: Located) -> None:
    """Note which run works for a session, or for none, so that all stored data of the run can be found and deleted."""
    if has_deletion(store):
        info = activity.info()
        await store.note_run(
            NotedRun(
                journal_key=reference["run"],
                session_id=reference.get("session"),
                namespace=info.namespace,
                workflow_id=info.workflow_id or "",
            )
        )


async def check_writer(session: Session) -> None:
    """Refuse a session while the workflow that last wrote to it is still running: it may receive more messages.

    Raises:
        SessionConflictError: naming that workflow.
    """
    info, client = activity.info(), activity.client()
    writer = AtWork(
        session_id=session.id, namespace=client.namespace, workflow_id=session.workflow_id or "", journal_key=""
    )
    if writer.workflow_id not in ("", info.workflow_id) and await is_running(client, writer):
        raise SessionConflictError(f"Session {session.id} has a run in flight: workflow {writer.workflow_id}")


async def write_at_work(write: Callable[[], Awaitable[T]], store: DurableStore, reference: Located) -> T:
    """Write to a run's session. A run that was reset after its end was seen marks its session again first.

    Raises:
        SessionConflictError: another writer has written since, or the run has ended.
    """
    try:
        return await write()
    except SessionConflictError:
        if all(work.ended_at is None for work in await store.find_work(reference["session"])):
            raise
        latest = await find_run(activity.client(), activity.info().workflow_id or "")
        if latest is None or not _is_own_and_running(latest):
            raise
    await begin_work(store, reference)
    return await write()


def _is_own_and_running(run: WorkflowExecutionDescription) -> bool:
    return run.run_id == activity.info().workflow_run_id and run.status == WorkflowExecutionStatus.RUNNING


async def end_work(store: DurableStore, reference: Located) -> None:
    """Remove the mark of a run that will not write any more."""
    await store.end_work(mark(reference))


async def is_running(client: Client, work: AtWork) -> bool:
    """Whether a workflow is running; True if that is unknown."""
    if work.namespace != client.namespace:
        return True
    found = await find_run(client, work.workflow_id)
    return found is not None and found.status == WorkflowExecutionStatus.RUNNING


async def drop_ended(client: Client, store: DurableStore, after: str) -> str:
    """Free the sessions of workflows that were terminated or failed; return the session after which to continue.

    Their marks refuse late writes for a while, since the next run may be in process, and has no mark.
    """
    marks = [work for work in await store.find_work() if work.session_id > after][:_MOST]
    for work in marks:
        if work.ended_at is not None:
            if datetime.now(UTC) - work.ended_at > LATE:
                await store.end_work(work)
        elif not await is_running(client, work):
            await store.begin_work(work.ended(), instead_of=work)
    return marks[-1].session_id if len(marks) == _MOST else ""
