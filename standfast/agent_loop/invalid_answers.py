"""Handles a model's answer that is cut off, asks for too many calls, or does not fit the agent's output."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from standfast.agent_loop.actions import Correct, Finish
from standfast.agent_loop.tool_facts import Answer, LoopCall
from standfast.checkpoints import EndStatus
from standfast.messages import StopReason, Tripped

_ENDS: Mapping[StopReason, EndStatus] = {
    "max-tokens": "max-tokens",
    "refusal": "refused",
    "content-filter": "refused",
    "empty": "empty",
}


class Unfit(NamedTuple):
    """What of an answer cannot be used.

    Args:
        ended: how an incomplete answer ends the run; if it has calls, the model is told instead, and the run continues.
        refused: why calls do not run, by id.
        cut: the id of the call in the middle of which the answer was cut off. That call never runs.
        barred: ids of calls that guardrails have refused. They never run, either.
        stopped: ids of calls that guardrails have stopped until people decide.
    """

    ended: Finish | None
    refused: Mapping[str, str]
    cut: str | None
    barred: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


def unfit(answer: Answer[LoopCall], limit: int) -> Unfit:
    """Return what of an answer cannot be used, if at most `limit` calls run in a turn."""
    reason, calls = answer.stop_reason, answer.tool_calls or ()
    if reason is None and not answer.tripped and len(calls) <= limit:
        return Unfit(None, {}, None)
    refused = unfit_calls(answer, limit)
    if answer.tripped and not calls:
        return Unfit(Finish("guardrail-tripped", answer.content, tripped=answer.tripped[0]), refused, None)
    if reason is None or calls:
        stopped = dict.fromkeys(one.tool_call_id for one in answer.tripped or () if one.asks and one.tool_call_id)
        return Unfit(None, refused, _cut_call(answer), tuple(refused_by_guardrails(answer)), tuple(stopped))
    return Unfit(Finish(_ENDS[reason], answer.content), refused, None)


def judge(finish: Finish, problem: str | None, refused: str | None, *, may_correct: bool) -> Finish | Correct:
    """Return what to do at the end of a run whose answer has been read as the agent's output.

    Args:
        problem: why the answer is not of the output's type; None if it is, or if nothing was read.
        refused: why an output validator does not take it.
        may_correct: the model may be asked once more.
    """
    if finish.answer is None or (problem is None and refused is None):
        return finish
    if may_correct:
        return Correct(correction(problem, refused))
    return replace(finish, status="error")


def correction(problem: str | None, refused: str | None) -> str:
    """Return the correction for the model after an answer of the wrong type, or one that a validator refused."""
    if refused is not None:
        return f"Your answer was not accepted: {refused.rstrip('.')}. Answer again."
    return f"Your answer was not accepted: {problem}. Answer again, only with JSON that matches the schema."


def refused_by_guardrails(answer: Answer[LoopCall]) -> dict[str, str]:
    """Return by id why guardrails do not let calls of an answer run."""
    return {
        one.tool_call_id: refusal_by_guardrail(one)
        for one in answer.tripped or ()
        if one.tool_call_id is not None and not one.asks
    }


def refusal_by_guardrail(tripped: Tripped) -> str:
    """Return what the model reads about a call that a guardrail has refused."""
    return f"Not run: the guardrail {tripped.guardrail} refused it: {tripped.reason}"


def unfit_calls(answer: Answer[LoopCall], limit: int) -> Mapping[str, str]:
    """Return by id why calls of an answer do not run: there are too many, or the last one was cut off.

    Half of a call's arguments may be valid ones: `{"path": "/"}` is what `{"path": "/old"` begins with.
    """
    calls = answer.tool_calls or ()
    why = f"Not run: at most {limit} tool calls per turn (max_tool_calls); ask again for the others"
    refused = {**refused_by_guardrails(answer), **{call.id: why for call in calls[limit:]}}
    if (cut := _cut_call(answer)) is not None:
        refused[cut] = (
            f"Not run: your answer was cut off ({answer.stop_reason}), and this call may be half of what you meant; "
            "ask again, for less at once"
        )
    return refused


def _cut_call(answer: Answer[LoopCall]) -> str | None:
    return answer.tool_calls[-1].id if answer.tool_calls and answer.stop_reason is not None else None
