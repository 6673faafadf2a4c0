"""Speaks the UI message stream of Vercel's AI SDK: a chat is a session, and a gate is a tool approval request."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from standfast.events import (
    Event,
    ReasoningDelta,
    RunEnded,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from standfast.messages import JSONObject, waiting_edit_in_words
from standfast.stores.protocol import check_session_id
from standfast.web.api.calls import Doors, id_in
from standfast.web.api.conversations import (
    Kind,
    Mark,
    Parts,
    Talk,
    Waits,
    interrupt_id,
    listen,
    say,
    settle,
    texts_of,
    together,
)
from standfast.web.api.errors import problem
from standfast.web.api.models import StartRun
from standfast.web.api.senders import dumped, read_body
from standfast.web.identity.people import Person

_PARTS: dict[Kind, str] = {"thoughts": "reasoning", "text": "text"}
_HEADER = {"x-vercel-ai-ui-message-stream": "v1"}


class _Asked(BaseModel):
    """The request of the client's transport; only the new part of the last message is used."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(max_length=200)
    messages: list[JSONObject] = Field(min_length=1, max_length=5_000)
    context: Any = None  # from `body` in the transport's options


async def chat(doors: Doors, request: Request, person: Person, name: str) -> Response:
    """Answer a message, or the person's answer to an approval request."""
    agent, asked = doors.agent(name), _Asked.model_validate(await read_body(request))
    session, last = check_session_id(asked.id, "id"), asked.messages[-1]
    parts = [part for part in last.get("parts") or () if isinstance(part, dict)]
    key = id_in(last)
    if last.get("role") == "user":
        doors.senders.check_rights(person, "operator", "start")
        said = texts_of(parts, "The last message")
        start = StartRun(name=agent.name, message=said, session_id=session, if_running="message", context=asked.context)
        return doors.streamed(person, _texts(doors, await say(doors, person, start, key)), **_HEADER)
    answers = [part.get("approval") for part in parts if part.get("state") == "approval-responded"]
    talks = [await _settled(doors, person, request, one, key) for one in answers]
    if not talks:
        raise HTTPException(422, "messages must end with a user message, or with an answered approval request.")
    return doors.streamed(person, _texts(doors, together(talks)), **_HEADER)


async def _settled(doors: Doors, person: Person, request: Request, approval: Any, key: str | None) -> Talk:
    match approval:
        case {"id": str(interrupt), "approved": bool(approved)}:
            payload = {"decision": "approve" if approved else "reject"}
            comment = approval.get("reason")
            payload |= {"comment": comment} if isinstance(comment, str) and comment else {}
            return await settle(doors, person, request, interrupt, payload, key)
    raise HTTPException(422, "approval must have id and approved.")


async def _texts(doors: Doors, talk: Talk) -> AsyncIterator[str]:
    translation = _Translation()
    yield _text({"type": "start"})
    try:
        async for found in listen(doors, talk):
            match found:
                case None:
                    yield ": still here\n\n"
                    continue
                case Waits(items, after):
                    told = [*translation.end(), *(one for item in items for one in _requests(talk.run, item, after))]
                    told.append({"type": "finish", "messageMetadata": {"workflow_id": talk.run}})
                case RunEnded():
                    told = [*translation.end(), *_ending(found, talk.run)]
                case _:
                    told = translation.of(found)
            for one in told:
                yield _text(one)
    except Exception as error:  # the answer has begun: the error is sent in the stream
        yield _text({"type": "error", "errorText": problem(error)["message"]})
    yield "data: [DONE]\n\n"


class _Translation:
    """The events of a run, translated to the protocol; a turn is a step."""

    def __init__(self) -> None:
        self._parts, self._asked = Parts(), set[str]()

    def of(self, event: Event) -> list[JSONObject]:
        match event:
            case TurnStarted(turn):
                return [*_said(self._parts.begin(turn)), {"type": "start-step"}]
            case TextDelta() | ReasoningDelta():
                return _said(self._parts.add(event))
            case TurnEnded():
                told = [*_said(self._parts.add(event)), *self.end()]
                self._asked |= {call.id for call in event.calls}
                told += [_input(call.id, call.name, call.arguments) for call in event.calls]
                return [*told, {"type": "finish-step"}]
            case ToolStarted(call) if event.edited_by is not None:
                self._asked.add(call.id)
                return [_input(call.id, call.name, call.arguments)]
            case ToolEnded(call) if event.outcome != "asked":
                # A client that has begun with this answer has not received the call.
                begun = [] if call.id in self._asked else [_input(call.id, call.name, call.arguments)]
                at = {"toolCallId": call.id, "dynamic": True}
                if event.outcome == "returned":
                    return [*begun, {"type": "tool-output-available", **at, "output": event.text}]
                return [*begun, {"type": "tool-output-error", **at, "errorText": event.text or event.outcome}]
        return []

    def end(self) -> list[JSONObject]:
        return _said(self._parts.end())


def _said(marks: Iterable[Mark]) -> list[JSONObject]:
    """Return the parts of a message."""
    told = []
    for mark in marks:
        kind, what = _PARTS[mark.kind], "delta" if mark.what == "words" else mark.what
        told.append({"type": f"{kind}-{what}", "id": mark.id, **({"delta": mark.words} if mark.words else {})})
    return told


def _input(call_id: str, name: str, arguments: Any) -> JSONObject:
    shown = {"toolCallId": call_id, "toolName": name, "input": arguments}
    return {"type": "tool-input-available", **shown, "dynamic": True}


def _requests(run: str, item: JSONObject, after: str | None) -> list[JSONObject]:
    """Return the items that ask for an approval; items that cannot be answered this way become data for a front end."""
    if item["kind"] == "approval" and "tool" in item and "cut" not in item:
        asked = {"approvalId": interrupt_id(run, item, after), "toolCallId": item["name"], "reason": item["message"]}
        if "edited_by" not in item:
            return [{"type": "tool-approval-request", **asked}]
        asked["reason"] += f"\nEdited {waiting_edit_in_words(item['edited_by'], item.get('changes'))}"
        now = _input(item["name"], item["tool"], item["arguments"])
        return [now, {"type": "tool-approval-request", **asked}]
    shown = {"kind": item["kind"], "name": item["name"], "message": item["message"], "workflow_id": run}
    shown |= {"shown": item["shown"]} if "shown" in item else {}
    return [{"type": "data-waiting", "data": shown}]


def _ending(event: RunEnded, run: str) -> list[JSONObject]:
    if event.status != "complete":
        why = event.error or event.response or event.status
        return [{"type": "error", "errorText": f"The run ended with {event.status}: {why}"}]
    return [{"type": "finish", "messageMetadata": {"workflow_id": run}}]


def _text(data: JSONObject) -> str:
    return f"data: {dumped(data)}\n\n"
