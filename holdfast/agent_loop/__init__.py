"""What an agent does next, and what its transcript says. Nothing here does I/O."""

from holdfast.agent_loop.states import (
    Action,
    AskHuman,
    CallModel,
    CallTools,
    Finish,
    LoopState,
    Settled,
    ToolFacts,
    cancelled,
    cut_off,
    next_action,
)
from holdfast.agent_loop.transcripts import (
    answer_message,
    in_call_order,
    last_answer,
    mended,
    not_found,
    read_transcript,
    result_message,
    unanswered,
    with_notices,
)

__all__ = [
    "Action",
    "AskHuman",
    "CallModel",
    "CallTools",
    "Finish",
    "LoopState",
    "Settled",
    "ToolFacts",
    "answer_message",
    "cancelled",
    "cut_off",
    "in_call_order",
    "last_answer",
    "mended",
    "next_action",
    "not_found",
    "read_transcript",
    "result_message",
    "unanswered",
    "with_notices",
]
