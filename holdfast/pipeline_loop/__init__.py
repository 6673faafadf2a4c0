"""What happens next in a pipeline and at its gates; no I/O."""

from holdfast.pipeline_loop.evaluations import Evaluations, read_answer, read_value
from holdfast.pipeline_loop.gates import Decision, Gate, GateRule, access_problem, digest_of
from holdfast.pipeline_loop.plans import (
    Action,
    Done,
    Ended,
    Evaluate,
    PipelineState,
    Planned,
    RunStep,
    Scope,
    Todo,
    plan,
)

__all__ = [
    "Action",
    "Decision",
    "Done",
    "Ended",
    "Evaluate",
    "Evaluations",
    "Gate",
    "GateRule",
    "PipelineState",
    "Planned",
    "RunStep",
    "Scope",
    "Todo",
    "access_problem",
    "digest_of",
    "plan",
    "read_answer",
    "read_value",
]
