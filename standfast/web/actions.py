"""Carries out the forms of a run: decide, answer, repair. The run itself says whether each counts."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from standfast.errors import InputError
from standfast.messages import person as identity
from standfast.messages import read_object
from standfast.stores.protocol import Act
from standfast.temporal import StandfastClient
from standfast.temporal.client.runs import cancel_run
from standfast.web.access import Person, Role

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    """What was done.

    Args:
        said: the word for it; see `SAID`.
        act: for the audit trail; None for decisions, which the run itself puts there.
        of: the id of the call that it is about.
        comment: what was said, or why.
    """

    said: str
    act: Act | None = None
    of: str = ""
    comment: str | None = None


Doing = Callable[[StandfastClient, str, Form, Person], Awaitable[Done]]


def _text(form: Form, name: str) -> str | None:
    return form.get(name, "").replace("\r\n", "\n").strip() or None


def _needed(form: Form, name: str) -> str:
    if (value := _text(form, name)) is None:
        raise InputError(f"{name.capitalize()} is missing")
    return value


async def _decide(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    decision, gate, edit = _needed(form, "decision"), _needed(form, "gate"), None
    if decision not in ("approve", "reject"):
        raise InputError("Decision must be approve or reject")
    if decision == "approve" and "edit" in form:
        edit = _edited(_text(form, "edit") or "", _text(form, "shown"))
    await people.decide(
        run, gate, decision, by=person.name, comment=_text(form, "comment"), digest=_needed(form, "digest"), edit=edit  # type: ignore[arg-type]
    )  # fmt: skip
    return Done(decision)


def _edited(text: str, shown: str | None) -> dict[str, Any] | None:
    """Return the arguments that were typed instead of those that were shown; None if nothing was changed."""
    try:
        edit = read_object(text)
        json.loads(text, object_pairs_hook=_once)
    except InputError as error:
        raise InputError(f"Arguments: {error}. Nothing was approved.") from error
    return None if shown is not None and _same(edit) == _same(read_object(shown)) else edit


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a key twice: a reader sees one value, and the other one would be used."""
    if len(pairs) > len(found := dict(pairs)):
        raise InputError("an object has a key twice")
    return found


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # which tells true, 1 and 1.0 apart


async def _answer(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    text, call = _needed(form, "text"), _text(form, "call")
    await people.answer(run, text, tool_call_id=call, by=person.name)
    return Done("answer", "answer", of=call or "", comment=text)


async def _resume(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    action, model = _needed(form, "action"), _text(form, "model")
    reason = _needed(form, "reason") if action == "skip" else None
    await people.resume(
        run, action, name=_text(form, "name"), model=model, by=person.name, reason=reason  # type: ignore[arg-type]
    )  # fmt: skip
    return Done(
        action, "abort" if action == "abort" else "resume", comment=reason or (model and f"with the model {model}")
    )


async def _resolve(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    decision, result, reason = _needed(form, "decision"), _text(form, "result"), _text(form, "reason")
    call = _needed(form, "call")
    await people.resolve(run, call, decision, result=result, by=person.name, reason=reason)  # type: ignore[arg-type]
    return Done("resolve", "resolve", of=call, comment=": ".join(filter(None, [decision, result, reason])))


async def _message(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    text = _needed(form, "text")
    await people.message(run, text, by=person.name)
    return Done("message", "message", comment=text)


async def _cancel(people: StandfastClient, run: str, form: Form, person: Person) -> Done:
    await cancel_run(people.client, run, by=person.name)
    return Done("cancel", "cancel")


# What the page says when it is done, by the word in the address; no other text can be put there.
SAID = {
    "approve": "Approved",
    "reject": "Rejected",
    "answer": "Answered",
    "retry": "Tried again",
    "abort": "Given up",
    "skip": "Skipped",
    "resolve": "Settled",
    "message": "Said",
    "cancel": "Cancelled",
    "start": "Started",
    "started": "It had already been started; nothing new has begun",
}

_ACT_OF = {"approval": "decide", "question": "answer", "unknown": "resolve", "pause": "resume"}


def may_act(person: Person, item: Mapping[str, Any]) -> bool:
    """Whether somebody can do what an item waits for; the run itself has the last word."""
    act = "resume" if item.get("can_skip") else _ACT_OF.get(item["kind"])
    allowed = item.get("approvers") or [person.name]
    return act is not None and person.may(ACTS[act][0]) and identity(person.name) in map(identity, allowed)


ACTS: dict[str, tuple[Role, Doing]] = {
    "decide": ("approver", _decide),
    "answer": ("approver", _answer),
    "resume": ("operator", _resume),
    "resolve": ("operator", _resolve),
    "message": ("operator", _message),
    "cancel": ("operator", _cancel),
}
