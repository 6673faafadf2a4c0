"""Begins a run's state from its session, or the session of an export, and finds other runs at work on a session."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from standfast.agent_loop import LoopState, ToolFacts, last_speaker, next_speaker
from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, Question
from standfast.errors import InputError, SessionAccessDeniedError, SessionConflictError
from standfast.messages import Message, Usage
from standfast.runtime.inputs import RunInput
from standfast.runtime.tasks import uninterrupted
from standfast.stores.protocol import AgentStore, DurableStore, Session, session_id_of, session_key_of

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
