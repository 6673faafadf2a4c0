"""Reads the forms of a run: decide, answer, repair. The run itself determines whether an act counts.

A form is read completely before any action, so that an unreadable form does nothing.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from standfast.errors import InputError
from standfast.messages import JSONObject, read_json
from standfast.messages import person as identity
from standfast.runtime.stored_gates import RECORDED
from standfast.temporal import StandfastClient
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visible_runs import remembered
from standfast.web.page.edits import read_edit

Form = Mapping[str, str]
_ARGUMENT, _MOST = "remember_arg.", "remember_most."  # fields of a standing approval


@dataclass(frozen=True, slots=True)
class Asked:
    """The act that a form requests.

    Args:
        said: the word for the completed act; see `SAID`.
        do: runs the act, once for each `id`.
    """

    said: str
    do: Callable[..., Awaitable[None]]


Read = Callable[[Form, Person], Asked]


def act_id(form: Form, *of: str) -> str | None:
    """Return the id of an act: the same form with the same text, sent twice, is one act.

    Returns None for a form without a key, as programs send it: each one is a separate act.
    """
    if not form.get("key"):
        return None
    typed = sorted((name, value) for name, value in form.items() if name not in ("csrf", "back"))
    return hashlib.blake2b(json.dumps([of, typed]).encode(), digest_size=16).hexdigest()


def _text(form: Form, name: str) -> str | None:
    return form.get(name, "").replace("\r\n", "\n").strip() or None


def _needed(form: Form, name: str) -> str:
    if (value := _text(form, name)) is None:
        raise InputError(f"{name.capitalize()} is missing")
    return value


def _one_of(form: Form, name: str, *allowed: str) -> Any:
    if (value := _needed(form, name)) not in allowed:
        raise InputError(f"{name.capitalize()} must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value


def decision_of(form: Form) -> Literal["approve", "reject"]:
    """Return the decision in a form.

    Raises:
        InputError: it has none.
    """
    decision: Literal["approve", "reject"] = _one_of(form, "decision", "approve", "reject")
    return decision


def comment_of(form: Form) -> str | None:
    """Return the reason in a form, if it has one."""
    return _text(form, "comment")


def _decide(form: Form, person: Person) -> Asked:
    decision, gate = decision_of(form), _needed(form, "gate")
    edit = read_edit(form) if decision == "approve" else None
    given: dict[str, Any] = {"comment": comment_of(form), "digest": _needed(form, "digest"), "edit": edit}
    given["remember"] = wish_in(form, person) if decision == "approve" else None

    async def decide(people: StandfastClient, run: str, **_: Any) -> None:
        await people.decide(run, gate, decision, by=person.name, **given)

    return Asked(decision, decide)


def _answer(form: Form, person: Person) -> Asked:
    text, call = _needed(form, "text"), _text(form, "call")
    return Asked("answer", partial(StandfastClient.answer, text=text, tool_call_id=call, by=person.name))


def _resume(form: Form, person: Person) -> Asked:
    action, name, model = _one_of(form, "action", "retry", "abort", "skip"), _text(form, "name"), _text(form, "model")
    reason = _needed(form, "reason") if action == "skip" else None
    given = {"action": action, "name": name, "model": model, "by": person.name, "reason": reason}
    return Asked(action, partial(StandfastClient.resume, **given))


def _resolve(form: Form, person: Person) -> Asked:
    decision = _one_of(form, "decision", "happened", "not-happened", "leave")
    call, result, reason = _needed(form, "call"), _text(form, "result"), _text(form, "reason")
    given = {"tool_call_id": call, "decision": decision, "result": result, "by": person.name, "reason": reason}
    return Asked("resolve", partial(StandfastClient.resolve, **given))


def _message(form: Form, person: Person) -> Asked:
    return Asked("message", partial(StandfastClient.message, text=_needed(form, "text"), by=person.name))


def _cancel(form: Form, person: Person) -> Asked:
    return Asked("cancel", partial(StandfastClient.cancel, by=person.name))


def _delete(form: Form, person: Person) -> Asked:
    keep = form.get("decisions") == "keep"
    return Asked("delete", partial(StandfastClient.delete_session, keep_decisions=keep, by=person.name))


# The page's text for a completed act, by the word in the address; no other text can be injected there.
SAID = {
    "approve": "Approved",
    "reject": "Rejected",
    "approve-recorded": f"Approved. {RECORDED}",
    "reject-recorded": f"Rejected. {RECORDED}",
    "answer": "Answered",
    "retry": "Tried again",
    "abort": "Run aborted",
    "skip": "Skipped",
    "resolve": "Settled",
    "message": "Message sent",
    "cancel": "Cancelled",
    "delete": "Deleted",
    "start": "Started",
    "started": "It was already started; nothing new has begun",
}

_ACT_OF = {"approval": "decide", "question": "answer", "unknown": "resolve", "pause": "resume"}


def may_act(person: Person, item: Mapping[str, Any]) -> bool:
    """Whether a person can act on a waiting item; the run itself has the last word."""
    act = "resume" if item.get("can_skip") else _ACT_OF.get(item["kind"])
    allowed = item.get("approvers") or [person.name]
    return act is not None and person.may(ACTS[act][0]) and identity(person.name) in map(identity, allowed)


def kinds_of(person: Person) -> tuple[str, ...]:
    """Return the kinds of items that a person of this role may end."""
    acts = {**_ACT_OF, "worker": "resume"}
    return tuple(kind for kind, act in acts.items() if person.may(ACTS[act][0]))


ACTS: dict[str, tuple[Role, Read]] = {
    "decide": ("approver", _decide),
    "answer": ("approver", _answer),
    "resume": ("operator", _resume),
    "resolve": ("operator", _resolve),
    "message": ("operator", _message),
    "cancel": ("operator", _cancel),
    "delete": ("operator", _delete),
}


def wish_in(form: Mapping[str, str], person: Person) -> JSONObject | None:
    """Return the standing approval that a form adds to an approval; None if nothing.

    Raises:
        InputError: it cannot be read, or this person may not give it.
    """
    scope = form.get("remember", "").strip()
    if not scope:
        return None
    arguments: JSONObject = {}
    for name in (name.removeprefix(_ARGUMENT) for name in form if name.startswith(_ARGUMENT)):
        match form[_ARGUMENT + name]:
            case "any":
                arguments[name] = {}
            case "most":
                arguments[name] = {"maximum": _number(name, form.get(_MOST + name, ""))}
    return remembered(person, {"scope": scope, "until": form.get("remember_until", "").strip(), "arguments": arguments})


def _number(name: str, text: str) -> Any:
    try:
        found = read_json(text)
    except InputError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InputError(f"{name}, at most: {text!r:.40} is not a number. Nothing was approved.")
    return found
