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
from standfast.agent_loop.gates import (
    Decision,
    Gate,
    GateRule,
    access_problem,
    digest_of,
    gate_problem,
)
from standfast.agent_loop.loop import LoopState, next_action
from standfast.agent_loop.tool_facts import ToolFacts, cancelled, cut_off
from standfast.agent_loop.tool_gates import NOBODY_TO_ASK, edit_problem, open_gates, with_edit
from standfast.agent_loop.transcripts import (
    answer_message,
    in_call_order,
    last_answer,
    not_found,
    read_transcript,
    repair_transcript,
    result_message,
    unanswered,
    with_notices,
)
from standfast.agent_loop.truncation import correction

__all__ = [
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
    "answer_message",
    "approver_problem",
    "caller_problem",
    "cancelled",
    "correction",
    "cut_off",
    "digest_of",
    "edit_problem",
    "gate_problem",
    "in_call_order",
    "last_answer",
    "next_action",
    "not_found",
    "open_gates",
    "read_transcript",
    "repair_transcript",
    "result_message",
    "unanswered",
    "with_edit",
    "with_notices",
]
