"""Calls hooks, and makes the contexts of handlers, whose keys depend on the place of each call in its session."""

from collections.abc import Callable, Sequence

from standfast.agent_loop import last_answer
from standfast.agents import AgentContext
from standfast.messages import Message, ToolCall
from standfast.runtime.users_functions import call_users
from standfast.tools import AgentInvoker, ToolContext
from standfast.tools.attempts import idempotency_key, turn_scope


async def call_hook(hook: Callable[[AgentContext], object] | None, context: AgentContext) -> None:
    """Call a hook of the agent, if it has that hook."""
    if hook is not None:
        await call_users(hook, context)


def tool_contexts(
    transcript: Sequence[Message],
    last_seq: int,
    *,
    journal_key: str,
    session_id: str | None,
    who: AgentContext,
    invoker: Callable[[str, str], AgentInvoker],
) -> Callable[[ToolCall, int], ToolContext]:
    """Return a function that makes the context of an attempt at a call of the last turn.

    Args:
        last_seq: the number of the transcript's last message in its session.
        journal_key: what the keys of all calls begin with.
        invoker: makes, for the key and the id of a call, what runs agents for it.
    """
    scope, positions = coordinates(transcript, last_seq, journal_key)

    def context(call: ToolCall, attempt: int) -> ToolContext:
        key = idempotency_key(scope, positions[call.id], call.id)
        return ToolContext(
            agent_name=who.agent.name,
            agent_id=who.agent.id,
            session_id=session_id,
            tool_call_id=call.id,
            idempotency_key=key,
            user_id=who.user_id,
            tenant_id=who.tenant_id,
            attempt=attempt,
            agents=invoker(key, call.id),
            deps=who.deps,
        )

    return context


def coordinates(transcript: Sequence[Message], last_seq: int, journal_key: str) -> tuple[str, dict[str, int]]:
    """Return the beginning of the keys of the last turn's calls, and the places of the calls by id."""
    at = last_answer(transcript) or 0
    positions = {call.id: position for position, call in enumerate(transcript[at].tool_calls or ())}
    return turn_scope(journal_key, last_seq - (len(transcript) - 1 - at)), positions
