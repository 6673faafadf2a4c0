"""Decides how the open calls of a turn are carried out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from standfast.agent_loop.actions import CallTools, Settled
from standfast.agent_loop.handoffs import handoff_outcome, target_of
from standfast.agent_loop.tool_facts import (
    CallT,
    ToolFacts,
    ToolT_co,
    batches,
    may_run_again,
    without_dependencies,
)
from standfast.agent_loop.tool_gates import refusal
from standfast.tools import Cancelled, Failed, Unknown

if TYPE_CHECKING:
    from standfast.agent_loop.loop import LoopState

_UNASKED = "Not run: a guardrail has stopped it, and nobody was asked to approve it. Call it again"


def next_calls(state: "LoopState[CallT, ToolT_co]") -> CallTools[CallT]:
    """Return how the open calls of a turn are carried out: those that run, and those that are settled without."""
    if state.ended is not None:
        reason = f"Not run: the run ended with {state.ended.status}"
        return CallTools((), tuple((call, Cancelled(reason)) for call in state.open_calls))
    settled: list[Settled[CallT]] = []
    calls: list[CallT] = []
    handed_over = ""
    for call in state.open_calls:
        gate = state.verdict(call)
        if gate is not None and gate.status != "approved":
            settled.append((call, Failed(refusal(gate))))
        elif call.id == state.cut or call.id in state.barred:
            settled.append((call, Failed(state.refused[call.id])))
        elif call.id in state.stopped and gate is None:
            settled.append((call, Failed(state.refused.get(call.id, _UNASKED))))
        elif (target := target_of(call, state.tools)) and call.id not in state.refused:
            settled.append((call, handoff_outcome(target, handed_over)))
            handed_over = handed_over or target
        elif state.recovering and not may_run_again(state.tools.get(call.name)):
            settled.append((call, Unknown()))  # also beyond the limit, which may have been another one then
        elif call.id in state.refused:
            settled.append((call, Failed(state.refused[call.id])))
        else:
            calls.append(call)
    return CallTools(batches(calls, state.tools), tuple(settled), state.recovering)


def not_carried_out(
    action: CallTools[CallT], tools: Mapping[str, ToolFacts], agent: str, error: str
) -> CallTools[CallT]:
    """Return an action that runs nothing, since what its calls depend on could not be made.

    An earlier run may have begun those with effects.
    """
    left = [call for batch in action.batches for call in batch]
    begun = {call.id: not tools[call.name].safe_to_retry for call in left if call.name in tools}
    settled = [(call, without_dependencies(agent, error, has_begun=begun.get(call.id, True))) for call in left]
    return replace(action, batches=(), settled=(*action.settled, *settled))
