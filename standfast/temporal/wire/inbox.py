"""Keeps the messages and answers sent to a run until the run takes them, checked against its waiting items.

This module does not act. Invalid signals are noted with the reason; invalid updates are refused with the reason.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from pydantic_core import to_json

from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import LONGEST_ID, JSONObject, cut, json_problem, read_images, size_over
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import (
    LONGEST_NAME,
    PARKED_MESSAGES,
    VALUES,
    Owner,
    Said,
    check_json,
    check_names,
    is_stranger,
    read_fields,
    said_by_user,
)

_REASON_BYTES = 4 * 1024  # of the reason for a skip, which the model reads
NOTED = 10  # refusals that `status` shows
TOLD = 200  # notices that a run remembers, so that it does not send them again after it has continued as new
OUTCOMES = 500  # outcomes of signals with an id that a run remembers
_ID_BYTES = 100  # of such an id in a history; a longer one is remembered by its digest


ANSWER_FIELDS: Mapping[str, type] = {"tool_call_id": str, "text": str, "by": str}


class LaterError(InputError):
    """A signal cannot be taken in now; the same signal, sent again later, may be."""


class EarlyError(LaterError):
    """A signal names an item that does not wait now, but may wait soon; see `client.sending`."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The signal behind a message or answer: the n-th with this name and data, from 1.

    Args:
        id: the id that its sender has given it, to look up its outcome.
    """

    name: str = ""
    digest: str = ""
    number: int = 0
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question; `tool_call_id` None means the first open one.

    Args:
        sent: the signal that brought it; its sender is notified once the answer is stored.
        is_late: its deadline had passed when a worker received it; the signal may have been sent in time.
    """

    text: str
    tool_call_id: str | None = None
    by: str | None = None
    sent: Sent = field(default_factory=Sent)
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """A decision on a paused run, or on a call or step that no worker has.

    Args:
        late: the signal that brought it, if its deadline had passed when a worker received it.
        name: the name of the waiting item; all pauses if None.
        model: replaces the agent's model from now on.
    """

    action: Literal["retry", "abort", "skip"]
    name: str | None = None
    model: str | None = None
    by: str | None = None
    reason: str | None = None
    late: Sent | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """An operator's finding about a call of unknown outcome; `sent` as in an `Answer`."""

    tool_call_id: str
    decision: Literal["happened", "not-happened", "leave"]
    result: str = ""
    by: str | None = None
    reason: str | None = None
    sent: Sent = field(default_factory=Sent)


