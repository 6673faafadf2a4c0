"""Decides which agent has a conversation: the one that answered last, or the one that it handed over to."""

import itertools
import json
from collections.abc import Mapping, Sequence

from standfast.agent_loop.actions import Settled
from standfast.agent_loop.tool_facts import CallT, LoopCall, ToolFacts
from standfast.agents import Agent
from standfast.agents.handoffs import handoff_tool_name
from standfast.messages import Message, read_json
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
        return Failed(f"Not done: the conversation was handed over to {before}; only one handoff per turn counts")
    return Returned(json.dumps({"handed_over_to": target}))


def handed_over_to(outcomes: Sequence[Settled[CallT]], tools: Mapping[str, ToolFacts]) -> str:
    """Return the agent that a turn has handed over to; "" if to none."""
    targets = (target_of(call, tools) for call, outcome in outcomes if isinstance(outcome, Returned))
    return next(filter(None, targets), "")


def last_speaker(messages: Sequence[Message]) -> str:
    """Return who gave the last answer of a transcript; "" for the session's own agent."""
    for message in reversed(messages):
        if message.role == "assistant":
            return message.agent or ""
    return ""


def next_speaker(agent: Agent, messages: Sequence[Message]) -> str:
    """Return who answers next in a transcript of an agent's session; "" if it never hands over.

    The transcript alone determines this, so a later run, the other driver or a checkpoint has the same agent.

    Raises:
        InputError: the conversation is with an agent that this one does not know.
    """
    speaker = agent.speaking(last_speaker(messages))
    speaker = agent.speaking(handed_to(speaker, messages) or speaker.name)
    return speaker.name if agent.speakers else ""


def handed_to(speaker: Agent, messages: Sequence[Message]) -> str:
    """Return the name, as it was then, of the agent that the last turn of a transcript handed over to; "" if to none.

    The call's result says it, even if a deploy has since renamed the agent, or `speaker` no longer hands over to it.
    """
    results = itertools.takewhile(lambda message: message.role != "assistant", reversed(messages))
    found = (_target(result, speaker.tool_map) for result in results if result.status == "completed")
    return next((target for target in reversed(list(found)) if target), "")


def _target(result: Message, tools: Mapping[str, ToolFacts]) -> str:
    tool = tools.get(result.tool_name or "")
    if tool is not None:
        return tool.handoff
    try:
        match read_json(result.content):
            case {"handed_over_to": str(target)} if result.tool_name == handoff_tool_name(target):
                return target
    except ValueError:
        pass
    return ""
