"""Holds conversations with an agent for the endpoints of other protocols: messages, streamed words, waiting items.

A conversation is a session. This process keeps no state of it: the client's requests contain all that continues it.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from standfast.errors import InputError, StandfastError
from standfast.events import (
    AnswerDelta,
    Event,
    GateOpened,
    QuestionAsked,
    ReasoningDelta,
    RunEnded,
    StatusChanged,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from standfast.messages import JSONObject
from standfast.temporal.client.history.event_streams import read_event_id
from standfast.web.api.calls import Begun, Doors, act_id
from standfast.web.api.models import StartRun
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visible_runs import admit
from standfast.web.page.edits import editable_of
from standfast.web.page.gate_contents import load_whole

ANSWERED = ("approval", "question", "unknown", "pause")  # items that a person can end
_FIRST = "0/1.0"  # represents none
_LOOKS, _PAUSE = 20, 0.1  # checks for waiting items after an event that reports one, and seconds between them
_RIGHTS: dict[str, tuple[Role, str]] = {
    "approval": ("approver", "decide"),
    "question": ("approver", "answer"),
    "unknown": ("operator", "resolve"),
    "pause": ("operator", "resume"),
}


@dataclass(frozen=True, slots=True)
class Talk:
    """A run with a listener, from the event with the id `after` on.

    Args:
        settled: the items that the listener has settled; the board may show them for a moment longer.
    """

    run: str
    after: str | None = None
    settled: tuple[JSONObject, ...] = ()


Kind = Literal["thoughts", "text"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Words that a client lacks.

    Args:
        is_new: the words sent before are void: they belonged to a lost attempt, and cannot be retracted.
    """

    kind: Kind
    words: str
    is_new: bool = False


@dataclass(slots=True)
class _Words:
    """The sent words that share a kind."""

    kind: Kind
    _told: str = ""
    _now: str = ""

    def more(self, event: AnswerDelta) -> Iterator[Piece]:
        self._now = self._now[: event.offset] + event.text
        if self._now.startswith(self._told) and self._now != self._told:
            yield Piece(self.kind, self._now[len(self._told) :])
            self._told = self._now

    def rest(self, whole: str) -> Iterator[Piece]:
        if not whole.startswith(self._told):
            yield Piece(self.kind, whole, is_new=True)
        elif whole != self._told:
            yield Piece(self.kind, whole[len(self._told) :])

    def begins(self, beginning: str) -> bool:
        return self._told.startswith(beginning)


class Answer:
    """The sent words of one turn."""

    def __init__(self, turn: int = 0) -> None:
        self.turn = turn
        self._thoughts, self._text = _Words("thoughts"), _Words("text")

    def more(self, event: AnswerDelta | TurnEnded) -> Iterator[Piece]:
        """Yield the words that are new."""
        match event:
            case TextDelta():
                yield from self._text.more(event)
            case ReasoningDelta():
                yield from self._thoughts.more(event)
            case TurnEnded(text=text, thoughts=thoughts):
                # Without a store, the event has only the beginning of the thoughts.
                if thoughts is not None and not self._thoughts.begins(thoughts.removesuffix("…")):
                    yield from self._thoughts.rest(thoughts)
                yield from self._text.rest(text)


@dataclass(frozen=True, slots=True)
class Mark:
    """The start of a part, some of its words, or its end. The words of a part share a kind."""

    what: Literal["start", "words", "end"]
    kind: Kind
    id: str
    words: str = ""


class Parts:
    """Divides the words of turns into parts, for protocols that mark the start and the end of each.

    Args:
        prefix: of the parts' ids.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix, self._answer, self._count = prefix, Answer(), 0
        self._open: Kind | None = None

    @property
    def _id(self) -> str:
        return f"{self._prefix}{self._answer.turn}.{self._count}"

    def begin(self, turn: int) -> list[Mark]:
        """Begin a turn; the part that an earlier one has left open ends."""
        ended = self.end()
        self._answer = Answer(turn)
        return ended

    def add(self, event: AnswerDelta | TurnEnded) -> list[Mark]:
        """Add words. A part ends where another kind begins, and where its words are void."""
        found: list[Mark] = []
        for piece in self._answer.more(event):
            if piece.is_new or piece.kind != self._open:
                found += self.end()
            if not piece.words:
                continue
            if self._open is None:
                self._open, self._count = piece.kind, self._count + 1
                found.append(Mark("start", piece.kind, self._id))
            found.append(Mark("words", piece.kind, self._id, piece.words))
        return found

    def end(self) -> list[Mark]:
        """End the open part, if any."""
        if self._open is None:
            return []
        kind, self._open = self._open, None
        return [Mark("end", kind, self._id)]


async def say(doors: Doors, person: Person, asked: StartRun, key: str | None, **options: Any) -> Talk:
    """Send a message in a session, whose run is started or continues."""
    begun: Begun = await doors.start(person, asked, key, **options)
    if begun.is_new:
        return Talk(begun.workflow_id)
    await admit(doors.people, person, begun.workflow_id)
    events = await doors.people.events(begun.workflow_id)
    is_over = bool(events) and events[-1].type == "run-ended"
    return Talk(begun.workflow_id, None if is_over or not events else events[-1].id)  # an ended run is reported again


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting items of a run, once all events were sent; `after` is the last event that was."""

    items: list[JSONObject]
    after: str | None


