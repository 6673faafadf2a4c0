"""Gates in this process: a decision is judged and recorded before it counts, and what waits is shown to people."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from holdfast.agent_loop import Decision, Gate, LoopState, access_problem, edit_problem
from holdfast.agents import Agent
from holdfast.checkpoints import PendingApproval, Question
from holdfast.errors import InputError
from holdfast.local.pipeline_results import Kept
from holdfast.messages import ToolCall, explain
from holdfast.stores.protocol import DecisionRecord

GivenDecision = Decision | Mapping[str, Any]
_EXAMPLE = '[{"gate": "c1", "decision": "approve", "by": "ada"}]'


def read_decisions(given: Sequence[GivenDecision]) -> tuple[Decision, ...]:
    """Read what people decided.

    Raises:
        InputError: saying what cannot be used.
    """
    if isinstance(given, Mapping | str | Decision) or not isinstance(given, Iterable):
        raise InputError(f"decisions must be a list of decisions, such as {_EXAMPLE}, got {given!r:.80}")
    try:
        return tuple(Decision.model_validate(decision) for decision in given)
    except ValidationError as error:
        raise InputError(f"A decision cannot be used: {explain(error)}; one is like {_EXAMPLE}") from error


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
    await kept.record(decision, now, refused, digest=gate.digest)
    if refused is not None:
        raise InputError(refused)
    return gate.decided(decision)


async def at_gates(
    state: LoopState, decisions: Iterable[Decision], agent: Agent, kept: Kept
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
            state = await _decide(state, decision, now, agent, kept)
        except InputError as error:
            return state, error
    return state, None


async def has_counted(kept: Kept, decision: Decision) -> bool | None:
    """Whether this very decision has counted at its gate; None if none has."""
    counted = await kept.decisions(decision.gate)
    return any(same(row, decision) for row in counted) if counted else None


def same(row: DecisionRecord, decision: Decision) -> bool:
    """Whether a decision is the one that was recorded, sent once more."""
    mine = (decision.decision, decision.by, decision.comment, decision.edit)
    return mine == (row.decision, row.by, row.comment, row.edit)


async def _decide(state: LoopState, decision: Decision, now: datetime, agent: Agent, kept: Kept) -> LoopState:
    waiting = {str(question.tool_call_id): question for question in state.gates}
    if decision.gate not in waiting:
        has = await has_counted(kept, decision)
        if has:
            return state
        over = next((_gate(one).status for one in state.verdicts if one.tool_call_id == decision.gate), None)
        why = "was decided already" if has is False else f"is not open; open: {', '.join(waiting) or 'none'}"
        why = why if over is None else f"was {over.replace('-', ' ')} already"
        await kept.record(decision, now, f"gate {decision.gate} {why}")
        raise InputError(f"gate {decision.gate} {why}")
    call = next(call for call in state.open_calls if call.id == decision.gate)
    gate = _gate(waiting[decision.gate])
    judged = await judge(gate, decision, now, kept, problem=lambda: edit_problem(agent, call, decision, gate.rule))
    return state.decided(judged)


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
        message=gate.rule.message or question.question,
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
