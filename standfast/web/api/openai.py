"""Speaks OpenAI's Chat Completions and Responses: a model is an agent, and an answer is its run's answer.

Both protocols send the whole conversation with each request. The conversation lacks the agent's work in between, such
as its tool calls. To include it, a client names a session in `metadata.session_id`, and then sends only the new
messages.
"""

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from standfast.events import ReasoningDelta, RunEnded, TextDelta, TurnEnded, TurnStarted
from standfast.messages import JSONObject, Usage
from standfast.stores.protocol import check_session_id
from standfast.web.api.calls import Doors, key_of
from standfast.web.api.conversations import Answer, Kind, Piece, Talk, Waits, listen, say, texts_of
from standfast.web.api.errors import problem
from standfast.web.api.models import StartRun
from standfast.web.api.senders import dumped, read_body
from standfast.web.identity.people import Person

_PARTS = ("text", "input_text", "output_text")
# The name that DeepSeek and vLLM have introduced for thoughts.
_FIELDS: dict[Kind, str] = {"thoughts": "reasoning_content", "text": "content"}
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
    messages: list[JSONObject] = Field(min_length=1, max_length=2_000)


class _Responses(_Asked):
    input: str | list[JSONObject]
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
    thoughts = {_FIELDS["thoughts"]: said.thoughts} if said.thoughts else {}
    message = {"role": "assistant", "content": said.text, "refusal": None, **thoughts}
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
    given = [one for one in given if one.get("type") != "reasoning"]  # clients return earlier answers whole
    talk = await _begin(doors, request, person, asked, given)
    if asked.stream:
        return doors.streamed(person, _response_texts(doors, talk, asked.model))
    return JSONResponse(_response(talk, asked.model, await _whole(doors, talk)))


async def _begin(doors: Doors, request: Request, person: Person, asked: _Asked, given: list[JSONObject]) -> Talk:
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
    thoughts: str = ""
    kinds: Sequence[Kind] = ()  # in order
    ending: str = "stop"
    usage: Usage | None = None
    extra: dict[str, Any] = {}
    error: str | None = None


async def _pieces(doors: Doors, talk: Talk) -> AsyncIterator[Piece | _Said | None]:
    """Yield the words of a run as they arrive, with an empty line between turns; finally, all of it."""
    answer, said = Answer(), _Said(extra={"workflow_id": talk.run})
    begun: set[Kind] = set()  # in this turn
    async for found in listen(doors, talk):
        new: Iterable[Piece] = ()
        match found:
            case TurnStarted(turn):
                answer = Answer(turn)
                begun.clear()
            case TextDelta() | ReasoningDelta() | TurnEnded():
                new = answer.more(found)
            case Waits(items):
                said.extra["waiting"] = items
                asked = "".join(f"[Waits for a person: {item['message']}]" for item in items)
                new = [Piece("text", asked, is_new=True)]
            case RunEnded():
                said.ending, said.usage = _ENDINGS.get(found.status, "stop"), found.usage
                said.error = None if found.status in _ENDINGS else found.error or found.response or found.status
            case None:
                yield None
        for piece in new:
            if not piece.words:
                continue
            before: str = getattr(said, piece.kind)
            begins = piece.is_new or piece.kind not in begun  # earlier words cannot be retracted
            words = ("\n\n" if before and begins else "") + piece.words
            begun.add(piece.kind)
            setattr(said, piece.kind, before + words)
            yield Piece(piece.kind, words)
    if said.error is not None:
        raise HTTPException(502, f"Run {talk.run} ended with: {said.error}")
    said.kinds = ("thoughts", "text") if said.thoughts else ("text",)
    yield said


async def _whole(doors: Doors, talk: Talk) -> _Said:
    async for piece in _pieces(doors, talk):
        if isinstance(piece, _Said):
            return piece
    raise HTTPException(503, "The page is closing; the run continues.")


# --- chat completions ---


def _chat_head(talk: Talk, model: str, kind: str) -> JSONObject:
    return {"id": f"chatcmpl-{talk.run}", "object": kind, "created": int(time.time()), "model": model}


def _chat_usage(usage: Usage) -> dict[str, int]:
    counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return {**counts, "total_tokens": usage.total_tokens}


