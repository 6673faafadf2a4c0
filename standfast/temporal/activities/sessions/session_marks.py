"""Marks sessions in the store while a workflow works on them, so that no other run of either driver begins.

It also detects that a store is older than a run: it was restored from a backup, or has lost acknowledged writes. A run
knows the number of its session's last message, the recorded turns, and the calls that have a result. A store that lacks
one of these is behind the run. The activity that detects this begins a new epoch: see `runtime.restored_stores`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from standfast.errors import InputError, SessionConflictError, StandfastError, StoreBehindError
from standfast.runtime.call_ledger import claim_next, last_dispatch
from standfast.runtime.restored_stores import current_epoch
from standfast.stores.deletion import NotedRun
from standfast.stores.protocol import DurableStore, Session, has_deletion, session_id_of
from standfast.stores.workers import AtWork
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.client.runs.ended_runs import find_run
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Located, RunReference
from standfast.temporal.wire.turn_records import TurnRecord, read_record

T = TypeVar("T")
_MOST = 20  # marks that are checked in one pass, every three seconds; each is a request to the server
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


LOST = "a run that the store has lost"  # the owner of calls that may have run after the backup


async def check_session(host: AgentHost, reference: RunReference, session: Session | None) -> None:
    """Check that a session has all messages that its run has seen in it.

    Raises:
        StoreBehindError: it was restored to an earlier state, or is not there yet.
    """
    seq = reference["seq"]
    if not seq or (session is not None and session.last_seq >= seq):
        return
    run, turn = reference["run"], reference["turn"]
    if activity.info().activity_type in (names.CALL_MODEL, names.STRETCH):
        turn -= 1  # the one that the run knows
    kept = await host.store.load_reply(run, turn) if turn else ""
    if session is None and kept is not None:
        return  # its records are there: it was deleted
    if session is not None and kept:
        record = read_record(run, turn, kept)
        if not record.key.startswith(f"{session.key}/"):
            return  # deleted and created again
    has = 0 if session is None else session.last_seq
    what = f"the run knows {seq} messages of session {session_id_of(reference['session'])}, and the store has {has}"
    raise await host.records.behind(run, what)


async def check_conflict(host: AgentHost, reference: RunReference, error: StandfastError) -> None:
    """Check whether a write was refused because the store is behind its run, rather than because of another writer.

    Raises:
        StoreBehindError: it is behind.
    """
    try:
        await check_session(host, reference, await host.store.load_session(reference["session"]))
    except StoreBehindError as found:
        raise found from error


async def finish_call(
    store: DurableStore,
    scope: str,
    key: str,
    *,
    owner: str,
    arguments_hash: str,
    state: Literal["done", "failed"],
    result: str,
) -> bool:
    """Record the result of a call, even if the store was restored during the handler and lacks the call's entry."""
    finish = partial(store.finish, scope, key, owner=owner, state=state, result=result)
    with suppress(InputError):
        if await finish():
            return True
    if await store.load_entries(scope, [key]):
        return False
    await store.claim(scope, key, owner=owner, arguments_hash=arguments_hash)
    return await finish()


async def claim_if_lost(host: AgentHost, record: TurnRecord, position: int, dispatch: int) -> None:
    """Claim a call without an entry if its claim may have been lost: the call must never count as unstarted.

    Args:
        dispatch: the number of the last dispatch that the run knows.
    """
    call, store = record.calls[position], host.store
    tool = record.tools.get(call.name)
    if tool is not None and "safe_to_retry" in tool.facts:
        return
    if await last_dispatch(store, record.key, position, call.id) >= dispatch:
        return
    host.records.epoch = await current_epoch(store)
    if record.epoch < host.records.epoch:
        await claim_next(store, record.key, position, call.id, owner=LOST)
