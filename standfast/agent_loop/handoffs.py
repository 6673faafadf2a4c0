"""Decides which agent has a conversation: the one that answered last, or the one that it handed over to."""

import json
from collections.abc import Mapping, Sequence

from standfast.agent_loop.actions import Settled
from standfast.agent_loop.tool_facts import CallT, LoopCall, ToolFacts
from standfast.agents import Agent
from standfast.messages import Message
from standfast.tools import Failed, Outcome, Returned


def target_of(call: LoopCall, tools: Mapping[str, ToolFacts]) -> str:
    """Return the agent that a call hands the conversation over to; "" if it is another call."""
    tool = tools.get(call.name)
    return "" if tool is None else tool.handoff


def handoff_outcome(target: str, before: str) -> Outcome:
    """Return the outcome of a call that hands over. Nothing runs: the next answer is the other agent's.

    Args:
        before: to whom an earlier call of the same turn hands over; "" if none does.
    """
    if before:
        return Failed(f"Not done: the conversation was handed over to {before}; one handoff per turn counts")
    return Returned(json.dumps({"handed_over_to": target}))


def handed_over_to(outcomes: Sequence[Settled[CallT]], tools: Mapping[str, ToolFacts]) -> str:
    """Return the agent that a turn has handed over to; "" if to none."""
    targets = (target_of(call, tools) for call, outcome in outcomes if isinstance(outcome, Returned))
    return next(filter(None, targets), "")


def last_speaker(messages: Sequence[Message]) -> str:
    """Return who gave the last answer of a transcript; "" for the session's own agent."""
    answers = (message for message in reversed(messages) if message.role == "assistant")
    return next((message.agent or "" for message in answers), "")


def next_speaker(agent: Agent, messages: Sequence[Message]) -> str:
    """Return who answers next in a transcript of an agent's session; "" if it never hands over.

    The transcript alone says so. Whoever has it goes on with the same agent: a later run, either driver, a checkpoint.

    Raises:
        InputError: the conversation is with an agent that this one does not know.
    """
    speaker = agent.speaking(last_speaker(messages))
    if not agent.speakers:
        return ""
    results: list[Message] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        results.append(message)
    for result in reversed(results):
        tool = speaker.tool_map.get(result.tool_name or "")
        if result.status == "completed" and tool is not None and tool.handoff:
            return tool.handoff
    return speaker.name
