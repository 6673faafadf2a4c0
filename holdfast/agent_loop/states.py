"""What an agent does next. Everything that decides it lives here; nothing here does I/O.

A driver asks `next_action(state)`, carries the action out and reports back with `replied`, `failed`, `settled` or
`answered`. Resuming is not a mode: `LoopState.fold` makes a state from a transcript, and the same loop goes on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from holdfast.agent_loop.transcripts import last_answer, result_message, unanswered
from holdfast.agents import Loop, OnTerminalToolError
from holdfast.checkpoints import Question, RunStatus
from holdfast.errors import TerminalError, ToolDurabilityError
from holdfast.messages import Message, ToolCall, Usage, error_text
from holdfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

Settled = tuple[ToolCall, Outcome]


class ToolFacts(Protocol):
    """What the loop needs to know of a tool."""

    @property
    def parallel(self) -> bool: ...
    @property
    def safe_to_retry(self) -> bool: ...
    @property
    def verify(self) -> object | None: ...


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model; a warning and a nudge are shown to it from now on (see `with_notices`).

    Args:
        warning: the tokens used when the budget's warning became due. Its text may be the user's code, which does
            not run here.
    """

    warning: int | None = None
    nudge: str | None = None


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run the batches one after the other, the calls of a batch together; `settled` ones are not run.

    Args:
        recovering: an earlier run may have started the calls; ask `verify` before a call with effects.
    """

    batches: tuple[tuple[ToolCall, ...], ...]
    settled: tuple[Settled, ...] = ()
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AskHuman:
    """Wait for the answer to `question`."""

    question: Question


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run.

    Args:
        raises: the terminal error of the turn is to be raised, once everything is recorded.
    """

    status: RunStatus
    response: str
    raises: bool = False

    @property
    def hook(self) -> Literal["on_complete", "on_stuck"] | None:
        """Which of the agent's hooks hears of it; after an error none does, and nothing more of the run is written."""
        if self.status == "error":
            return None
        return "on_complete" if self.status == "complete" else "on_stuck"


Action = CallModel | CallTools | AskHuman | Finish


def next_action(state: "LoopState") -> Action:
    """Return what is to be done now."""
    if state.open_calls:
        return _call_tools(state)
    if state.questions:
        return AskHuman(state.questions[0])
    if state.ended is not None:
        return state.ended
    if state.finished:
        return Finish("complete", state.response)
    if state.iterations >= state.loop.max_iterations:
        return Finish("max-iterations", state.response)
    return CallModel(state.warning, state.nudge)


def _call_tools(state: "LoopState") -> CallTools:
    if state.ended is not None:
        reason = f"Not run: the run ended with {state.ended.status}"
        return CallTools((), tuple((call, Cancelled(reason)) for call in state.open_calls))
    settled: list[Settled] = []
    calls = []
    for call in state.open_calls:
        if state.recovering and not _may_run_again(state.tools.get(call.name)):
            settled.append((call, Unknown()))  # also beyond the limit, which may have been another one then
        elif call.id in state.refused:
            limit = f"at most {state.loop.max_tool_calls} tool calls per turn (max_tool_calls)"
            settled.append((call, Failed(f"Not run: {limit}; ask again for the others")))
        else:
            calls.append(call)
    return CallTools(_batches(calls, state.tools), tuple(settled), state.recovering)


def _may_run_again(tool: ToolFacts | None) -> bool:
    """Nobody can tell whether an orphaned call ran. A tool that is gone may have had effects, too."""
    return tool is not None and (tool.safe_to_retry or tool.verify is not None)


def cut_off(tool: ToolFacts, name: str, after: float) -> Outcome:
    """Return what an attempt came to that went past its timeout of `after` seconds."""
    reason = f"it was cut off after its timeout of {after:g} s"
    return Failed(f'Tool "{name}": {reason}', raised=True) if tool.safe_to_retry else Unknown(reason)


def cancelled(tool: ToolFacts | None) -> Outcome:
    """Return what a call came to that was cancelled while it ran."""
    if tool is None or tool.safe_to_retry:
        return Cancelled("Cancelled while it ran")
    return Unknown("it was cancelled while it ran")


def _question(call: ToolCall, outcome: Outcome) -> str:
    if isinstance(outcome, Asked):
        return outcome.question
    return f"{ToolDurabilityError.sentence(call.name, call.id)} What came of it? The answer becomes its result."


