"""Holds at a gate what a guardrail has stopped and that is not a call: what the user has said, or a final answer.

The held content is kept with the question, beside the transcript, and becomes part of it if people approve. Otherwise
the message that stands in its place does, and nothing else has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop.gate_rules import Holds, in_turn
from standfast.agent_loop.gates import Gate, digest_of
from standfast.agent_loop.guardrails import approval_of_guardrail, rule_of, withheld
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import JSONObject, Message, Tripped, cut, distinct_people
from standfast.tools import shown_values

_MESSAGE_BYTES = 4 * 1024  # of the question to people
_SHOWN_BYTES = 256 * 1024  # it is stored three times in a row of the store, with the answer; a row of D1 has 2 MB
_USUAL: Mapping[Holds, str] = {"message": "May the agent answer this?", "answer": "May this answer be given?"}


@dataclass(frozen=True, slots=True)
class Held:
    """What guardrails have stopped until people decide.

    Args:
        answer: as the model gave it, with the verdicts; an empty one if the model must not be asked before, or if its
            answer was dropped.
        shown: what people see.
        texts: the messages of each guardrail's approval, and of those to whom it escalates.
    """

    holds: Holds
    answer: Message
    shown: Sequence[Mapping[str, Any]]
    texts: Sequence[Sequence[str]]


def hold(
    agent: Agent,
    stopped: Sequence[tuple[Tripped, Message]],
    answer: Message,
    what: Holds,
    seen: Iterable[Message],
) -> Held | Message:
    """Return the held value, or its replacement if people cannot see all of it.

    Args:
        stopped: the verdicts of guardrails, each with the first message that it is about.
        seen: by people: everything that the guardrails let pass if they approve.
        answer: of the model; if `what` is the user's message, it is dropped, and only its usage counts.
    """
    verdicts = tuple(verdict for verdict, _ in stopped)
    dropped = {"content": "", "tool_calls": None, "reasoning": None, "stop_reason": None} if what == "message" else {}
    try:
        shown = _shown(what, seen)
    except InputError as error:
        return withheld(answer, replace(verdicts[0], asks=False), f"; people cannot be shown all of it: {error}")
    texts = [
        [_text(verdict, message, what, one.shown(message.model_copy(deep=True))) for one in approval.chain]
        for verdict, message in stopped
        if (approval := approval_of_guardrail(agent, verdict.guardrail, what)) is not None
    ]
    return Held(what, answer.model_copy(update={**dropped, "tripped": verdicts}), shown, texts)


def _text(verdict: Tripped, message: Message, what: Holds, said: str) -> str:
    why = f"The guardrail {verdict.guardrail} has stopped it: {verdict.reason}"
    return f"{cut(said, _MESSAGE_BYTES - len(why.encode())) or _USUAL[what]}\n{why}"


def _shown(what: Holds, messages: Iterable[Message]) -> list[JSONObject]:
    found: list[JSONObject] = []
    for message in messages:
        found += shown_values({what.title(): message.content} if message.content or not message.images else {})
        for image in message.images or ():
            found += shown_values({"Image": image if image.url is None else image.url})
    if (size := len(to_json(found))) > _SHOWN_BYTES:
        raise InputError(f"{size:,} bytes, more than {_SHOWN_BYTES:,}")
    return found


def question_about(
    agent: Agent,
    held: Held,
    number: int,
    *,
    at: datetime,
    requesters: Iterable[str | None],
    asked_at: datetime | None = None,
) -> Question:
    """Return the question at the gate that holds something; all who are asked must approve it, one after the other.

    Args:
        number: the answer's message number in its session.
        at: the time now.
        requesters: who has spoken to the run.
        asked_at: when people were asked according to an untrusted source; an expired time stays expired.
    """
    name, asks = f"{held.holds}-{number}", held.answer.tripped or ()
    rules = [
        rule_of(agent, approval, verdict.guardrail, held.holds)
        for verdict in asks
        if (approval := approval_of_guardrail(agent, verdict.guardrail, held.holds)) is not None
    ]
    first, *later = in_turn(rules, held.texts, lambda text, _: digest_of(name, text, held.shown))
    gate = Gate(
        name=name,
        rule=replace(first, message="", digest=""),
        digest=first.digest,
        since=at if asked_at is None or any(one.opens_by_time for one in rules) else min(at, asked_at),
        requesters=distinct_people(requesters),
        arguments=list(held.shown),
        later=tuple(later),
    )
    return Question(
        question=first.message, tool_call_id=name, gate=gate.plain(), usage=held.answer.usage, held=held.answer
    )


def released(question: Question) -> Message | None:
    """Return the message after a held answer was decided: the answer or its replacement; None to ask the model."""
    gate, held = Gate.read(question.gate or {}), question.held or Message(role="assistant")
    if gate.status == "approved":
        return None if gate.holds == "message" else held.model_copy(update={"tripped": None})
    verdicts = held.tripped or (Tripped("it was stopped", guardrail=gate.rule.guardrail),)
    by = next((one for one in verdicts if one.guardrail == gate.rule.guardrail), verdicts[0])
    return withheld(held, replace(by, asks=False), _why(gate))


def _why(gate: Gate) -> str:
    if gate.last is None:
        return "; it was not decided in time" if gate.status == "timed-out" else "; it was not approved"
    comment = "" if gate.last.comment is None else f": {gate.last.comment}"
    return f"; {gate.last.by or 'somebody'} has rejected it{comment}"


def with_dropped(answer: Message, question: Question) -> Message:
    """Return an answer with the usage of the one that was dropped before people let the model be asked."""
    dropped = question.held
    if dropped is None or dropped.usage is None:
        return answer
    cost = None if answer.cost is dropped.cost is None else (answer.cost or 0) + (dropped.cost or 0)
    return answer.model_copy(update={"usage": dropped.usage + answer.usage, "cost": cost})
