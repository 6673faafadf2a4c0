"""Decides what guardrails and output validators check, what their verdicts mean, and which other answers do not fit.

Verdicts are kept with the answer (`Message.tripped`, `Message.unfit`).

An answer that trips one is never kept: a message instead of it names the guardrail and the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from pydantic_core import to_json

from standfast.agent_loop.actions import Correct, Finish
from standfast.agent_loop.gate_rules import GateRule, Holds
from standfast.agent_loop.tool_facts import Answer, LoopCall
from standfast.agents import Agent, Guardrail, OutputValidator
from standfast.agents.guardrails import declared
from standfast.checkpoints import EndStatus
from standfast.errors import StandfastError
from standfast.messages import Message, StopReason, ToolCall, Tripped, clean_text, cut, json_problem, size_over
from standfast.tools import Approval

WITHHELD = "[withheld by the guardrail "  # begins the message that replaces an answer
_REASON_BYTES = 2_000
_METADATA_BYTES = 8_192


def unheard_by_model(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of the user at the end of a transcript, on which no model has acted yet."""
    at = len(messages)
    while at and messages[at - 1].role == "user":
        at -= 1
    return list(messages[at:])


def needs_check(agent: Agent, answer: Message) -> list[ToolCall]:
    """Return the calls of an answer that can run, for guardrails to check."""
    unfit = unfit_calls(answer, agent.loop.max_tool_calls)
    return [call for call in answer.tool_calls or () if call.id not in unfit and call.name in agent.tool_map]


def refusal_of(guardrail: Guardrail, verdict: object) -> Tripped | None:
    """Read the result of a guardrail's function: the refusal, or None if the value passes.

    Raises:
        StandfastError: it returned something that is not a verdict.
    """
    if verdict is None or verdict is True:
        return None
    given = Tripped(verdict) if isinstance(verdict, str) else verdict
    if not isinstance(given, Tripped) or not isinstance(given.reason, str) or not given.reason.strip():
        raise StandfastError(
            f"Guardrail {guardrail.name} returned {verdict!r:.80}: return None to let it pass, or Tripped(reason)"
        )
    if not isinstance(given.metadata, Mapping):
        raise StandfastError(f"Guardrail {guardrail.name}: metadata must be a mapping, got {given.metadata!r:.80}")
    metadata = dict(given.metadata)
    if (problem := json_problem(metadata)) or size_over(to_json(metadata).decode(), _METADATA_BYTES):
        raise StandfastError(
            f"Guardrail {guardrail.name}: metadata: {problem or f'longer than {_METADATA_BYTES:,} bytes'}"
        )
    asks = guardrail.approval is not None
    return Tripped(cut(clean_text(given.reason), _REASON_BYTES), metadata, guardrail.name, asks=asks)


def reason_of(validator: OutputValidator, verdict: object) -> str | None:
    """Return why an output validator refuses an output, as its verdict says; None if it takes it.

    Raises:
        StandfastError: it returned something that is not a verdict.
    """
    if verdict is None or verdict is True:
        return None
    if not isinstance(verdict, str) or not verdict.strip():
        name = getattr(validator, "__name__", type(validator).__name__)
        raise StandfastError(
            f"Output validator {name} returned {verdict!r:.80}: return None to take the output, or the reason as text"
        )
    return cut(clean_text(verdict), _REASON_BYTES)


def withheld(answer: Message, tripped: Tripped, why: str = "") -> Message:
    """Return the message that replaces a withheld answer, with that answer's usage.

    Args:
        why: the decision on it at a gate.
    """
    text = f"{WITHHELD}{tripped.guardrail}: {tripped.reason}{why}]"
    # An earlier version reads it as an answer that a content filter has stopped.
    changes = {"content": text, "tool_calls": None, "reasoning": None, "stop_reason": "content-filter"}
    return answer.model_copy(update={**changes, "tripped": (tripped,)})


def with_refused_calls(answer: Message, refused: Iterable[tuple[str, Tripped]]) -> Message:
    """Return an answer with the refusals of its calls, by id, added to those that it already has."""
    found = [replace(tripped, tool_call_id=call_id) for call_id, tripped in refused]
    places = {(one.tool_call_id, one.guardrail) for one in found}
    known = [one for one in answer.tripped or () if (one.tool_call_id, one.guardrail) not in places]
    return answer.model_copy(update={"tripped": (*known, *found)}) if found else answer


def withholds(agent: Agent) -> bool:
    """Whether no word of an answer may be shown before all of it has been checked."""
    if not agent.input_guardrails or agent.output_guardrails:
        return bool(agent.output_guardrails)
    return any(one.beside for one in declared(agent.input_guardrails))


def approval_of_guardrail(agent: Agent, name: str, holds: Holds | Literal[""] = "") -> Approval | None:
    """Return the current approval of a guardrail; None if it has none or was removed.

    Args:
        holds: what it checks, if that is not a call.
    """
    checks = {"message": agent.input_guardrails, "answer": agent.output_guardrails}.get(holds, agent.tool_guardrails)
    return next((one.approval for one in declared(checks) if one.name == name), None)


def rule_of(agent: Agent, approval: Approval, guardrail: str = "", holds: Holds | Literal[""] = "") -> GateRule:
    """Return the rule of an approval of an agent's tool or guardrail; see `GateRule.of`."""
    patience = agent.loop.answer_seconds
    return GateRule.of(approval, patience=patience, guardrail=guardrail, holds=holds)


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
