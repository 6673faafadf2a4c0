"""Decides what an agent does next. Every such rule lives here; nothing here does I/O.

A driver asks `next_action(state)`, carries the action out and reports back with `replied`, `failed`, `settled` or
`answered`. To resume, `LoopState.fold` makes a state from a transcript, and the same loop continues.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, get_args

from standfast.agent_loop.actions import (
    Action,
    AskApproval,
    AskHuman,
    CallModel,
    CallTools,
    Correct,
    Finish,
    OpenGates,
    Settled,
    UsedByAgents,
)
from standfast.agent_loop.gates import Gate
from standfast.agent_loop.guardrails import judge, unfit
from standfast.agent_loop.tool_facts import (
    Answer,
    CallT,
    LoopCall,
    ToolFacts,
    ToolT_co,
    batches,
    may_run_again,
    without_dependencies,
)
from standfast.agent_loop.tool_gates import refusal
from standfast.agent_loop.transcripts import (
    handed_over_to,
    handoff_outcome,
    last_answer,
    question_of,
    result_message,
    target_of,
    unanswered,
)
from standfast.agents import Loop, OnTerminalToolError
from standfast.checkpoints import Question
from standfast.errors import TerminalError
from standfast.messages import Message, ToolCall, Usage, error_text
from standfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

SpentStatus = Literal["cost-budget-exhausted", "token-budget-exhausted"]
Grants = tuple[int, int]
"""How often a person has let a run, and its session, use as much again."""

_MOST_GRANTS = 1e15  # for a budget that is close to zero


def next_action(state: "LoopState[CallT, ToolT_co]") -> Action[CallT]:
    """Return the next action."""
    if state.unasked and state.ended is None:
        return OpenGates(state.unasked)
    if state.gates and state.ended is None:
        return AskApproval(state.gates)
    if state.open_calls:
        return next_calls(state)
    if state.questions:
        return AskHuman(state.questions[0])
    if state.ended is not None:
        return state.ended
    model = state.fallbacks[state.fallback - 1] if state.fallback else None
    call = CallModel(state.warning, state.nudge, model, state.agent, state.decided_answer)
    if call.decided is not None:
        return call
    if state.finished:
        return Finish("complete", state.response)
    if state.iterations >= state.loop.max_iterations:
        return Finish("max-iterations", state.response)
    if (spent := state.spent_budget()) is not None:
        return spent
    return call


@dataclass(frozen=True, kw_only=True)
class LoopState(Generic[CallT, ToolT_co]):
    """All that the next action depends on: a few numbers and the open calls, never the transcript.

    Args:
        loop, tools, on_terminal_tool_error, fallbacks: the agent's facts.
        fallback: how many models could not be called, so that the next one is called now.
        agent: which agent of the conversation answers next; "" if there is only one.
        speakers: the fallbacks of all agents of the conversation, by name; none if there is only one.
        grants: how often a person has let the run, and its session, use as much again.
        iterations: model calls so far.
        response: the text of the last answer.
        finished: the last answer asked for no tool.
        open_calls: calls of the last answer without an outcome; `recovering` if an earlier run may have run them.
        unasked: the open calls that may need approval, until that is checked.
        refused: by id, why a call does not run; `cut` is the call in the middle of which the answer ends, and
            `barred` are calls that guardrails have refused: they never run, whatever an earlier run may have done;
            `stopped` are those that guardrails let run only if people have approved them.
        questions: open questions of the turn, gates included, in call order; or the one gate that holds no call.
        verdicts: gates of open calls that were decided, or that gate.
        progressed: a call of this turn succeeded.
        idle_turns: turns in a row without a successful call.
        usage, session_usage: of this run, and of all runs of its session if they have a budget.
        warning, nudge: what the next `CallModel` carries; `warned`, `nudges` count those given.
    """

    loop: Loop
    tools: Mapping[str, ToolT_co]
    on_terminal_tool_error: OnTerminalToolError = "message"
    fallbacks: tuple[str, ...] = ()
    fallback: int = 0
    agent: str = ""
    speakers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grants: Grants = (0, 0)
    iterations: int = 0
    response: str = ""
    finished: bool = False
    open_calls: tuple[CallT, ...] = ()
    unasked: tuple[CallT, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    cut: str | None = None
    barred: Sequence[str] = ()
    stopped: Sequence[str] = ()
    recovering: bool = False
    questions: tuple[Question, ...] = ()
    verdicts: tuple[Question, ...] = ()
    progressed: bool = False
    idle_turns: int = 0
    usage: Usage | None = None
    session_usage: Usage | None = None
    warning: int | None = None
    warned: bool = False
    nudge: str | None = None
    nudges: int = 0
    short_calls: int = 0
    corrections: int = 0
    ended: Finish | None = None

    def fold(
        self: "LoopState[ToolCall, ToolT_co]",
        messages: Sequence[Message],
        *,
        recovering: bool,
        questions: tuple[Question, ...] = (),
    ) -> "LoopState[ToolCall, ToolT_co]":
        """Return the state that a transcript leaves: what is unanswered, and whether it is finished.

        Args:
            recovering: its unanswered calls may have been started; none has if one of their gates is open.
            questions: what is kept with it: the questions of its unanswered calls, and gates.
        """
        gates = [question for question in questions if question.gate is not None]
        verdicts = tuple(question for question in gates if not question.is_open)
        waiting = {question.tool_call_id for question in questions if question.gate is None}
        recovering = recovering and len(verdicts) == len(gates)
        last = last_answer(messages)
        calls = tuple(call for call in unanswered(messages) if call.id not in waiting)
        questions = with_unknown(questions, unanswered(messages))
        answer = Message(role="assistant") if last is None else messages[last]
        ended, refused, cut, barred, stopped = unfit(answer, self.loop.max_tool_calls)
        return self._with(
            response=answer.content,
            ended=ended if last == len(messages) - 1 else None,
            finished=last == len(messages) - 1 and not answer.tool_calls and not questions,
            open_calls=calls,
            unasked=() if recovering or gates else self.to_approve(calls, refused, stopped),
            refused=refused,
            cut=cut,
            barred=barred,
            stopped=stopped,
            recovering=recovering,
            questions=tuple(question for question in questions if question.is_open),
            verdicts=verdicts,
        )

    def _with(self, **changes: Any) -> Self:
        """Do what `dataclasses.replace` does in a fifth of the time (0.6 µs); a step changes the state twice."""
        state = object.__new__(type(self))
        state.__dict__.update(self.__dict__, **changes)
        return state

    def judged(self, finish: Finish, problem: str | None, refused: str | None = None) -> Finish | Correct:
        """Return what to do at the end of a run; see `judge`."""
        return judge(finish, problem, refused, may_correct=self.corrections < self.loop.output_retries)

    def corrected(self) -> Self:
        """The model was told that its answer does not fit."""
        return self.with_user_message()._with(corrections=self.corrections + 1)

    def with_user_message(self) -> Self:
        """The user said something new."""
        return self._with(finished=False, idle_turns=0, ended=None)

    def replied(self, message: Answer[CallT], tools: Mapping[str, Any] | None = None) -> Self:
        """The model answered with `message`; `tools` are the answering agent's, if another agent may answer now."""
        calls = message.tool_calls or ()
        ended, refused, cut, barred, stopped = unfit(message, self.loop.max_tool_calls)
        state = self if tools is None else self._with(tools=tools)
        state = state._with(
            ended=ended,
            iterations=self.iterations + 1,
            response=message.content,
            finished=not calls,
            verdicts=(),
            open_calls=calls,
            unasked=state.to_approve(calls, refused, stopped),
            refused=refused,
            cut=cut,
            barred=barred,
            stopped=stopped,
            recovering=False,
            progressed=False,
            warning=None,
            nudge=None,
        )
        if message.usage is not None:
            state = state.spent(message.usage)
            if calls:
                state = state._judged_by_length(message.usage)
        return state

    def held(self, question: Question) -> Self:
        """An answer or a user message waits at a gate. The turn continues after the decision."""
        return self._with(questions=(question,), verdicts=(), warning=None, nudge=None)

    @property
    def decided_answer(self) -> Question | None:
        """The decided gate of an answer or a user message, whose value is still held."""
        return next((one for one in self.verdicts if one.is_held), None) if self.verdicts else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of a turn is open, so that the user may say something."""
        return not self.open_calls and not self.questions and self.decided_answer is None

    def to_approve(
        self, calls: Sequence[CallT], refused: Mapping[str, str], stopped: Sequence[str]
    ) -> tuple[CallT, ...]:
        """Return the calls that may need approval and can run."""
        known = [call for call in calls if call.id not in refused and call.name in self.tools]
        return tuple([call for call in known if self.tools[call.name].approval or call.id in stopped])

    @property
    def gates(self) -> tuple[Question, ...]:
        """The gates of the turn that are open."""
        return tuple([question for question in self.questions if question.gate is not None])

    @property
    def kept_questions(self) -> tuple[Question, ...]:
        """What must be kept with the transcript: what is open, and gates that were decided, until the turn is over."""
        return (*self.questions, *self.verdicts)

    def gated(self, questions: Sequence[Question], refused: Mapping[str, str]) -> Self:
        """The calls have been checked: these gates are open, and these calls cannot run."""
        if (self.ended is not None and not self.asks_for_more) or not (questions or refused or self.unasked):
            return self
        return self._with(unasked=(), questions=tuple(questions), refused={**self.refused, **refused})

    def decided(self, gate: Gate) -> Self:
        """A gate has changed: other people are asked or have approved, or it is decided.

        A rejection counts as progress, as an answer does: it gives the agent something to work with.
        """
        change = {"gate": gate.plain()}
        kept = [one.model_copy(update=change) if one.tool_call_id == gate.name else one for one in self.questions]
        return self._with(
            questions=tuple(question for question in kept if question.is_open),
            verdicts=(*self.verdicts, *(question for question in kept if not question.is_open)),
            progressed=self.progressed or (gate.status == "rejected" and gate.last is not None),
        )

    def verdict(self, call: LoopCall) -> Gate | None:
        """Return the gate of a call, if it was decided."""
        return next((Gate.read(one.gate or {}) for one in self.verdicts if one.tool_call_id == call.id), None)

    def found(self, calls: Collection[str]) -> Self:
        """Results of these open calls, which an earlier run could not write, are in the transcript now."""

        def others(questions: tuple[Question, ...]) -> tuple[Question, ...]:
            return tuple(question for question in questions if question.tool_call_id not in calls)

        return self._with(
            open_calls=tuple(call for call in self.open_calls if call.id not in calls),
            unasked=tuple(call for call in self.unasked if call.id not in calls),
            questions=others(self.questions),
            verdicts=others(self.verdicts),
        )

    def unattended(self, why: str) -> Self:
        """Close all gates, since people can no longer be asked: waiting calls do not run, held values are withheld."""
        refused = {str(one.tool_call_id): why for one in self.gates if not one.is_held}
        held = [one.with_gate(status="rejected") for one in self.gates if one.is_held]
        rest = tuple(question for question in self.questions if question.gate is None)
        return self._with(questions=rest, refused={**self.refused, **refused}, verdicts=(*self.verdicts, *held))

    @property
    def has_fallback(self) -> bool:
        return self.fallback < len(self.fallbacks)

    def failed(self, error: str, *, for_good: bool = False) -> Self:
        """The model could not be called; the next one is, if there is one, unless a person has given up."""
        if self.has_fallback and not for_good:
            return self._with(fallback=self.fallback + 1, warning=None, nudge=None)
        return self._with(iterations=self.iterations + 1, ended=Finish("error", error))

    def goes_on_with(self, model: str | None) -> Self:
        """This model is called from now on; None is the agent's own."""
        return self._with(fallback=self.fallbacks.index(model) + 1 if model in self.fallbacks else 0)

    def spent(self, usage: Usage) -> Self:
        """Tokens were used by this run's model, or by an agent that it invoked."""
        total = usage + self.usage
        state = self._with(usage=total)
        if not self.loop.has_budget:
            return state
        if self.loop.has_session_budget:
            state = state._with(session_usage=usage + self.session_usage)
        if state.ended is not None:
            return state
        if not state.finished and (ended := state.spent_budget()) is not None:
            return state._with(ended=ended)
        budget, used = self.loop.budget, total.total_tokens
        if budget is None or state.warned or used < budget.max * budget.warning_threshold * (1 + state.grants[0]):
            return state
        return state._with(warned=True, warning=used)

    @property
    def used(self) -> Usage | None:
        waiting = self.questions or self.verdicts  # an answer that waits at a gate is in no transcript
        return with_held(self.usage, self.kept_questions) if waiting else self.usage

    def spent_budget(self) -> Finish | None:
        """Return how the run ends if its budget or its session's is spent; asked before each model call."""
        used = (self.used, self.session_usage)
        status = spent_budget(self.loop, used, self.grants) if self.loop.has_budget else None
        return None if status is None else Finish(status, self.response)

    def tokens_left(self, *of_turn: Usage | None) -> int | None:
        return tokens_left(self.loop, (self.used, *of_turn), self.grants)  # not yet in the run's usage

    @property
    def asks_for_more(self) -> bool:
        """Whether the budget is spent, and a person may let the run continue."""
        if self.loop.on_budget != "ask":
            return False
        ending = next_action(self) if self.ended is None else self.ended
        return isinstance(ending, Finish) and ending.status in get_args(SpentStatus)

    def granted(self) -> Self:
        """A person lets the run use its budget once more."""
        grants = more_grants(self.loop, (self.used, self.session_usage), self.grants)
        return self._with(ended=None, grants=grants, warned=False)

    def _judged_by_length(self, usage: Usage) -> Self:
        rule = self.loop.diminishing_returns
        if rule is None or self.ended is not None:
            return self
        short = self.short_calls + 1 if usage.total_tokens < rule.min_tokens else 0
        ended = Finish("diminishing-returns", self.response) if short >= rule.calls else None
        return self._with(short_calls=short, ended=ended)

    def stops_at(self, outcome: Outcome) -> bool:
        """Tell whether this outcome keeps further calls of the turn from starting."""
        return isinstance(outcome, Terminated) and self.on_terminal_tool_error == "fail"

    def recorded(self, outcomes: Sequence[Settled[CallT]]) -> list[Settled[CallT]]:
        """Return the outcomes that are results now; see `results_now`."""
        return results_now(outcomes, self.loop, ends=self._terminal(outcomes) is not None)

    def results(self, outcomes: Sequence[Settled[CallT]], used: UsedByAgents = MappingProxyType({})) -> list[Message]:
        """Return the tool messages of a turn's outcomes, in call order."""
        limit = self.loop.max_message_bytes
        results = [result_message(*one, limit, used.get(one[0].id)) for one in self.recorded(outcomes)]
        return [message for message in results if message is not None]

    def settled(self, outcomes: Sequence[Settled[CallT]], used: UsedByAgents = MappingProxyType({})) -> Self:
        """All open calls have an outcome, given in call order."""
        terminal = self._terminal(outcomes)
        ended = self.ended
        if terminal is not None and ended is None:
            ended = Finish("error", error_text(terminal), raises=self.on_terminal_tool_error == "fail")
        return self._handed_over(outcomes)._turn_ended(
            open_calls=(),
            verdicts=(),
            recovering=False,
            questions=self.asked(outcomes, used),
            progressed=self.progressed or any(isinstance(outcome, Returned) for _, outcome in outcomes),
            ended=ended,
        )

    def _handed_over(self, outcomes: Sequence[Settled[CallT]]) -> Self:
        target = handed_over_to(outcomes, self.tools)
        return self._with(agent=target, fallbacks=self.speakers.get(target, ()), fallback=0) if target else self

    def asked(
        self, outcomes: Sequence[Settled[CallT]], used: UsedByAgents = MappingProxyType({})
    ) -> tuple[Question, ...]:
        """Return the questions that are open afterwards; none if a terminal error ends the run."""
        if self._terminal(outcomes) is not None:
            return ()
        return self.questions + tuple(
            Question(
                question=question_of(call, outcome),
                tool_call_id=call.id,
                usage=used.get(call.id),
                unknown=why_unknown(outcome),
            )
            for call, outcome in outcomes
            if asks(outcome, self.loop)
        )

    def _terminal(self, outcomes: Sequence[Settled[CallT]]) -> TerminalError | None:
        if self.on_terminal_tool_error == "message":
            return None
        return next((outcome.error for _, outcome in outcomes if isinstance(outcome, Terminated)), None)

    def answered(self, question: Question | None = None) -> Self:
        """A question has been answered: the first one, if none is named."""
        call_id = (question or self.questions[0]).tool_call_id
        rest = tuple(one for one in self.questions if one.tool_call_id != call_id)
        if call_id is None:
            return self._with(questions=rest, finished=False, idle_turns=0)
        return self._turn_ended(questions=rest, progressed=True)

    def asked_instead(self, question: Question, outcome: Asked | Unknown) -> Self:
        """The call that a question is about has run, and asks again, or its outcome is unknown again."""
        text = outcome.question if isinstance(outcome, Asked) else question.question
        instead = question.model_copy(update={"question": text, "unknown": why_unknown(outcome)})
        return self._with(questions=tuple(instead if one == question else one for one in self.questions))

    def _turn_ended(self, **changes: Any) -> Self:
        """Apply changes; if nothing of the turn is open any more, judge whether the agent is stuck."""
        if changes["questions"] or changes.get("ended", self.ended) is not None:
            return self._with(**changes)
        # A call that was lost in a crash says nothing about the agent.
        idle = 0 if changes["progressed"] else self.idle_turns + (not self.recovering)
        if not 0 < self.loop.stuck_threshold <= idle:
            return self._with(**changes, idle_turns=idle)
        return self._with(**{**changes, **when_stuck(self.loop, idle, self.nudges)})


