"""Detects that a store is older than a run: it was restored from a backup, or has lost acknowledged writes.

A run knows the number of its session's last message, the recorded turns, and the calls that have a result. A store that
lacks one of these is behind the run. The activity that detects this begins a new epoch: see
`runtime.restored_stores`.
"""

from contextlib import suppress
from functools import partial
from typing import Literal

from temporalio import activity

from standfast.errors import InputError, StandfastError, StoreBehindError
from standfast.runtime.call_ledger import claim_next, last_dispatch
from standfast.runtime.restored_stores import current_epoch
from standfast.stores.protocol import DurableStore, Session, session_id_of
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import RunReference
from standfast.temporal.wire.turn_records import TurnRecord, read_record

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
    if activity.info().activity_type == names.CALL_MODEL:
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
