"""Begins a run's state from its session."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from standfast.agent_loop import LoopState, ToolFacts, last_speaker, next_speaker
from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, Question
from standfast.messages import Message, Usage


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