# --- budgets ---


def spent_budget(loop: Loop, used: tuple[Usage | None, Usage | None], grants: Grants) -> SpentStatus | None:
    """Return how a run ends that, with its session, has used this much; None as long as it may continue."""
    for (cost, tokens), times in zip(_shares(loop, used), grants, strict=True):
        if cost >= 1 + times:
            return "cost-budget-exhausted"
        if tokens >= 1 + times:
            return "token-budget-exhausted"
    return None


def with_held(usage: Usage | None, questions: Iterable[Question]) -> Usage | None:
    """Return the usage of a run, including an answer that one of its questions holds."""
    held = [one.usage for one in questions if one.is_held and one.usage is not None]
    return held[0] + usage if held else usage


def tokens_left(loop: Loop, used: Iterable[Usage | None], grants: Grants) -> int | None:
    """Return the tokens that a run may use before its budget of tokens is spent; None if it has none."""
    if (budget := loop.budget) is None:
        return None
    whole = math.ceil(budget.max * budget.stop_threshold * (1 + grants[0]))
    return whole - sum(usage.total_tokens for usage in used if usage is not None)


def more_grants(loop: Loop, used: tuple[Usage | None, Usage | None], grants: Grants) -> Grants:
    """Return the number of grants that raises the spent budgets above what was used."""
    run, session = (
        max(times, int(min(max(both), _MOST_GRANTS))) for both, times in zip(_shares(loop, used), grants, strict=True)
    )
    return run, session