@dataclass(slots=True)
class Mailbox:
    """All messages that have arrived, and what the run remembers of them.

    Args:
        answers: by call id; "" for the loop's own question.
        answered: ids of calls that have been answered.
        unwritten: senders of answers that the run has taken in and that are not stored yet, and the answers' calls.
        refused: the last messages that changed nothing, and the reasons.
        told: the last notices that were sent.
        outcomes: those of the last signals with an id, by id: `{"accepted": True, …}` or `{"refused": why}`, with
            `"again"` if that may change. `"early"` is the time at which the run refused it, if it changes once the
            named item begins to wait.
        used: the purpose of each of these ids, and a digest; see `use_of`.
    """

    messages: list[Said] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    resolves: dict[str, Resolve] = field(default_factory=dict)
    unwritten: list[tuple[str, str]] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    outcomes: dict[str, JSONObject] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)

    def note(self, name: str, reason: str, at: str) -> None:
        """Keep the reason why a message was not used."""
        self.refused = [*self.refused[1 - NOTED :], {"name": name, "reason": reason[:500], "at": at}]

    def came_of(self, sent: str | None, **outcome: Any) -> None:
        """Keep the outcome of a signal with an id, for its sender."""
        if sent is not None:
            self.outcomes[sent] = outcome
        if len(self.outcomes) > OUTCOMES:
            del self.outcomes[next(iter(self.outcomes))]

    def reused(self, sent: str, digest: str) -> str | None:
        """Return why an id cannot be used for a signal with this digest, if it was used for another; None if it can."""
        what, known = self.used.get(sent, ("", digest))
        return None if known == digest else f"id {sent} was already used for {what}: use a different id for each"

    def message_key(self, sent: str, digest: str) -> str:
        """Return the key under which a message's outcome is kept.

        The same message with the same id, sent in another way, has a different key.
        """
        what, known = self.used.get(sent, ("", digest))
        return sent if known == digest or what != names.MESSAGE else f"{sent}#{digest}"

    def use(self, sent: str, use: list[str]) -> None:
        """Remember the purpose of an id."""
        self.used[sent] = use
        if len(self.used) > OUTCOMES:
            del self.used[next(iter(self.used))]

    # --- reading; each raises InputError ---

    def read_message(self, data: object, limit: int, owner: Owner, message_id: str | None = None) -> Said:
        known: dict[str, type] = {"text": str, "images": list, "by": str, "from": dict}
        fields = read_fields(data, "message", known, own=("from",))
        text: str = _required(fields, "message", "text")
        by = fields.get("by")
        if "from" in fields:  # a sender who names a user is held to it
            who = read_fields(fields["from"], "message: from", {"user_id": str, "tenant_id": str})
            if is_stranger(owner, (who.get("user_id"), who.get("tenant_id"))):
                raise InputError("message: the run belongs to another user")
            by = by or who.get("user_id")
        check_names({"by": by}, "message")
        _check_size(text, limit)
        images = read_images(fields.get("images", ()), limit)
        if len(self.messages) >= PARKED_MESSAGES:
            raise LaterError(f"message: {len(self.messages)} messages are already waiting; try again later")
        return said_by_user(text, images, by, message_id=message_id)

    def read_answer(self, data: object, questions: tuple[Question, ...], limit: int) -> Answer:
        fields = read_fields(data, "answer", ANSWER_FIELDS)
        answer = Answer(**{"text": _required(fields, "answer", "text"), **fields})
        _check_size(answer.text, limit)
        open_ids = [question.tool_call_id or "" for question in questions]
        waiting = [call_id for call_id in open_ids if call_id not in self.answers]
        call_id = answer.tool_call_id
        if call_id is None:
            if not waiting:
                raise EarlyError("answer: the run does not wait for an answer" + _already(self.answered))
            return replace(answer, tool_call_id=waiting[0])
        if call_id in self.answered or (call_id in open_ids and call_id in self.answers):
            raise InputError(f"answer: call {call_id} already has its answer")
        if call_id not in waiting:
            shown = ", ".join(waiting) or "nothing"
            raise EarlyError(f"answer: call {call_id} does not ask anything; the run waits for the answer to {shown}")
        return answer

    def read_resume(self, data: object, paused: Sequence[str], lacking: Sequence[str]) -> Resume:
        known = {"action": str, "name": str, "model": str, "by": str, "reason": str}
        fields = read_fields(data, "resume", known)
        action, name = fields.setdefault("action", "retry"), fields.get("name")
        if action not in ("retry", "abort", "skip"):
            raise InputError(f'resume: action must be "retry", "abort" or "skip", got {action!r}')
        waiting = list(dict.fromkeys(lacking if action == "skip" else paused))
        if not waiting and action == "skip":
            raise EarlyError("resume: the run does not wait for a call or step that can be skipped")
        if not waiting:
            raise EarlyError("resume: the run is not paused")
        if name is not None and name not in waiting:
            raise EarlyError(f"resume: {name} does not wait for that; waiting: {', '.join(waiting)}")
        if action == "skip" and not fields.get("reason", "").strip():
            raise InputError("resume: skip needs a reason, which the model reads")
        if action == "skip" and name is None and len(waiting) > 1:
            raise InputError(f"resume: name the call or step to skip, one of {', '.join(waiting)}")
        if action == "skip":
            fields |= {"name": waiting[0] if name is None else name, "reason": cut(fields["reason"], _REASON_BYTES)}
        return Resume(**fields)

    def read_resolve(self, data: object, unknown: Mapping[str, object]) -> Resolve:
        fields = read_fields(
            data,
            "resolve",
            {"tool_call_id": str, "decision": str, "result": object, "by": str, "reason": str},
        )
        call_id = _required(fields, "resolve", "tool_call_id")
        decision = _required(fields, "resolve", "decision")
        if decision not in ("happened", "not-happened", "leave"):
            raise InputError(f'resolve: decision must be "happened", "not-happened" or "leave", got {decision!r}')
        if "result" in fields and decision != "happened":
            raise InputError('resolve: a result goes with the decision "happened"')
        if decision == "happened" and (not isinstance(data, dict) or "result" not in data):
            raise InputError('resolve: "happened" needs the result of the call; null if it has none')
        if call_id not in unknown or call_id in self.resolves or call_id in self.answers:
            waiting = ", ".join(key for key in unknown if key not in self.resolves) or "no call"
            raise EarlyError(f"resolve: call {call_id} does not wait for it; waiting: {waiting}")
        result = fields.pop("result", None)
        check_json(result, "resolve: result")
        return Resolve(**fields, result=result if isinstance(result, str) else to_json(result).decode())

    # --- keeping ---

    def keep_answer(self, answer: Answer) -> None:
        self.answers[answer.tool_call_id or ""] = answer

    def take_answer(self, call_id: str | None) -> Answer:
        self.answered = [*self.answered[-PARKED_MESSAGES:], *([call_id] if call_id else [])]
        return self.answers.pop(call_id or "")

    def take_resolve(self, call_id: str) -> Resolve:
        self.note_taken(resolve := self.resolves.pop(call_id))
        return resolve

    def note_taken(self, taken: Answer | Resolve) -> None:
        """Note the sender to notify of an answer that the run has taken in, once it is stored."""
        if taken.sent.id is not None:
            self.unwritten.append((taken.sent.id, taken.tool_call_id or ""))

    def written(self) -> None:
        """Notify the senders of the answers that the run has taken in: they are now stored."""
        for sent_id, call_id in self.unwritten:
            self.came_of(sent_id, accepted=True, tool_call_id=call_id)
        self.unwritten = []

    def refuse_all(self) -> None:
        """Notify the senders of answers that the run has not taken in that the run ends."""
        for name, box in (("answer", self.answers), ("resolve", self.resolves)):
            for one in cast("Mapping[str, Answer | Resolve]", box).values():
                self.came_of(one.sent.id, refused=f"{name}: the run has ended")

    def take_messages(self) -> list[Said]:
        taken, self.messages = self.messages, []
        return taken

    def carried(self) -> JSONObject:
        """Return as JSON the state that a run must not lose when it continues as new."""
        data: JSONObject = {
            "messages": self.messages,
            "answers": [
                [answer.tool_call_id, answer.text, answer.by, *([answer.sent.id] if answer.sent.id else [])]
                for answer in self.answers.values()
            ],
            "answered": self.answered,
            "resolves": [
                {
                    "tool_call_id": item.tool_call_id,
                    "decision": item.decision,
                    "result": item.result,
                    "by": item.by,
                    "reason": item.reason,
                    **({"sent": item.sent.id} if item.sent.id else {}),
                }
                for item in self.resolves.values()
            ],
            "refused": self.refused,
            "told": self.told,
            "outcomes": self.outcomes,
            "used": self.used,
        }
        return {name: value for name, value in data.items() if value}

    def take_over(self, data: Mapping[str, Any]) -> None:
        """Take in the state of the previous run; signals that have arrived in the meantime come after it."""
        self.messages = [*data.get("messages", ()), *self.messages]
        for call_id, text, by, *sent in data.get("answers", ()):
            self.answers.setdefault(call_id or "", Answer(text, call_id, by, Sent(id=sent[0] if sent else None)))
        for item in data.get("resolves", ()):
            sent_by = Sent(id=item.get("sent"))
            self.resolves.setdefault(item["tool_call_id"], Resolve(**{**item, "sent": sent_by}))
        self.answered = [*data.get("answered", ()), *self.answered]
        self.refused = [*data.get("refused", ()), *self.refused][-NOTED:]
        self.told = [*data.get("told", ()), *self.told][-TOLD:]
        self.outcomes = {**data.get("outcomes", {}), **self.outcomes}
        self.used = {**data.get("used", {}), **self.used}


