"""Begins a run's state from its session, or from the session that an export continues."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from standfast.agent_loop import LoopState, ToolFacts, last_speaker, next_speaker
from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, Question
from standfast.errors import InputError, SessionAccessDeniedError
from standfast.messages import Message, Usage
from standfast.runtime.inputs import RunInput
from standfast.runtime.session_marks import check_not_at_work
from standfast.stores.protocol import AgentStore, Session, session_id_of, session_key_of


def begin_state(
    agent: Agent,
    messages: Sequence[Message],
    questions: tuple[Question, ...],
    *,
    recovering: bool,
    used: Usage | None,
    tools: Mapping[str, ToolFacts] | None = None,
    checkpoint: Checkpoint | None = None,
) -> LoopState:
    """Return the state in which a transcript leaves its agent.

    Args:
        questions: the questions that are stored with it.
        recovering: whether an earlier run may have started its unanswered calls.
        used: the usage of all runs of the session.
        tools: facts that replace the tool facts of the agent that gave the last answer.
        checkpoint: the checkpoint from which the run continues; its model calls and usage count.

    Raises:
        InputError: the conversation is with an agent to which this one does not hand over.
    """
    speaker = next_speaker(agent, messages)
    state = LoopState(
        loop=agent.loop,
        tools=agent.speaking(last_speaker(messages)).tool_map if tools is None else tools,
        on_terminal_tool_error=agent.on_terminal_tool_error,
        fallbacks=tuple(agent.speaking(speaker).fallback_models),
        agent=speaker,
        speakers={name: tuple(one.fallback_models) for name, one in agent.speakers.items()},
        session_usage=used if agent.loop.has_session_budget else None,
    )
    if checkpoint is not None:
        usage = checkpoint.usage if checkpoint.usage.total_tokens else None
        state = replace(state, iterations=checkpoint.iterations, usage=usage)
    return state.fold(messages, recovering=recovering, questions=questions)


async def exported_session(store: AgentStore, checkpoint: Checkpoint) -> str | None:
    """Return the key of the session that a checkpoint was exported from; the store may not have it yet.

    It is None if the checkpoint is not an export, or if the store has a different session under that id. A run without
    an answer yet has marked its session as its own, and has not written it.
    """
    if checkpoint.exported_from is None:
        return None
    key = checkpoint.exported_from.rpartition("@")[0]
    session = await store.load_session(key)
    return key if session is None or session.key == checkpoint.exported_from else None


def check_exported_from(checkpoint: Checkpoint, session: Session) -> None:
    """Refuse to continue in a session that a checkpoint was not exported from.

    Raises:
        InputError: the checkpoint was not exported from it.
    """
    if checkpoint.exported_from != session.key:
        name = session_id_of(session.id)
        raise InputError(f"Session {name} has its own messages: give the checkpoint another session_id")


async def at_home(
    given: RunInput, store: AgentStore | None, session_id: str | None, tenant_id: str | None
) -> tuple[RunInput, str | None]:
    """Return the given input, and the session to run: an export's own, unless another one is named.

    Raises:
        InputError: the store has another session under its id.
        SessionAccessDeniedError: it belongs to another tenant.
        SessionConflictError: another one is named, and a Temporal run is working on its own.
    """
    checkpoint = given.checkpoint
    if checkpoint is None or checkpoint.exported_from is None or store is None or not store.durable:
        return given, given.session_for(session_id, store is not None)
    key = checkpoint.exported_from.rpartition("@")[0]
    name = session_id_of(key)
    if session_id not in (None, name):
        if await exported_session(store, checkpoint) is not None:
            await check_not_at_work(store, key)
        return given, session_id
    session = await store.load_session(key)
    if session is not None:
        check_exported_from(checkpoint, session)
    if session_key_of(tenant_id, name) != key:
        raise SessionAccessDeniedError(name)
    return given if session is None else given.in_session(name), name
