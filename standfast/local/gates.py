"""Applies decisions to the gates of an in-process run, each recorded before it counts, and shows open gates."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pydantic import ValidationError

from standfast.agent_loop import (
    CallPlace,
    Decision,
    Gate,
    LoopState,
    caller_problem,
    decided_too_late,
    decider_problem,
)
from standfast.agents import Agent
from standfast.checkpoints import PendingApproval, Question
from standfast.errors import InputError
from standfast.events import Event, gate_decided, gate_escalations
from standfast.messages import ToolCall, Tripped, error_text, explain
from standfast.pipelines import Step
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.standing_approvals import Gives, given_by, standing_refusal
from standfast.runtime.stored_gates import AskedGate
from standfast.runtime.users_functions import edit_refusal, gate_edit_refusal

GivenDecision = Decision | Mapping[str, Any]
GuardrailCheck = Callable[[ToolCall], Awaitable[Iterable[Tripped]]]
_EXAMPLE = '[{"gate": "c1", "decision": "approve", "by": "ada", "digest": "…"}]'


def read_decisions(given: Sequence[GivenDecision]) -> tuple[Decision, ...]:
    """Read people's decisions.

    Raises:
        InputError: naming the decision that cannot be used.
    """
    if isinstance(given, Mapping | str | Decision) or not isinstance(given, Iterable):
        raise InputError(f"decisions must be a list of decisions, such as {_EXAMPLE}, got {given!r:.80}")
    try:
        read = tuple(Decision.model_validate(decision) for decision in given)
    except ValidationError as error:
        raise InputError(f"A decision is invalid: {explain(error)}; one is like {_EXAMPLE}") from error
    if any(decision.standing is not None for decision in read):
        raise InputError("A decision is invalid: only the store has the decisions made in advance; leave out standing")
    return read


async def judge(
    gate: Gate,
    decision: Decision,
    now: datetime,
    kept: Kept,
    *,
    step: Step[Any],
    may: Callable[[str | None], object] | None,
) -> Gate:
    """Return a pipeline's gate after a decision. The decision is recorded even if it does not count.

    Args:
        step: the gate's step.
        may: the pipeline's own rule about who may decide.

    Raises:
        InputError: the decision does not count.
    """
    refused = gate.problem(decision) or await step_refusal(step, may, decision)
    await kept.record(decision, now, refused, digest=gate.shown_digest)
    if refused is not None:
        raise InputError(refused)
    return gate.decided(decision, now)


async def step_refusal(step: Step[Any], may: Callable[[str | None], object] | None, decision: Decision) -> str | None:
    """Return why today's pipeline refuses a decision at the gate of a step, or None if it accepts it."""
    return decider_problem(may, decision) or await gate_edit_refusal(step, decision)


@dataclass(frozen=True, slots=True)
class Standing:
    """Decides which calls are approved in advance: the store of standing approvals, and the place of the calls."""

    store: object
    place: CallPlace

    def at(self, call: ToolCall) -> CallPlace:
        return replace(self.place, tool=call.name)


async def _no_guardrails(call: ToolCall) -> Iterable[Tripped]:
    return ()


async def at_gates(
    state: LoopState,
    decisions: Sequence[Decision],
    agent: Agent,
    kept: Kept,
    have_run: Collection[str | None],
    standing: Standing,
    check: GuardrailCheck = _no_guardrails,
    emit: Callable[[Event], None] = lambda event: None,
) -> LoopState:
    """Return the state after people's decisions on the calls of a turn. Decisions made in advance apply first,
    deadlines that have passed apply last.

    Either all decisions count or none does. Repeating a decision changes nothing, so `run` can be repeated. A recorded
    decision counts, even if the process that recorded it has died.

    Args:
        have_run: ids of calls whose results are known.
        check: returns the guardrails' verdicts on a call.
        emit: receives each decision, and each deadline at which other people were asked.

    Raises:
        InputError: a decision does not count.
    """
    now = datetime.now(UTC)
    for question in state.gates:
        gate = _gate(question)
        told = _Told(gate, emit)
        gate = await kept.gate_after(gate, partial(_refusal, agent, _call(state, gate), check), told.decided)
        gate = await _in_advance(gate, state, agent, kept, standing, told)
        told.passed(now)
        if gate.at(now) != _gate(question):
            state = state.decided(gate.at(now))
    counts: list[tuple[Decision, Gate, Gives | None]] = []
    for decision in decisions:
        gate_now, refused = await _judged(state, decision, agent, kept, check)
        gives = None
        if refused is None and gate_now is not None:
            try:
                place = standing.at(_call(state, gate_now))
                gives = await given_by(standing.store, agent, decision, gate_now, place, now)
            except InputError as error:
                refused = error_text(error)
        if refused is not None:
            if gate_now is None and decision.gate in have_run:
                refused = decided_too_late(decision.gate)
            await kept.record(decision, now, refused, digest=None if gate_now is None else gate_now.shown_digest)
            emit(gate_decided(decision, refused, gate_now))
            raise InputError(refused)
        if gate_now is not None:
            counts.append((decision, gate_now, gives))
            state = state.decided(gate_now.decided(decision, now))
    for decision, gate, gives in counts:
        await kept.record(decision, now, None, digest=gate.shown_digest, gives=gives)
        emit(gate_decided(decision, None, gate.decided(decision, now)))
    return state


