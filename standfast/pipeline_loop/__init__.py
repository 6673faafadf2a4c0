"""Decides what happens next in a pipeline. Nothing here does I/O."""

from standfast.pipeline_loop.evaluations import (
    MAX_ITEMS,
    Evaluations,
    edit_problem_at,
    read_answer,
    read_value,
    typed_output,
)
from standfast.pipeline_loop.plans import REJECTED, Action, Done, Ended, Evaluate, Planned, RunStep, Todo, plan
from standfast.pipeline_loop.states import PipelineState, Scope

__all__ = [
    "MAX_ITEMS",
    "REJECTED",
    "Action",
    "Done",
    "Ended",
    "Evaluate",
    "Evaluations",
    "PipelineState",
    "Planned",
    "RunStep",
    "Scope",
    "Todo",
    "edit_problem_at",
    "plan",
    "read_answer",
    "read_value",
    "typed_output",
]
