"""Finds the session whose run was exported as a checkpoint: where a store has it, the checkpoint goes on there."""

from standfast.checkpoints import Checkpoint
from standfast.errors import SessionAccessDeniedError
from standfast.runtime.at_work import check_not_at_work
from standfast.runtime.inputs import RunInput
from standfast.stores.protocol import AgentStore, Session, session_id_of, session_key_of


async def exported_session(store: AgentStore | None, checkpoint: Checkpoint | None) -> Session | None:
    """Return the session that a checkpoint was exported from, if this store has it."""
    if store is None or checkpoint is None or checkpoint.exported_from is None:
        return None
    session = await store.load_session(checkpoint.exported_from.rpartition("@")[0])
    return session if session is not None and session.key == checkpoint.exported_from else None


async def at_home(
    given: RunInput, store: AgentStore | None, session_id: str | None, tenant_id: str | None
) -> tuple[RunInput, str | None]:
    """Return what was given, and the session to run; of an export its own, unless another one is named.

    Raises:
        SessionAccessDeniedError: it is another tenant's.
        SessionConflictError: another one is named, and a Temporal run is at work on its own.
    """
    if store is not None and (session := await exported_session(store, given.checkpoint)) is not None:
        exported = session_id_of(session.id)
        if session_id not in (None, exported):
            await check_not_at_work(store, session.id)
        elif session_key_of(tenant_id, exported) != session.id:
            raise SessionAccessDeniedError(exported)
        else:
            given = given.in_session(exported)
    return given, given.session_for(session_id, store is not None)