class _Told:
    """The events already emitted for one gate; `gate` is its state at that time."""

    def __init__(self, gate: Gate, emit: Callable[[Event], None]) -> None:
        self._gate, self._emit = gate, emit

    def passed(self, now: datetime) -> None:
        for gate, event in gate_escalations(self._gate, now):
            self._gate = gate
            self._emit(event)

    def decided(self, gate: Gate, decision: Decision, at: datetime, refused: str | None) -> None:
        self.passed(at)
        self._gate = gate if refused is not None else gate.decided(decision, at)
        self._emit(gate_decided(decision, refused, self._gate))


async def _in_advance(gate: Gate, state: LoopState, agent: Agent, kept: Kept, standing: Standing, told: _Told) -> Gate:
    """Return a gate after the decisions that were made in advance, each recorded when the gate was opened."""
    waiting, gate = gate.unjudged, gate.asking()
    call = _call(state, gate)
    for decision in waiting:
        refused = gate.problem(decision) or _may_not(agent, call, decision, gate)
        refused = refused or await standing_refusal(standing.store, decision, gate, standing.at(call))
        await kept.record(decision, gate.since, refused, digest=gate.digest)
        told.decided(gate, decision, gate.since, refused)
        gate = gate if refused is not None else gate.decided(decision, gate.since)
    return gate


def _call(state: LoopState, gate: Gate) -> ToolCall:
    """Return the call that waits at a gate, as shown to people. For any other gate, return only its name."""
    if gate.holds:
        return ToolCall(id=gate.name)
    asked = next(call for call in state.open_calls if call.id == gate.name)
    return ToolCall(id=asked.id, name=asked.name, arguments=gate.arguments)


def _may_not(agent: Agent, call: ToolCall, decision: Decision, gate: Gate) -> str | None:
    """Return why today's agent does not let a person decide on a call, or None if it does."""
    return decider_problem(agent.access.get("approve"), decision) or caller_problem(agent, call, decision, gate.rule)


async def _refusal(agent: Agent, call: ToolCall, check: GuardrailCheck, gate: Gate, decision: Decision) -> str | None:
    """Return why today's agent rejects a decision, or None if it accepts it."""
    return _may_not(agent, call, decision, gate) or await edit_refusal(agent, call, decision, gate.rule, check)


async def _judged(
    state: LoopState, decision: Decision, agent: Agent, kept: Kept, check: GuardrailCheck
) -> tuple[Gate | None, str | None]:
    """Return the gate of a decision, and why the decision does not count; None for both if it changes nothing."""
    waiting = {str(question.tool_call_id): question for question in state.gates}
    if decision.gate in waiting:
        gate = _gate(waiting[decision.gate])
        call = _call(state, gate)
        return gate, gate.problem(decision) or await _refusal(agent, call, check, gate, decision)
    if has := await kept.has_counted(decision):
        return None, None
    over = next((_gate(one).status for one in state.verdicts if one.tool_call_id == decision.gate), None)
    why = "was decided already" if has is False else f"is not open; open: {', '.join(waiting) or 'none'}"
    if over is not None:
        why = f"was {over.replace('-', ' ')} already"
    return None, f"gate {decision.gate} {why}"


def requesters_of(state: LoopState) -> list[str | None]:
    """Return the requesters of the calls of a turn, including the authors of edits that counted."""
    gates = [_gate(question) for question in (*state.gates, *state.verdicts)]
    edited = [decision.by for gate in gates for decision in gate.approvals if decision.edit is not None]
    return [*(person for gate in gates for person in gate.requesters), *edited]


def asked_at(state: LoopState) -> list[AskedGate]:
    """Return the gates of calls that wait, as the board shows them."""
    calls = {call.id: call.name for call in state.open_calls}
    return [AskedGate.of(one, calls.get(str(one.tool_call_id))) for one in state.gates]


def pending_approvals(state: LoopState) -> tuple[PendingApproval, ...]:
    """Return what people see about the calls that wait for approval."""
    calls = {call.id: call.name for call in state.open_calls}
    return tuple(_shown(question, calls.get(str(question.tool_call_id), "")) for question in state.gates)


def _shown(question: Question, tool: str) -> PendingApproval:
    gate = _gate(question)
    return PendingApproval(
        gate=gate.name,
        tool=tool,
        arguments=None if gate.holds else gate.asked_arguments,
        shown=tuple(gate.arguments) if gate.holds else (),
        message=gate.rule.message or question.question,
        digest=gate.shown_digest,
        since=gate.since,
        deadline=gate.deadline,
        approvers=gate.rule.users,
        quorum=gate.rule.quorum,
        approved_by=gate.approved_by,
        edited_by=None if gate.changed is None else gate.editor or "",
        changes=gate.changes,
    )


def _gate(question: Question) -> Gate:
    assert question.gate is not None
    return Gate.read(question.gate)
