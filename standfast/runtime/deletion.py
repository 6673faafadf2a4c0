"""Deletes a session for a person, unless a run is working on it, and records that on the audit trail."""

from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from standfast.errors import SessionConflictError, SessionNotFoundError
from standfast.runtime.cancellation import uninterrupted
from standfast.runtime.session_marks import check_not_at_work, hold
from standfast.stores.capabilities import has_deletion, has_ledger
from standfast.stores.protocol import ActOutcome, AgentStore, DecisionRecord, Session, session_id_of


async def delete_session(
    store: AgentStore, session_id: str, *, keep_decisions: bool = False, by: str | None = None
) -> Session:
    """Delete a session with all stored data of its runs, and return it.

    Args:
        session_id: as `session_key_of` returns it.
        keep_decisions: keeps who decided what and when; see `Deletion.delete_session`.
        by: the person who deletes it; the audit trail records the act before and after.

    Raises:
        SessionNotFoundError: there is none.
        SessionConflictError: a run is working on it.
    """
    if not await hold(store, session_id):
        raise SessionConflictError(
            f"Session {session_id_of(session_id)} has a run in flight; wait for it to end, then delete it"
        )
    try:
        session = await store.load_session(session_id)
        if session is None:
            raise SessionNotFoundError(session_id_of(session_id))
        await check_not_at_work(store, session_id)
        act = uuid4().hex
        await _record(store, session, "intended", act, by)
        if has_deletion(store):
            await store.delete_session(session_id, keep_decisions=keep_decisions)
        else:
            await store.delete_session(session_id)
        await _record(store, session, "done", act, by)
        return session
    finally:
        await uninterrupted(partial(store.let_go, session_id))


async def _record(store: AgentStore, session: Session, outcome: ActOutcome, act: str, by: str | None) -> None:
    if not has_ledger(store):
        return
    run = str(session.journal_key or "").rpartition("/")[0]
    await store.record_decision(
        DecisionRecord(
            journal_key=run or f"{session.agent_name}/{session.id}",  # the place of its other decisions
            gate="",
            at=datetime.now(UTC),
            decision="delete",
            by=by,
            key=act if outcome == "intended" else None,
            act_id=act,
            outcome=outcome,
        )
    )
