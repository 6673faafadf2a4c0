"""Decides what an agent does next, and reads its transcript. Nothing here does I/O."""

from standfast.agent_loop.actions import (
    Action,
    AskApproval,
    AskHuman,
    CallModel,
    CallTools,
    Finish,
    OpenGates,
    Settled,
)
from standfast.agent_loop.approvers import approver_problem, caller_problem
from standfast.agent_loop.child_agents import agent_failure, agent_outcome, said_by_agent
from standfast.agent_loop.gates import (
    Decision,
    Gate,
    GateRule,
    access_problem,
    decider_problem,
    digest_of,
    gate_problem,
)
from standfast.agent_loop.loop import LoopState, next_action
from standfast.agent_loop.tool_facts import (
    CANCELLED_WITHIN,
    ToolFacts,
    cancelled,
    cut_off,
    failed_for_good,
    not_started,
)
from standfast.agent_loop.tool_gates import NOBODY_TO_ASK, edit_problem, open_gates, with_edit
from standfast.agent_loop.transcripts import (
    answer_message,
    in_call_order,
    last_answer,
    not_found,
    outcome_of,
    read_transcript,
    repair_transcript,
    result_message,
    unanswered,
    with_notices,
)
from standfast.agent_loop.truncation import correction

__all__ = [
    "CANCELLED_WITHIN",
    "NOBODY_TO_ASK",
    "Action",
    "AskApproval",
    "AskHuman",
    "CallModel",
    "CallTools",
    "Decision",
    "Finish",
    "Gate",
    "GateRule",
    "LoopState",
    "OpenGates",
    "Settled",
    "ToolFacts",
    "access_problem",
    "agent_failure",
    "agent_outcome",
    "answer_message",
    "approver_problem",
    "caller_problem",
    "cancelled",
    "correction",
    "cut_off",
    "decider_problem",
    "digest_of",
    "edit_problem",
    "failed_for_good",
    "gate_problem",
    "in_call_order",
    "last_answer",
    "next_action",
    "not_found",
    "not_started",
    "open_gates",
    "outcome_of",
    "read_transcript",
    "repair_transcript",
    "result_message",
    "said_by_agent",
    "unanswered",
    "with_edit",
    "with_notices",
]