def use_of(name: str, data: Mapping[str, Any]) -> list[str]:
    """Return a signal's purpose as text, and the digest of its name and of all its data except its id."""
    given = {key: value for key, value in data.items() if key != "id"}
    what = " of ".join([name, *(str(given[key]) for key in ("gate", "tool_call_id", "name") if key in given)][:2])
    written = "" if json_problem(given, VALUES) else json.dumps([name, given], sort_keys=True)  # the same in any order
    return [cut(what, LONGEST_NAME), hashlib.blake2b(written.encode(), digest_size=16).hexdigest()]


def split_id(data: object) -> tuple[str | None, object]:
    """Return the id given to a signal by its sender, or None, and the remaining data.

    Raises:
        InputError: the id is not valid.
    """
    if not isinstance(data, dict) or data.get("id") is None:
        return None, data
    return check_sent_id(data["id"]), {name: value for name, value in data.items() if name != "id"}


def remembered_id(sent: str) -> str:
    """Return the form in which a run remembers an id: a run keeps hundreds of them."""
    written = sent.encode()
    return sent if len(written) <= _ID_BYTES else f"#{hashlib.blake2b(written, digest_size=16).hexdigest()}"


def check_sent_id(sent: object) -> str:
    """Return the id of a signal.

    Raises:
        InputError: it is invalid.
    """
    if not isinstance(sent, str) or not 0 < len(sent) <= LONGEST_ID or not sent.isprintable():
        raise InputError(f"id must be text of 1 to {LONGEST_ID} characters, got {sent!r:.80}")
    return sent


def _required(fields: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in fields:
        raise InputError(f"{what}: {name!r} is missing")
    return fields[name]


def _check_size(text: str, limit: int) -> None:
    if size := size_over(text, limit):
        raise InputError(f"text: {size:,} bytes, more than max_message_bytes={limit:,}; shorten it")


def _already(answered: list[str]) -> str:
    return f"; call {answered[-1]} already has its answer" if answered else ""