def _shares(loop: Loop, used: tuple[Usage | None, Usage | None]) -> tuple[tuple[float, float], ...]:
    """Return the share of each budget that is used: of cost and of tokens."""
    budget = loop.budget
    limits = (
        (loop.cost_budget, None if budget is None else budget.max * budget.stop_threshold),
        (loop.session_cost_budget, loop.session_token_budget),
    )
    return tuple(
        (
            0 if cost is None or usage is None else (usage.cost or 0) / cost,
            0 if tokens is None or usage is None else usage.total_tokens / tokens,
        )
        for usage, (cost, tokens) in zip(used, limits, strict=True)
    )


# --- the calls of a turn ---

_UNASKED = "Not run: a guardrail has stopped it, and no one was asked to approve it. Call it again"


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


def when_stuck(loop: Loop, idle: int, nudges: int) -> dict[str, Any]:
    """Return the changes of the state of a run that is stuck.

    Args:
        idle: turns in a row without a successful call.
        nudges: how often the model was nudged before.
    """
    match loop.on_stuck:
        case "retry" if nudges < loop.stuck_retries:
            nudge = f"No tool call of your last {idle} turns succeeded. Try another way, or explain the obstacle."
            return {"idle_turns": 0, "nudges": nudges + 1, "nudge": nudge}
        case "escalate":
            text = f"No tool call of the last {idle} turns succeeded. How should the agent go on?"
            return {"idle_turns": idle, "questions": (Question(question=text),)}
        case _:
            return {"idle_turns": idle, "ended": Finish("stuck", "")}