def _batches(calls: Iterable[ToolCall], tools: Mapping[str, ToolFacts]) -> tuple[tuple[ToolCall, ...], ...]:
    """Put parallel calls that stand next to each other into one batch; every other call is a batch of its own."""
    batches: list[list[ToolCall]] = []
    open_batch = False
    for call in calls:
        parallel = call.name in tools and tools[call.name].parallel
        if parallel and open_batch:
            batches[-1].append(call)
        else:
            batches.append([call])
        open_batch = parallel
    return tuple(tuple(batch) for batch in batches)


# --- state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LoopState:
    """All that the next action depends on: a few numbers and the open calls, never the transcript.

    Args:
        loop, tools, on_terminal_tool_error: the agent's facts.
        iterations: model calls so far.
        response: the text of the last answer.
        finished: the last answer asked for no tool.
        open_calls: calls of the last answer without an outcome; `recovering` if an earlier run left them.
        refused: ids of calls beyond `max_tool_calls`, which never run.
        questions: open questions of the turn, in call order.
        progressed: a call of this turn succeeded.
        idle_turns: turns in a row without a successful call.
        warning, nudge: what the next `CallModel` carries; `warned`, `nudges` count those given.
    """

    loop: Loop
    tools: Mapping[str, ToolFacts]
    on_terminal_tool_error: OnTerminalToolError = "message"
    iterations: int = 0
    response: str = ""
    finished: bool = False
    open_calls: tuple[ToolCall, ...] = ()
    refused: frozenset[str] = frozenset()
    recovering: bool = False
    questions: tuple[Question, ...] = ()
    progressed: bool = False
    idle_turns: int = 0
    usage: Usage | None = None
    warning: int | None = None
    warned: bool = False
    nudge: str | None = None
    nudges: int = 0
    short_calls: int = 0
    ended: Finish | None = None

    def fold(
        self, messages: Sequence[Message], *, recovering: bool, questions: tuple[Question, ...] = ()
    ) -> "LoopState":
        """Return the state that a transcript leaves: what is unanswered, and whether it is finished.

        Args:
            recovering: its unanswered calls may have been started.
            questions: those of its unanswered calls that wait for a person.
        """
        asked = {question.tool_call_id for question in questions}
        last = last_answer(messages)
        return self._with(
            response=messages[last].content if last is not None else "",
            finished=last == len(messages) - 1 and not messages[last].tool_calls and not questions,
            open_calls=tuple(call for call in unanswered(messages) if call.id not in asked),
            refused=self._beyond_limit(() if last is None else messages[last].tool_calls or ()),
            recovering=recovering,
            questions=questions,
        )

    def _with(self, **changes: Any) -> "LoopState":
        """Do what `dataclasses.replace` does in a fifth of the time (0.6 µs); a step changes the state twice."""
        state = object.__new__(LoopState)
        state.__dict__.update(self.__dict__, **changes)
        return state

    def told(self) -> "LoopState":
        """The user said something new."""
        return self._with(finished=False, idle_turns=0)

    def replied(self, message: Message) -> "LoopState":
        """The model answered with `message`."""
        calls = message.tool_calls or ()
        state = self._with(
            iterations=self.iterations + 1,
            response=message.content,
            finished=not calls,
            open_calls=calls,
            refused=self._beyond_limit(calls),
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

    def _beyond_limit(self, calls: Sequence[ToolCall]) -> frozenset[str]:
        return frozenset(call.id for call in calls[self.loop.max_tool_calls :])

    def failed(self, error: str) -> "LoopState":
        """The model could not be called."""
        return self._with(iterations=self.iterations + 1, ended=Finish("error", error))

    def spent(self, usage: Usage) -> "LoopState":
        """Tokens were used by this run's model, or by an agent that it invoked."""
        used = usage + self.usage
        budget = self.loop.budget
        if budget is None or self.ended is not None:
            return self._with(usage=used)
        share = used.total_tokens / budget.max
        if share >= budget.stop_threshold and not self.finished:
            return self._with(usage=used, ended=Finish("token-budget-exhausted", self.response))
        if share >= budget.warning_threshold and not self.warned:
            return self._with(usage=used, warned=True, warning=used.total_tokens)
        return self._with(usage=used)

    def _judged_by_length(self, usage: Usage) -> "LoopState":
        rule = self.loop.diminishing_returns
        if rule is None or self.ended is not None:
            return self
        short = self.short_calls + 1 if usage.total_tokens < rule.min_tokens else 0
        ended = Finish("diminishing-returns", self.response) if short >= rule.calls else None
        return self._with(short_calls=short, ended=ended)

    def stops_at(self, outcome: Outcome) -> bool:
        """Tell whether, after this outcome, no further call of the turn may start."""
        return isinstance(outcome, Terminated) and self.on_terminal_tool_error == "fail"

    def recorded(self, outcomes: Sequence[Settled]) -> list[Settled]:
        """Return the outcomes that are results now, in call order. What a person is asked has none yet."""
        ends = self._terminal(outcomes) is not None
        result: list[Settled] = []
        for call, outcome in outcomes:
            if not self._asks(outcome):
                result.append((call, outcome))
            elif ends:
                unasked = Cancelled("Not asked: the run ended") if isinstance(outcome, Asked) else outcome
                result.append((call, unasked))
        return result

    def results(self, outcomes: Sequence[Settled]) -> list[Message]:
        """Return the tool messages of a turn's outcomes, in call order."""
        messages = (result_message(*settled, self.loop.max_message_bytes) for settled in self.recorded(outcomes))
        return [message for message in messages if message is not None]

    def _asks(self, outcome: Outcome) -> bool:
        return isinstance(outcome, Asked) or (isinstance(outcome, Unknown) and self.loop.on_unknown == "ask")

    def settled(self, outcomes: Sequence[Settled]) -> "LoopState":
        """All open calls have an outcome, given in call order."""
        terminal = self._terminal(outcomes)
        ended = self.ended
        if terminal is not None and ended is None:
            ended = Finish("error", error_text(terminal), raises=self.on_terminal_tool_error == "fail")
        return self._turn_ended(
            open_calls=(),
            recovering=False,
            questions=self.asked(outcomes),
            progressed=self.progressed or any(isinstance(outcome, Returned) for _, outcome in outcomes),
            ended=ended,
        )

    def asked(self, outcomes: Sequence[Settled]) -> tuple[Question, ...]:
        """Return the questions that are open then; none if a terminal error ends the run."""
        if self._terminal(outcomes) is not None:
            return ()
        return self.questions + tuple(
            Question(question=_question(call, outcome), tool_call_id=call.id)
            for call, outcome in outcomes
            if self._asks(outcome)
        )

    def _terminal(self, outcomes: Sequence[Settled]) -> TerminalError | None:
        if self.on_terminal_tool_error == "message":
            return None
        return next((outcome.error for _, outcome in outcomes if isinstance(outcome, Terminated)), None)

    def answered(self) -> "LoopState":
        """The first question has its answer."""
        first, *rest = self.questions
        if first.tool_call_id is None:
            return self._with(questions=tuple(rest), finished=False, idle_turns=0)
        return self._turn_ended(questions=tuple(rest), progressed=True)

    def asked_instead(self, question: Question) -> "LoopState":
        """The first question turned out to be another one."""
        return self._with(questions=(question, *self.questions[1:]))

    def _turn_ended(self, **changes: Any) -> "LoopState":
        """Apply changes; if nothing of the turn is open any more, judge whether the agent is stuck."""
        if changes["questions"] or changes.get("ended", self.ended) is not None:
            return self._with(**changes)
        # What a crash took says nothing about the agent.
        idle = 0 if changes["progressed"] else self.idle_turns + (not self.recovering)
        if not 0 < self.loop.stuck_threshold <= idle:
            return self._with(**changes, idle_turns=idle)
        match self.loop.on_stuck:
            case "retry" if self.nudges < self.loop.stuck_retries:
                nudge = f"No tool call of your last {idle} turns succeeded. Try another way, or say what hinders you."
                return self._with(**changes, idle_turns=0, nudges=self.nudges + 1, nudge=nudge)
            case "escalate":
                text = f"No tool call of the last {idle} turns succeeded. How should the agent go on?"
                return self._with(**{**changes, "questions": (Question(question=text),)}, idle_turns=idle)
            case _:
                return self._with(**{**changes, "ended": Finish("stuck", "")}, idle_turns=idle)