async def listen(doors: Doors, talk: Talk) -> AsyncIterator[Event | Waits | None]:
    """Yield events until the run has ended or waits for a person, and None from time to time."""
    last, has_turns = talk.after, talk.after is not None
    # A continuing run may already wait, and then no event reports it.
    looks = 0 if last is None else _LOOKS if talk.settled else 1
    if last is not None and (items := await _what_waits(doors, talk, last, 1)):
        yield Waits(items, last)
        return
    async for event in doors.follow(talk.run, talk.after):
        if (
            isinstance(event, RunEnded) and not has_turns and event.status == "complete"
        ):  # the answer of an earlier run, again
            yield TurnStarted(1)
            yield TurnEnded(1, event.response)
        has_turns = has_turns or isinstance(event, TurnStarted)
        yield event
        if event is None or event.id is None:
            continue
        last, looks = event.id, _LOOKS if _may_wait(event) else looks
        items = await _what_waits(doors, talk, last, looks)
        if items:
            yield Waits(items, last)
            return
        looks = looks if items is None else 0


def _may_wait(event: Event) -> bool:
    """Whether an event reports that the run begins to wait for a person."""
    return isinstance(event, GateOpened | QuestionAsked) or (
        isinstance(event, StatusChanged) and bool(set(event.waits_for) & set(ANSWERED))
    )


async def _what_waits(doors: Doors, talk: Talk, last: str, looks: int) -> list[JSONObject] | None:
    """Return a run's items that wait for people, with all arguments; None if there are events after the last one."""
    for _ in range(looks):
        # The run may have waited for an item that is answered by now: only the last event has the current state.
        if await doors.people.events(talk.run, after=last):
            return None
        if (items := await _pending(doors, talk.run)) is None:
            return []
        if found := [item for item in items if item not in talk.settled]:
            return [await _whole(doors, item) for item in found]
        await asyncio.sleep(_PAUSE)
    return []


async def _pending(doors: Doors, run: str) -> list[JSONObject] | None:
    """Return the items of a run that wait for people; None if no worker reports them now."""
    try:
        return [item for item in await doors.people.pending(run) if item["kind"] in ANSWERED]
    except StandfastError:
        return None


async def _whole(doors: Doors, item: JSONObject) -> JSONObject:
    whole = await load_whole(doors.store, item)
    if whole is None:
        return item
    if whole.why is not None:
        return {**item, "cut": whole.why}
    return {**item, "arguments" if whole.shown is None else "shown": json.loads(whole.file)}


# --- interrupts, which a client answers ---


def interrupt_id(run: str, item: JSONObject, after: str | None) -> str:
    """Return the id of a waiting item: all data needed to answer it, in any process."""
    plain = [run, item["kind"], item["name"], item.get("digest"), after]
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode().rstrip("=")


def read_interrupt_id(text: str) -> tuple[str, str, str, str | None, str | None]:
    """Return the run, kind, name, digest, and the last event that was sent.

    Raises:
        HTTPException: 422; it is not such an id.
    """
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    match found:
        case [str(run), ("approval" | "question" | "unknown" | "pause") as kind, str(name), digest, after]:
            if all(one is None or isinstance(one, str) for one in (digest, after)):
                with suppress(InputError):
                    read_event_id(after or _FIRST)
                    return run, kind, name, digest, after
    raise HTTPException(422, "interruptId is not from this endpoint.")


