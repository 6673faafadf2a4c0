"""Speaks AG-UI 1.0: a thread is a session, and a waiting item is an interrupt of its run."""

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
    TurnEnded,
    TurnStarted,
)
from standfast.messages import JSONObject, Usage
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
    response_schema,
    say,
    settle,
    texts_of,
    together,
)
from standfast.web.api.errors import problem
from standfast.web.api.models import StartRun
from standfast.web.api.senders import dumped, read_body
from standfast.web.identity.people import Person

_MESSAGES: dict[Kind, str] = {"thoughts": "REASONING_MESSAGE", "text": "TEXT_MESSAGE"}
_ROLES: dict[Kind, str] = {"thoughts": "reasoning", "text": "assistant"}
_REASONS = {"approval": "tool_call", "question": "input_required", "unknown": "unknown_outcome", "pause": "paused"}
_ENDED = {"complete": "success", "cancelled": "cancelled"}


class _Resume(BaseModel):
    model_config = ConfigDict(extra="ignore")

    interruptId: str = Field(max_length=10_000)  # noqa: N815  # the protocol's names
    status: str
    payload: Any = None


class _Input(BaseModel):
    """A client's request; fields that an agent does not accept (tools, state, context) must be empty or are ignored.

    The protocol's `context` holds texts for a model, and agents also write its `state`. An application's data for its
    own backend is in `forwardedProps`, including the context of a run.
    """

    model_config = ConfigDict(extra="ignore")

    threadId: str = Field(max_length=200)  # noqa: N815
    runId: str = Field(min_length=1, max_length=200)  # noqa: N815
    messages: list[JSONObject] = []
    tools: list[Any] = []
    resume: list[_Resume] = Field(default=[], max_length=100)
    forwardedProps: Any = None  # noqa: N815


async def run_agent(doors: Doors, request: Request, person: Person, name: str) -> Response:
    """Answer a client's POST with the events of the run."""
    agent, given = doors.agent(name), _Input.model_validate(await read_body(request))
    if given.tools:
        raise HTTPException(422, "tools: an agent has its own tools; send none.")
    session = check_session_id(given.threadId, "threadId")
    answered = [entry for entry in given.resume if entry.status == "resolved"]
    if answered:
        talks = [await settle(doors, person, request, one.interruptId, one.payload, given.runId) for one in answered]
        talk = together(talks)
    else:
        doors.senders.check_rights(person, "operator", "start")
        props = given.forwardedProps if isinstance(given.forwardedProps, dict) else {}
        asked = StartRun(
            name=agent.name,
            message=_said(given),
            session_id=session,
            if_running="message",
            context=props.get("context"),
        )
        talk = await say(doors, person, asked, id_in(given.messages[-1]) or given.runId)
    return doors.streamed(person, _texts(doors, talk, given))


def _said(given: _Input) -> str:
    """Return the user's message: the session has the earlier messages."""
    last = given.messages[-1] if given.messages else {}
    if last.get("role") != "user":
        raise HTTPException(422, "messages must end with a user message, or resume must answer an interrupt.")
    return texts_of(last.get("content"), "The last message")


async def _texts(doors: Doors, talk: Talk, given: _Input) -> AsyncIterator[str]:
    where = {"threadId": given.threadId, "runId": given.runId}
    yield _text({"type": "RUN_STARTED", **where})
    translation = _Translation(talk.run)
    try:
        async for found in listen(doors, talk):
            match found:
                case None:
                    yield ": still here\n\n"
                case Waits(items, after):
                    interrupts = [_interrupt(talk.run, item, after) for item in items]
                    outcome = {"type": "interrupt", "interrupts": interrupts}
                    yield _text({"type": "RUN_FINISHED", **where, "outcome": outcome})
                    return
                case RunEnded():
                    yield _text({**_ending(found), **where})
                    return
                case _:
                    for told in translation.of(found):
                        yield _text(told)
        yield _text({"type": "RUN_ERROR", "message": "The page is closing; the run continues.", "code": "CLOSING"})
    except Exception as error:  # the answer has begun: the error is sent in the stream
        told = problem(error)
        yield _text({"type": "RUN_ERROR", "message": told["message"], "code": told["code"]})


class _Translation:
    """The events of a run, translated to the protocol."""

    def __init__(self, run: str) -> None:
        self._parts = Parts(f"{run}/")

    def of(self, event: Event) -> list[JSONObject]:
        match event:
            case TurnStarted(turn):
                return _events(self._parts.begin(turn))
            case TextDelta() | ReasoningDelta():
                return _events(self._parts.add(event))
            case TurnEnded():
                return self._turn_ended(event)
            case ToolEnded(call) if event.outcome != "asked":
                shown = event.text or f"({event.outcome})"
                result = {"messageId": f"{call.id}-result", "toolCallId": call.id, "content": shown, "role": "tool"}
                return [{"type": "TOOL_CALL_RESULT", **result}]
        return []

    def _turn_ended(self, event: TurnEnded) -> list[JSONObject]:
        told, ended = _events(self._parts.add(event)), self._parts.end()
        told += _events(ended)
        parent = {"parentMessageId": ended[0].id} if ended and ended[0].kind == "text" else {}
        for call in event.calls:
            at = {"toolCallId": call.id}
            shown = call.arguments if isinstance(call.arguments, str) else dumped(call.arguments)
            told.append({"type": "TOOL_CALL_START", **at, "toolCallName": call.name, **parent})
            told += [{"type": "TOOL_CALL_ARGS", **at, "delta": shown}] if shown else []
            told.append({"type": "TOOL_CALL_END", **at})
        return told


def _events(marks: Iterable[Mark]) -> list[JSONObject]:
    """Return the events of messages; one with thoughts is in a block."""
    told: list[JSONObject] = []
    for mark in marks:
        message, at = _MESSAGES[mark.kind], {"messageId": mark.id}
        match mark.what:
            case "start":
                told += [{"type": "REASONING_START", **at}] if mark.kind == "thoughts" else []
                told.append({"type": f"{message}_START", **at, "role": _ROLES[mark.kind]})
            case "words":
                told.append({"type": f"{message}_CONTENT", **at, "delta": mark.words})
            case "end":
                told.append({"type": f"{message}_END", **at})
                told += [{"type": "REASONING_END", **at}] if mark.kind == "thoughts" else []
    return told


def _interrupt(run: str, item: JSONObject, after: str | None) -> JSONObject:
    names = ("kind", "digest", "tool", "arguments", "shown", "approvers", "cut", "edited_by", "changes")
    shown = {name: item[name] for name in names if name in item}
    found: JSONObject = {
        "id": interrupt_id(run, item, after),
        "reason": _REASONS[item["kind"]],
        "message": item["message"],
        "toolCallId": item["name"] if item["kind"] in ("question", "unknown") or "tool" in item else None,
        "responseSchema": response_schema(item),
        "expiresAt": item.get("deadline"),
        "metadata": {**shown, "workflow_id": run},
    }
    return {name: value for name, value in found.items() if value is not None}


def _ending(event: RunEnded) -> JSONObject:
    if event.status not in _ENDED:
        return {"type": "RUN_ERROR", "message": event.error or event.response or event.status, "code": event.status}
    ended: JSONObject = {"type": "RUN_FINISHED", "outcome": {"type": _ENDED[event.status]}}
    if event.usage is not None:
        ended["usage"] = [_usage(event.usage)]
    return {**ended, "result": event.response}


def _usage(usage: Usage) -> JSONObject:
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "totalTokens": usage.total_tokens}


def _text(data: JSONObject) -> str:
    return f"data: {dumped(data)}\n\n"
