"""Decides which outcomes of a turn's calls are results and which are questions, and how unanswered questions end."""

from collections.abc import Sequence
from datetime import timedelta

from standfast.agent_loop.actions import Settled
from standfast.agent_loop.tool_facts import CallT
from standfast.agent_loop.transcripts import question_of
from standfast.agents import Loop
from standfast.checkpoints import Question
from standfast.messages import ToolCall
from standfast.tools import Asked, Cancelled, Failed, Outcome, Unknown


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
            found.append((call, _not_asked(outcome)))
    return found


def _not_asked(outcome: Outcome) -> Outcome:
    match outcome:
        case Asked(question, unknown=True):
            return Unknown(question)
        case Asked():
            return Cancelled("Not asked: the run ended")
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
