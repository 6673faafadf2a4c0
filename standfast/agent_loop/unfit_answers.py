"""Handles a model's answer that is cut off, asks for too many calls, or does not fit the agent's output."""

from collections.abc import Mapping
from dataclasses import replace

from standfast.agent_loop.actions import Correct, Finish
from standfast.agent_loop.tool_facts import Answer, LoopCall


def end_of(answer: Answer[LoopCall]) -> Finish | None:
    """Return how an incomplete answer ends a run; if it has calls, the model is told instead, and the run continues."""
    if answer.stop_reason is None or answer.tool_calls:
        return None
    return Finish("max-tokens" if answer.stop_reason == "max-tokens" else "refused", answer.content)


def judge(finish: Finish, problem: str | None, *, may_correct: bool) -> Finish | Correct:
    """Return what to do at the end of a run whose answer has been read as the agent's output.

    Args:
        problem: why the answer does not fit; None if it does, or if nothing was read.
        may_correct: the model may be asked once more.
    """
    if problem is None or finish.answer is None:
        return finish
    if may_correct:
        return Correct(
            f"Your answer could not be used: {problem}. Answer again, with JSON alone that matches the schema."
        )
    return replace(finish, status="error")


def unfit_calls(answer: Answer[LoopCall], limit: int) -> Mapping[str, str]:
    """Return by id why calls of an answer do not run: there are too many, or the last one was cut off.

    Half of a call's arguments may be valid ones: `{"path": "/"}` is what `{"path": "/old"` begins with.
    """
    calls = answer.tool_calls or ()
    why = f"Not run: at most {limit} tool calls per turn (max_tool_calls); ask again for the others"
    unfit = {call.id: why for call in calls[limit:]}
    if (cut := cut_call(answer)) is not None:
        unfit[cut] = (
            f"Not run: your answer was cut off ({answer.stop_reason}), and this call may be half of what you meant; "
            "ask again, for less at once"
        )
    return unfit


def cut_call(answer: Answer[LoopCall]) -> str | None:
    """Return the id of the call in the middle of which an answer was cut off. That call never runs."""
    return answer.tool_calls[-1].id if answer.tool_calls and answer.stop_reason is not None else None
