"""Begins runs on Temporal from checkpoints: in the exported session, or in another if the exported one is at rest."""

from collections.abc import Sequence
from typing import cast

from temporalio import activity

from standfast.agents import Agent
from standfast.checkpoints import Checkpoint
from standfast.errors import SessionConflictError
from standfast.messages import Message
from standfast.runtime.at_work import is_held
from standfast.runtime.exported import check_exported_from, exported_session
from standfast.runtime.inputs import RunInput
from standfast.stores.protocol import DurableStore, Session, session_id_of
from standfast.temporal.activities.at_work import is_running
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire.inputs import AgentInput, Said, said_by_user


def read_checkpoint(host: AgentHost, agent: Agent, given: AgentInput) -> RunInput:
    """Read the checkpoint from which a run continues."""
    limit, key = agent.loop.max_message_bytes, host.checkpoint_key
    return RunInput.read(None, None, given.checkpoint, None, limit=limit, agent=agent.name, key=key)


def unanswered_in_export(
    host: AgentHost, agent: Agent, given: AgentInput, session: Session, messages: Sequence[Message]
) -> list[Said]:
    """Return the messages in a session's own export that are missing from the session: they were never answered.

    Raises:
        InputError: it is not an export of this session.
    """
    brought = read_checkpoint(host, agent, given)
    check_exported_from(cast(Checkpoint, brought.checkpoint), session)
    unwritten = brought.in_session(session_id_of(session.id)).not_in(list(messages))
    return [said_by_user(message.content, message.images, message.by) for message in unwritten]


async def check_at_rest(store: DurableStore, checkpoint: Checkpoint, session: str) -> None:
    """Refuse to continue from the export of another session while that session has a run in flight.

    Raises:
        SessionConflictError: it has one.
    """
    key = await exported_session(store, checkpoint)
    if key is None or key == session:
        return
    name, client = session_id_of(key), activity.client()
    for work in await store.find_work(key):
        if await is_running(client, work):
            raise SessionConflictError(
                f"Session {name}, which was exported, has a run in flight, workflow {work.workflow_id}: cancel it first"
            )
    if await is_held(store, key):
        raise SessionConflictError(f"Session {name}, which was exported, has a run in flight in a process")