# --- the outcomes of a turn ---


def asks(outcome: Outcome, loop: Loop) -> bool:
    """Whether a person is asked about an outcome."""
    return isinstance(outcome, Asked) or (isinstance(outcome, Unknown) and loop.on_unknown == "ask")


def results_now(outcomes: Sequence[Settled[CallT]], loop: Loop, *, ends: bool) -> list[Settled[CallT]]:
    """Return the outcomes that are results now, in call order; a question has none yet, unless the run `ends`."""
    found: list[Settled[CallT]] = []
    for call, outcome in outcomes:
        if not asks(outcome, loop):
            found.append((call, outcome))
        elif ends:
            found.append((call, left_unanswered(outcome)))
    return found


def left_unanswered(outcome: Outcome) -> Outcome:
    """Return the outcome of a call whose run ends before anybody answers its question; others are unchanged."""
    match outcome:
        case Asked(question, unknown=True):
            return Unknown(question)
        case Asked():
            return Cancelled("Not answered: the run ended")
    return outcome


def why_unknown(outcome: Outcome) -> str | None:
    """Return why the outcome of the call that a question is about is unknown; None if it asks something else."""
    match outcome:
        case Unknown(reason):
            return reason
        case Asked(question, unknown=True):
            return question
    return None


def with_unknown(questions: Sequence[Question], calls: Sequence[ToolCall]) -> tuple[Question, ...]:
    """Mark the questions about calls of unknown outcome that older versions have stored without this mark."""
    asked = {call.id: question_of(call, Unknown()) for call in calls} if questions else {}
    return tuple(
        one.model_copy(update={"unknown": ""})
        if one.unknown is None and one.question == asked.get(one.tool_call_id or "")
        else one
        for one in questions
    )


def nobody_answered(question: Question, waited: timedelta) -> Failed | Unknown:
    """Return the outcome of a question whose deadline has passed. It never hides that a call may have happened."""
    if question.unknown is None:
        return Failed(f"Nobody answered within {waited}")
    reason = question.unknown.removesuffix(".")
    return Unknown(
        f"{reason}; it was not resolved within {waited}" if reason else f"it was not resolved within {waited}"
    )
