"""Speaks OpenAI's Chat Completions and Responses: a model is an agent, and an answer is its run's answer.

Both protocols send the whole conversation with each request. The conversation lacks the agent's work in between, such
as its tool calls. To include it, a client names a session in `metadata.session_id`, and then sends only the new
messages.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from standfast.events import RunEnded, TextDelta, TurnEnded, TurnStarted
from standfast.messages import Usage
from standfast.stores.protocol import check_session_id
from standfast.web.access import Person
from standfast.web.api.calls import Doors, key_of
from standfast.web.api.errors import problem
from standfast.web.api.models import StartRun
from standfast.web.api.senders import dumped, read_body
from standfast.web.api.talks import Answer, Talk, Waits, listen, say, texts_of

_PARTS = ("text", "input_text", "output_text")
_ENDINGS = {
    "complete": "stop",
    "max-tokens": "length",
    "refused": "content_filter",
    "guardrail-tripped": "content_filter",
}


class _Asked(BaseModel):
    """The request fields of both protocols; model settings come from the agent, and are ignored here."""

    model_config = ConfigDict(extra="ignore")

    model: str = Field(max_length=200)
    stream: bool = False
    metadata: dict[str, str] | None = None
    tools: list[Any] = []
    n: int = 1
    context: Any = None  # not in `metadata`, which only has texts of 512 characters


class _Chat(_Asked):
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=2_000)


class _Responses(_Asked):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None


async def models(doors: Doors, request: Request, person: Person, _: str) -> Response:
    """List the agents, as models."""
    doors.senders.check_rights(person, "operator", "start")
    agents = [name for name, item in doors.items.items() if type(item).__name__ == "Agent"]
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "standfast"} for name in sorted(agents)]
    return JSONResponse({"object": "list", "data": data})


async def chat_completions(doors: Doors, request: Request, person: Person, _: str) -> Response:
    """Answer a request for a chat completion."""
    asked = _Chat.model_validate(await read_body(request))
    talk = await _begin(doors, request, person, asked, asked.messages)
    if asked.stream:
        return doors.streamed(person, _chat_texts(doors, talk, asked.model))
    said = await _whole(doors, talk)
    message = {"role": "assistant", "content": said.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": said.ending, "logprobs": None}
    shown = {**_chat_head(talk, asked.model, "chat.completion"), "choices": [choice], "standfast": said.extra}
    return JSONResponse({**shown, **({} if said.usage is None else {"usage": _chat_usage(said.usage)})})


async def responses(doors: Doors, request: Request, person: Person, _: str) -> Response:
    """Answer a request for a response."""
    asked = _Responses.model_validate(await read_body(request))
    if asked.instructions is not None:
        raise HTTPException(422, "instructions: an agent has its own; send none.")
    if asked.previous_response_id is not None:
        raise HTTPException(422, "previous_response_id: name the session in metadata.session_id instead.")
    given = [{"role": "user", "content": asked.input}] if isinstance(asked.input, str) else asked.input
    talk = await _begin(doors, request, person, asked, given)
    if asked.stream:
        return doors.streamed(person, _response_texts(doors, talk, asked.model))
    return JSONResponse(_response(talk, asked.model, await _whole(doors, talk)))


async def _begin(doors: Doors, request: Request, person: Person, asked: _Asked, given: list[dict[str, Any]]) -> Talk:
    if asked.tools or asked.n != 1:
        raise HTTPException(422, "tools, n: an agent has its own tools, and gives one answer.")
    doors.senders.check_rights(person, "operator", "start")
    agent, session = doors.agent(asked.model), (asked.metadata or {}).get("session_id")
    said = [(one.get("role"), texts_of(one.get("content"), "content", _PARTS)) for one in given]
    if any(role not in ("user", "assistant") for role, _ in said):
        raise HTTPException(422, "messages: only user and assistant messages; an agent has its own instructions.")
    if not said or said[-1][0] != "user" or not said[-1][1]:
        raise HTTPException(422, "messages must end with a user message.")
    if session is not None:
        check_session_id(session, "metadata.session_id")
    before = [{"role": role, "content": text} for role, text in said]
    start = StartRun(
        name=agent.name,
        message=said[-1][1],
        session_id=session,
        if_running="message" if session else "refuse",
        context=asked.context,
    )
    history = {} if session or len(said) == 1 else {"message": None, "checkpoint": {"messages": before}}
    return await say(doors, person, start, key_of(request), **history)


class _Said(BaseModel):
    """The text of a run until its end, or until it waits for a person."""

    text: str = ""
    texts: list[str] = []
    ending: str = "stop"
    usage: Usage | None = None
    extra: dict[str, Any] = {}
    error: str | None = None


async def _pieces(doors: Doors, talk: Talk) -> AsyncIterator[str | _Said | None]:
    """Yield the words of a run as they arrive, with an empty line between turns; finally, all of it."""
    answer, said = Answer(), _Said(extra={"workflow_id": talk.run})
    is_first = True
    async for found in listen(doors, talk):
        new = ""
        match found:
            case TurnStarted(turn):
                answer.begin(turn)
                is_first = True
            case TextDelta():
                new = answer.more(found)
            case TurnEnded():
                new, is_void = answer.rest(found)
                is_first = is_first or is_void  # earlier words cannot be retracted
            case Waits(items):
                said.extra["waiting"] = items
                new, is_first = "".join(f"[Waits for a person: {item['message']}]" for item in items), True
            case RunEnded():
                said.ending, said.usage = _ENDINGS.get(found.status, "stop"), found.usage
                said.error = None if found.status in _ENDINGS else found.error or found.response or found.status
            case None:
                yield None
        if new:
            new = ("\n\n" if said.text and is_first else "") + new
            is_first, said.text = False, said.text + new
            yield new
    if said.error is not None:
        raise HTTPException(502, f"Run {talk.run} ended with: {said.error}")
    yield said


async def _whole(doors: Doors, talk: Talk) -> _Said:
    async for piece in _pieces(doors, talk):
        if isinstance(piece, _Said):
            return piece
    raise HTTPException(503, "The page is closing; the run continues.")


# --- chat completions ---


def _chat_head(talk: Talk, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{talk.run}", "object": kind, "created": int(time.time()), "model": model}


def _chat_usage(usage: Usage) -> dict[str, int]:
    counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return {**counts, "total_tokens": usage.total_tokens}


async def _chat_texts(doors: Doors, talk: Talk, model: str) -> AsyncIterator[str]:
    head = _chat_head(talk, model, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], ending: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": ending, "logprobs": None}
        return f"data: {dumped({**head, 'choices': [choice], **more})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for piece in _pieces(doors, talk):
            match piece:
                case None:
                    yield ": still here\n\n"
                case _Said():
                    usage = {} if piece.usage is None else {"usage": _chat_usage(piece.usage)}
                    yield chunk({}, piece.ending, standfast=piece.extra, **usage)
                case _:
                    yield chunk({"content": piece})
        yield "data: [DONE]\n\n"
    except Exception as error:  # the answer has begun: the error is sent in the stream
        yield f"data: {dumped({'error': problem(error)})}\n\n"


# --- responses ---


def _response(talk: Talk, model: str, said: _Said | None) -> dict[str, Any]:
    usage = None
    if said is not None and said.usage is not None:
        counts = {"input_tokens": said.usage.input_tokens, "output_tokens": said.usage.output_tokens}
        details = {"input_tokens_details": {"cached_tokens": said.usage.cached_tokens or 0}}
        details |= {"output_tokens_details": {"reasoning_tokens": said.usage.reasoning_tokens or 0}}
        usage = {**counts, **details, "total_tokens": said.usage.total_tokens}
    return {
        "id": f"resp_{talk.run}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress" if said is None else "completed",
        "model": model,
        "output": [] if said is None else [_item(talk, said.text, "completed")],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {"workflow_id": talk.run[:512]},
        "usage": usage,
        "standfast": {} if said is None else said.extra,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _item(talk: Talk, text: str, status: str) -> dict[str, Any]:
    content = [_part(text)] if status == "completed" else []
    return {"id": f"msg_{talk.run}", "type": "message", "role": "assistant", "status": status, "content": content}


async def _response_texts(doors: Doors, talk: Talk, model: str) -> AsyncIterator[str]:
    number = -1

    def told(kind: str, **data: Any) -> str:
        nonlocal number
        number += 1
        return f"event: {kind}\ndata: {dumped({'type': kind, 'sequence_number': number, **data})}\n\n"

    at = {"item_id": f"msg_{talk.run}", "output_index": 0, "content_index": 0}
    yield told("response.created", response=_response(talk, model, None))
    yield told("response.output_item.added", output_index=0, item=_item(talk, "", "in_progress"))
    yield told("response.content_part.added", **at, part=_part(""))
    try:
        async for piece in _pieces(doors, talk):
            match piece:
                case None:
                    yield ": still here\n\n"
                case _Said():
                    yield told("response.output_text.done", **at, text=piece.text, logprobs=[])
                    yield told("response.content_part.done", **at, part=_part(piece.text))
                    yield told("response.output_item.done", output_index=0, item=_item(talk, piece.text, "completed"))
                    yield told("response.completed", response=_response(talk, model, piece))
                case _:
                    yield told("response.output_text.delta", **at, delta=piece, logprobs=[])
    except Exception as error:  # the answer has begun: the error is sent in the stream
        wrong = problem(error)
        yield told("error", code=wrong["code"], message=wrong["message"], param=None)
