"""The gates of an in-process run: shows them, and applies decisions, each recorded before it counts."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from pydantic import ValidationError

from standfast.agent_loop import (
    NOBODY_TO_ASK,
    CallPlace,
    Decision,
    Gate,
    Held,
    LoopState,
    caller_problem,
    decided_too_late,
    decider_problem,
    last_answer,
    last_speaker,
    question_about,
)
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import PendingApproval, Question
from standfast.errors import InputError
from standfast.events import Event, gate_decided, gate_escalations
from standfast.local.answers import guardrails_in
from standfast.local.sessions import RunTranscript
from standfast.messages import ToolCall, Tripped, error_text, explain
from standfast.pipelines import Step
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.standing_approvals import Gives, decided_in_advance, given_by, standing_refusal
from standfast.runtime.stored_gates import AskedGate, Whose, show_gates
from standfast.runtime.users_functions import ask_at_gates, edit_refusal, gate_edit_refusal
from standfast.stores.protocol import AgentStore, DurableStore

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


class RunGates:
    """The gates of a run. Every question and decision is written to the transcript before a call runs.

    Args:
        is_invoked: a tool has started the run, so no person can be asked.
        emit: receives decisions and escalations.
    """

    def __init__(
        self,
        agent: Agent,
        context: AgentContext,
        store: AgentStore | None,
        transcript: RunTranscript,
        *,
        is_invoked: bool,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        self._agent = agent
        self._context = context
        self._store = store
        self._transcript = transcript
        self._is_invoked = is_invoked
        self._emit: Callable[[Event], None] = (lambda event: None) if emit is None else emit
        self._earlier: list[str | None] = []  # requesters of earlier calls; without a store, only the gates name them

    def _asking(self, state: LoopState) -> Agent:
        """Return the agent of the conversation whose calls, or whose answer, are at the gates."""
        is_next = any(question.is_held for question in state.gates)
        return self._agent.speaking(state.agent if is_next else last_speaker(self._transcript.messages))

    @property
    def _kept(self) -> Kept:
        """The audit trail of the session."""
        ledger = self._store if self._store is not None and self._store.durable else None
        return Kept(f"{self._agent.name}/{self._transcript.log.session.id}", cast("DurableStore | None", ledger))

    async def decide(self, decisions: Sequence[Decision], state: LoopState) -> LoopState:
        """Apply decisions. Each approval is written before its call runs; only one run of a session can write it."""
        have_run = {message.tool_call_id for message in self._transcript.messages if message.status == "completed"}
        standing = Standing(self._store, self._place)
        agent = self._asking(state)
        check = guardrails_in(agent, self._context).verdicts_on
        decided = await at_gates(state, decisions, agent, self._kept, have_run, standing, check, self._emit)
        self._earlier += requesters_of(decided)
        await self._show(decided)
        if decided.kept_questions != state.kept_questions:
            await self._transcript.write(decided.kept_questions)
        return decided

    async def _show(self, state: LoopState) -> None:
        """Show waiting gates on the board before the transcript has them, so a waiting gate is never hidden."""
        await show_gates(self._store, Whose.of_session(self._transcript.log.session), asked_at(state))

    async def open(self, state: LoopState, calls: tuple[ToolCall, ...], claimed: Sequence[Gate] = ()) -> LoopState:
        """Find out who must approve the calls, and write the gates with the calls.

        Args:
            claimed: the gates of an unsigned checkpoint; with a store, their time starts again.
        """
        requesters = await self._requesters(claimed)
        since = {gate.name: gate.opened or gate.since for gate in claimed} if self._store is None else {}
        options: dict[str, Any] = {"at": datetime.now(UTC), "requesters": requesters, "asked_at": since}
        last = last_answer(messages := self._transcript.messages)
        tripped = () if last is None else messages[last].tripped or ()
        questions, refused = await ask_at_gates(self._asking(state), calls, tripped=tripped, **options)
        if self._is_invoked:
            state = state.gated(questions, refused).unattended(NOBODY_TO_ASK)
        else:
            asked = await decided_in_advance(self._store, questions, calls, self._place)
            state = state.gated(asked, refused)
        await self._show(state)
        await self._transcript.write(state.kept_questions)
        is_decided = any(question.gate and "advance" in question.gate for question in state.gates)
        return await self.decide((), state) if is_decided else state

    async def hold(self, state: LoopState, held: Held, claimed: Gate | None = None) -> LoopState:
        """Ask people about what guardrails have stopped, and write the question with the user's messages.

        Args:
            claimed: the gate of an unsigned checkpoint.
        """
        agent, number = self._agent.speaking(state.agent), self._last_seq + 1
        claims = [] if claimed is None else [claimed]
        asked_at = claimed.opened or claimed.since if claimed is not None and self._store is None else None
        requesters = await self._requesters(claims)
        question = question_about(agent, held, number, at=datetime.now(UTC), requesters=requesters, asked_at=asked_at)
        state = state.held(question)
        if self._is_invoked:
            return state.unattended(NOBODY_TO_ASK)
        await self._show(state)
        await self._transcript.write(state.kept_questions)
        return state

    async def _requesters(self, claimed: Sequence[Gate]) -> list[str | None]:
        """Return everyone who has sent the run a message, and the requesters that the gates of an unsigned checkpoint
        name.
        """
        spoke = [message.by for message in self._transcript.messages]
        users = [self._context.user_id, self._transcript.log.session.user_id]
        named = [person for gate in claimed for person in gate.requesters]
        return [*users, *spoke, *await self._kept.editors(), *self._earlier, *named]

    @property
    def _last_seq(self) -> int:
        return self._transcript.log.last_seq + len(self._transcript.unwritten)

    @property
    def _place(self) -> CallPlace:
        """The place of the calls. A run starts with the user's last message."""
        log, messages = self._transcript.log, self._transcript.messages
        after = next((place for place, one in enumerate(reversed(messages)) if one.role == "user"), len(messages))
        begun = self._last_seq - after
        session = log.session
        return CallPlace(
            agent=self._agent.name,
            run=f"{log.key}/{begun}",
            session=session.id,
            session_key=log.key,
            tenant_id=session.tenant_id,
            user_id=session.user_id,
        )