def response_schema(item: JSONObject) -> JSONObject:
    """Return the schema of the answer to a waiting item."""
    text, words = {"type": "string"}, {"type": "object", "additionalProperties": False}
    match item["kind"]:
        case "approval":
            decisions = ["reject"] if "cut" in item else ["approve", "reject"]
            fields: JSONObject = {"decision": {"enum": decisions}, "comment": text}
            if "cut" in item:
                return {**words, "properties": fields, "required": ["decision"]}
            if "tool" in item:
                fields["edit"] = {"type": "object", "description": "all arguments, to run the call with"}
            what = editable_of(item, None)
            if what is None or what.schema is None:
                return {**words, "properties": fields, "required": ["decision"]}
            # References in a schema point to the definitions at the root of the document.
            fields["edit"] = {name: part for name, part in what.schema.items() if name != "$defs"}
            known = {"$defs": what.schema["$defs"]} if "$defs" in what.schema else {}
            return {**words, **known, "properties": fields, "required": ["decision"]}
        case "question":
            return {**words, "properties": {"text": text}, "required": ["text"]}
        case "unknown":
            decided = {"enum": ["happened", "not-happened", "leave"]}
            return {
                **words,
                "properties": {"decision": decided, "result": {}, "reason": text},
                "required": ["decision"],
            }
    return {**words, "properties": {"action": {"enum": ["retry", "abort"]}, "model": text}, "required": ["action"]}


async def settle(doors: Doors, person: Person, request: Request, interrupt: str, payload: Any, key: str | None) -> Talk:
    """Answer a waiting item, as its response schema specifies.

    Raises:
        HTTPException: 403 or 422.
        InputError: the answer does not count.
    """
    run, kind, name, digest, after = read_interrupt_id(interrupt)
    role, scope = _RIGHTS[kind]
    doors.senders.check_rights(person, role, scope)
    await admit(doors.people, person, run)
    if after is not None:  # which anyone could have written: the next events are that run's
        await admit(doors.people, person, run, read_event_id(after)[0])
    given = dict(payload) if isinstance(payload, dict) else {"text": payload} if isinstance(payload, str) else {}
    allowed: JSONObject = response_schema({"kind": kind})["properties"] | ({"edit": {}} if kind == "approval" else {})
    if unknown := given.keys() - allowed.keys():
        raise HTTPException(422, f"payload has {min(unknown)!r}; it may have {', '.join(allowed)}.")
    act: JSONObject = {"by": person.name, "id": act_id(key, person, interrupt, given)}
    before = await _pending(doors, run) or ()
    settled = tuple(item for item in before if (item["kind"], item["name"]) == (kind, name))
    try:
        match kind:
            case "approval":
                edit, comment = given.get("edit"), given.get("comment")
                decision = _one_of(given, "decision", "approve", "reject")
                await doors.people.decide(run, name, decision, digest=digest, edit=edit, comment=comment, **act)
            case "question":
                await doors.people.answer(run, _word(given, "text"), tool_call_id=name or None, **act)
            case "unknown":
                decision = _one_of(given, "decision", "happened", "not-happened", "leave")
                what = {"result": given.get("result"), "reason": given.get("reason")}
                await doors.people.resolve(run, name, decision, **what, **act)
            case _:
                action = _one_of(given, "action", "retry", "abort")
                await doors.people.resume(run, action, name=name or None, model=given.get("model"), **act)
    except ValidationError as error:
        raise HTTPException(422, str(error)) from error
    return Talk(run, after, settled)


def together(talks: Sequence[Talk]) -> Talk:
    """Return the talk that continues after several answers to one run."""
    return Talk(talks[-1].run, talks[-1].after, tuple(item for talk in talks for item in talk.settled))


def _word(given: JSONObject, name: str) -> str:
    if not isinstance(given.get(name), str) or not given[name]:
        raise HTTPException(422, f"payload must have {name}, a text.")
    return str(given[name])


def _one_of(given: JSONObject, name: str, *allowed: str) -> Any:
    if given.get(name) not in allowed:
        raise HTTPException(422, f"payload.{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}.")
    return given[name]


def texts_of(content: Any, what: str, kinds: Sequence[str] = ("text",)) -> str:
    """Return the text of a message whose content is a text, or a list of parts that are texts.

    Raises:
        HTTPException: 422; it is something else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        content = [None]
    texts = [one.get("text") for one in content if isinstance(one, dict) and one.get("type") in kinds]
    if len(texts) < len(content) or not all(isinstance(one, str) for one in texts):
        raise HTTPException(422, f"{what} must be text: this endpoint accepts no other parts.")
    return "".join(map(str, texts))
