"""Decides who may still approve at a gate that was opened under an earlier version of its declaration."""

from standfast.agent_loop.gates import Decision
from standfast.agents import Agent
from standfast.messages import ToolCall, cut, error_text, person
from standfast.tools import Approval


def approver_problem(approval: Approval | None, decision: Decision) -> str | None:
    """Return why somebody does not decide any more, whom a gate has asked; None if today's declaration asks them.

    Whom it asks, at whichever stage of an escalation; the rest of what was declared when the gate was opened holds.

    Args:
        approval: today's; None if there is no such gate any more, and what was recorded holds.
    """
    asked = [] if approval is None else [one.users for one in approval.chain]
    if not asked or any(not users or person(decision.by) in map(person, users) for users in asked):
        return None
    return f"gate {decision.gate}: {decision.by} may not decide it any more; {', '.join(asked[0])} may"


def caller_problem(agent: Agent, call: ToolCall, decision: Decision) -> str | None:
    """Return the same for the gate of a tool call, which a function may have made for its arguments."""
    tool = agent.tool_map.get(call.name)
    try:
        return None if tool is None else approver_problem(tool.approval_of(call), decision)
    except (Exception, SystemExit) as error:
        return f"gate {decision.gate}: its approval raised {type(error).__name__}: {cut(error_text(error), 2_000)}"
