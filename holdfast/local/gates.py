"""Gates in this process: a decision is judged and recorded before it counts, and what waits is shown to people."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from holdfast.agent_loop import Decision, Gate, LoopState, access_problem, edit_problem
from holdfast.checkpoints import PendingApproval, Question
from holdfast.errors import InputError
from holdfast.local.pipeline_results import Kept
from holdfast.messages import ToolCall, explain
from holdfast.tools import Tool

GivenDecision = Decision | Mapping[str, Any]


def read_decisions(given: Sequence[GivenDecision]) -> tuple[Decision, ...]:
    """Read what people decided.

    Raises:
        InputError: saying what cannot be used.
    """
    if isinstance(given, Mapping | str | Decision):
        raise InputError(f"decisions must be a list of decisions, got {given!r:.80}")
    try:
        return tuple(Decision.model_validate(decision) for decision in given)
    except ValidationError as error:
        raise InputError(f"A decision cannot be used: {explain(error)}") from error


async def judge(
    gate: Gate,
    decision: Decision,
    now: datetime,
    kept: Kept,
    *,
    may: Callable[[str | None], object] | None = None,
    problem: Callable[[], str | None] = lambda: None,
) -> Gate:
    """Return a gate after a decision, which is recorded whether it counts or not.

    Args:
        may: who may decide besides, asked of the pipeline.
        problem: what else may be wrong with it.

    Raises:
        InputError: it does not count.
    """
    refused = gate.problem(decision) or problem()
    if refused is None and (denied := access_problem(may, decision.by)):
        refused = f"gate {gate.name}: {denied} decide it"
    await kept.record(decision, now, refused)
    if refused is not None:
        raise InputError(refused)
    return gate.decided(decision)


async def at_gates(
    state: LoopState, decisions: Iterable[Decision], tools: Mapping[str, Tool[..., Any]], kept: Kept
) -> tuple[LoopState, InputError | None]:
    """Return the state after what people decided on the calls of a turn, and the time that has passed.

    The same decision once more changes nothing, so that a call can be repeated. After one that does not count, those
    behind it are not looked at.
    """
    now = datetime.now(UTC)
    for question in state.gates:
        gate = _gate(question)
        if gate.at(now) != gate:
            state = state.decided(gate.at(now))
    for decision in decisions:
        try:
            state = await _decide(state, decision, now, tools, kept)
        except InputError as error:
            return state, error
    return state, None


async def _decide(
    state: LoopState, decision: Decision, now: datetime, tools: Mapping[str, Tool[..., Any]], kept: Kept
) -> LoopState:
    waiting = {str(question.tool_call_id): question for question in state.gates}
    if decision.gate not in waiting:
        counted = [(row.decision, row.by) for row in await kept.decisions(decision.gate)]
        if (decision.decision, decision.by) in counted:
            return state
        why = "was decided already" if counted else f"is not open; open: {', '.join(waiting) or 'none'}"
        await kept.record(decision, now, f"gate {decision.gate} {why}")
        raise InputError(f"gate {decision.gate} {why}")
    name = next(call.name for call in state.open_calls if call.id == decision.gate)
    gate = _gate(waiting[decision.gate])
    return state.decided(await judge(gate, decision, now, kept, problem=lambda: edit_problem(tools[name], decision)))


def pending_approvals(state: LoopState) -> tuple[PendingApproval, ...]:
    """Return what people are shown of the calls that wait for them."""
    calls = {call.id: call for call in state.open_calls}
    return tuple(_shown(question, calls[str(question.tool_call_id)]) for question in state.gates)


def _shown(question: Question, call: ToolCall) -> PendingApproval:
    gate = _gate(question)
    return PendingApproval(
        gate=gate.name,
        tool=call.name,
        arguments=call.arguments,
        message=question.question,
        digest=gate.digest,
        since=gate.since,
        deadline=gate.deadline,
        approvers=gate.rule.users,
        quorum=gate.rule.quorum,
        approved_by=gate.approved_by,
    )


def _gate(question: Question) -> Gate:
    assert question.gate is not None
    return Gate.read(question.gate)
