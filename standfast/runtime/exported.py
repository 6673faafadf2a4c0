"""Finds the session in which an export goes on: its own, so that nothing that its run does later is done twice."""

from standfast.checkpoints import Checkpoint
from standfast.errors import InputError, SessionAccessDeniedError
from standfast.runtime.at_work import check_not_at_work
from standfast.runtime.inputs import RunInput
from standfast.stores.protocol import AgentStore, session_id_of, session_key_of


async def exported_session(store: AgentStore, checkpoint: Checkpoint | None) -> tuple[str | None, bool]:
    """Return the key of the session that a checkpoint was exported from, and whether this store has it.

    It is None if the checkpoint is no export, or the store has another session under that id. A run that has answered
    nothing yet has marked its session as its own, and not written it.
    """
    exported = None if checkpoint is None else checkpoint.exported_from
    if exported is None:
        return None, False
    key = exported.rpartition("@")[0]
    session = await store.load_session(key)
    return key if session is None or session.key == exported else None, session is not None


async def at_home(
    given: RunInput, store: AgentStore | None, session_id: str | None, tenant_id: str | None
) -> tuple[RunInput, str | None]:
    """Return what was given, and the session to run; of an export its own, unless another one is named.

    Raises:
        InputError: the store has another session under its id.
        SessionAccessDeniedError: it is another tenant's.
        SessionConflictError: another one is named, and a Temporal run is at work on its own.
    """
    if given.checkpoint is None or given.checkpoint.exported_from is None or store is None or not store.durable:
        return given, given.session_for(session_id, store is not None)
    key, is_stored = await exported_session(store, given.checkpoint)
    name = session_id_of(given.checkpoint.exported_from.rpartition("@")[0])
    if session_id not in (None, name):
        if key is not None:
            await check_not_at_work(store, key)
        return given, session_id
    if key is None:
        raise InputError(f"Session {name} has messages of its own: give the checkpoint another session_id")
    if session_key_of(tenant_id, name) != key:
        raise SessionAccessDeniedError(name)
    return given.in_session(name) if is_stored else given, name