async def _chat_texts(doors: Doors, talk: Talk, model: str) -> AsyncIterator[str]:
    head = _chat_head(talk, model, "chat.completion.chunk")

    def chunk(delta: JSONObject, ending: str | None = None, **more: Any) -> str:
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
                case Piece(kind, words):
                    yield chunk({_FIELDS[kind]: words})
        yield "data: [DONE]\n\n"
    except Exception as error:  # the answer has begun: the error is sent in the stream
        yield f"data: {dumped({'error': problem(error)})}\n\n"


# --- responses ---


def _response(talk: Talk, model: str, said: _Said | None) -> JSONObject:
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
        "output": [] if said is None else [_item(talk, kind, getattr(said, kind)) for kind in said.kinds],
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


def _part(kind: Kind, text: str) -> JSONObject:
    if kind == "thoughts":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _item(talk: Talk, kind: Kind, text: str | None) -> JSONObject:
    """Return the item with the words of a kind; None if it has just begun."""
    status, parts = "in_progress" if text is None else "completed", [] if text is None else [_part(kind, text)]
    if kind == "thoughts":
        return {"id": f"rs_{talk.run}", "type": "reasoning", "status": status, "summary": parts}
    return {"id": f"msg_{talk.run}", "type": "message", "role": "assistant", "status": status, "content": parts}


# The index of an item's part, and the names of its events and of its words' events.
_EVENTS: dict[Kind, tuple[str, str, str]] = {
    "thoughts": ("summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text"),
    "text": ("content_index", "response.content_part", "response.output_text"),
}


class _ResponseEvents:
    """Writes the events of a streamed response: an item for the thoughts, if there are any, and one for the text."""

    def __init__(self, talk: Talk, model: str) -> None:
        self._talk, self._model = talk, model
        self._number, self._begun = -1, list[Kind]()

    def event(self, kind: str, **data: Any) -> str:
        self._number += 1
        return f"event: {kind}\ndata: {dumped({'type': kind, 'sequence_number': self._number, **data})}\n\n"

    def created(self) -> str:
        return self.event("response.created", response=_response(self._talk, self._model, None))

    def add(self, piece: Piece) -> Iterator[str]:
        yield from self._begin(piece.kind)
        kind = f"{_EVENTS[piece.kind][2]}.delta"
        yield self.event(kind, **self._at(piece.kind), delta=piece.words, **_no_probabilities(piece.kind))

    def end(self, said: _Said) -> Iterator[str]:
        yield from self._begin("text")
        for index, kind in enumerate(self._begun):
            at, text, (_, part, words) = self._at(kind), getattr(said, kind), _EVENTS[kind]
            yield self.event(f"{words}.done", **at, text=text, **_no_probabilities(kind))
            yield self.event(f"{part}.done", **at, part=_part(kind, text))
            yield self.event("response.output_item.done", output_index=index, item=_item(self._talk, kind, text))
        whole = _response(self._talk, self._model, said.model_copy(update={"kinds": self._begun}))
        yield self.event("response.completed", response=whole)

    def _begin(self, kind: Kind) -> Iterator[str]:
        if kind in self._begun:
            return
        self._begun.append(kind)
        index = self._begun.index(kind)
        yield self.event("response.output_item.added", output_index=index, item=_item(self._talk, kind, None))
        yield self.event(f"{_EVENTS[kind][1]}.added", **self._at(kind), part=_part(kind, ""))

    def _at(self, kind: Kind) -> JSONObject:
        item = _item(self._talk, kind, None)["id"]
        return {"item_id": item, "output_index": self._begun.index(kind), _EVENTS[kind][0]: 0}


def _no_probabilities(kind: Kind) -> JSONObject:
    return {"logprobs": []} if kind == "text" else {}


async def _response_texts(doors: Doors, talk: Talk, model: str) -> AsyncIterator[str]:
    events = _ResponseEvents(talk, model)
    yield events.created()
    try:
        async for piece in _pieces(doors, talk):
            match piece:
                case None:
                    yield ": still here\n\n"
                case _:
                    for event in events.end(piece) if isinstance(piece, _Said) else events.add(piece):
                        yield event
    except Exception as error:  # the answer has begun: the error is sent in the stream
        wrong = problem(error)
        yield events.event("error", code=wrong["code"], message=wrong["message"], param=None)
