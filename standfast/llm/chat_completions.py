"""OpenAI's Chat Completions format: writes requests and reads answers. Nothing here does I/O."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from standfast.errors import InputError
from standfast.events import ReasoningDelta
from standfast.llm.protocol import ToolDescription
from standfast.llm.reasoning import Part, ThoughtPieces, parts_of, reasoning_of
from standfast.messages import (
    Citation,
    JSONObject,
    LLMResponse,
    Message,
    ToolCall,
    clean_text,
    explain,
    json_problem,
    thought_text,
)


def request_messages(messages: Sequence[Message], keeper: str | None = None) -> list[JSONObject]:
    """Write a conversation; a system prompt without text is left out.

    Args:
        keeper: the server; the extra fields of its answers go back to it (see `AnswerSoFar.response`).
    """
    return [_message(message, keeper) for message in messages if message.role != "system" or message.content]


def _message(message: Message, keeper: str | None) -> JSONObject:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": image.address}} for image in message.images]
        text = [{"type": "text", "text": message.content}] if message.content else []
        return {"role": message.role, "content": [*pictures, *text]}
    extra, of_calls, content = _kept_of(message, keeper)
    if not message.tool_calls:
        return {**extra, "role": message.role, "content": content}
    calls: list[JSONObject] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(sendable_arguments(call), ensure_ascii=False)},
        }
        for call in message.tool_calls
    ]
    for call, more in zip(calls, of_calls, strict=False):
        if isinstance(more, dict):
            function: JSONObject = {**(more.get("function") or {}), **call["function"]}
            call |= {**more, **call, "function": function}
    return {**extra, "role": "assistant", "content": content or None, "tool_calls": calls}


def _kept_of(message: Message, keeper: str | None) -> tuple[JSONObject, Sequence[Any], Any]:
    """Return a server's extra fields beside an answer's text and calls: the message's, each call's, and its content."""
    if keeper is None or message.reasoning is None or message.reasoning.provider != keeper:
        return {}, (), message.content
    extra: dict[str, Any] = {}
    of_calls: Sequence[Any] = ()
    parts: list[Any] = []
    for kind, part in parts_of(message, keeper):
        match kind, part:
            case "thought", {"part": thought}:
                parts.append(thought)
            case "thought", {"message": dict(fields)}:
                extra = fields
            case "thought", {"calls": list(fields)}:
                of_calls = fields
            case "text", str(text) if text:
                parts.append({"type": "text", "text": text})
    has_other_parts = any(part.get("type") != "text" for part in parts if isinstance(part, dict))
    return extra, of_calls, parts if has_other_parts else message.content


_WANTED = re.compile(r"reasoning_content\W.*\b(must|missing|required)\b|missing\W+reasoning_content", re.DOTALL)


def mended(messages: list[JSONObject], refusal: str) -> list[JSONObject] | None:
    """Return a refused conversation in a form that the server may accept; None if the reason is another.

    Some servers refuse the fields that they sent. Others require thoughts in every answer with calls, even in answers
    of other models; empty thoughts satisfy them.
    """
    words = refusal.lower()
    if _WANTED.search(words):
        filled = [{"reasoning_content": "", **one} if one.get("tool_calls") else one for one in messages]
        return filled if filled != messages else None
    plain = [_plain(message) if message["role"] == "assistant" else message for message in messages]
    fields = {name for one in messages for name in one} - {"role", "content", "tool_calls", "tool_call_id"}
    of_calls = {name for one in messages for call in one.get("tool_calls") or () for name in call}
    names = {"thinking", "signature"} | fields | of_calls - {"id", "type", "function"}
    return plain if plain != messages and any(name in words for name in names) else None


def _plain(answer: Mapping[str, Any]) -> JSONObject:
    content = answer["content"]
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if not (calls := answer.get("tool_calls")):
        return {"role": "assistant", "content": content}
    plain = [
        {
            "id": call["id"],
            "type": "function",
            "function": {name: call["function"][name] for name in ("name", "arguments")},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content or None, "tool_calls": plain}


def sendable_arguments(call: ToolCall) -> JSONObject:
    """Return a call's arguments as an object, even if malformed: servers parse them and refuse anything else."""
    return {"malformed": call.arguments} if isinstance(call.arguments, str) else call.arguments


def sendable_id(call_id: str) -> str:
    """Return a call's id in a form that the strictest provider accepts; it is the same for the call and its result.

    Anthropic's API accepts `^[a-zA-Z0-9_-]+$`, OpenAI's 64 characters. A session may contain any other ids.
    """
    if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '_', call_id)[:40]}_{digest}"


def request_tools(tools: Sequence[ToolDescription]) -> JSONObject:
    """Return the key `tools` of a request; without tools the key is omitted, since an empty list is refused."""
    if not tools:
        return {}
    return {
        "tools": [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in tools
        ]
    }


def with_tool_choice(settings: Mapping[str, Any], *, has_tools: bool) -> dict[str, Any]:
    """Return settings with `tool_choice` in this format; without tools it is omitted."""
    written, choice = dict(settings), settings.get("tool_choice")
    if choice is not None and not has_tools:
        del written["tool_choice"]
    elif isinstance(choice, Mapping) and "type" not in choice:
        written["tool_choice"] = {"type": "function", "function": dict(choice)}
    return written


class _Open(BaseModel):
    """An object of the format, with its server's extra fields."""

    model_config = ConfigDict(extra="allow")

    @property
    def more(self) -> JSONObject:
        """The fields beyond the format, if any."""
        extra = self.model_extra or {}
        return {name: value for name, value in extra.items() if value not in (None, [], {}) and name not in _KNOWN}


# Fields in every server's answers; they are useless in a request, and some servers refuse them.
_KNOWN = {"role", "name", "index", "prefix", "metadata", "tool_call_id", "function_call", "annotations", "audio"}
_KNOWN |= {"images", "logprobs", "token_ids"}


class _Function(_Open):
    name: str | None = None
    arguments: Any = None  # text by the format; an object from some servers


class _Call(_Open):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Said(_Open):
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None


class Answer(BaseModel):
    """The body of an answer, or one piece of a streamed one."""

    choices: list[_Choice] | None = None
    citations: Any = None  # addresses, as Perplexity and xAI give them
    usage: JSONObject | None = None
    error: Any = None

    @classmethod
    def read(cls, body: bytes) -> "Answer":
        """Read JSON of this format.

        Raises:
            InputError: naming the fault.
        """
        try:
            # Not pydantic's parser, which refuses half an emoji; `LLMResponse` and its readers repair that.
            return cls.model_validate(json.loads(body))
        except ValidationError as error:
            raise InputError(f"its answer is not in the format of Chat Completions: {explain(error)}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"its answer is not JSON: {error}") from error


_MARKS = re.compile(r'\\.?|["{}]', re.DOTALL)


class _Begun:
    """A call that is assembled from its fragments."""

    def __init__(self, first: _Call) -> None:
        self.id, self.type, self.name = first.id, first.type, None if first.function is None else first.function.name
        self.has_function = first.function is not None
        self._given = None if first.function is None else first.function.arguments
        self._pieces: list[str] = [self._given] if isinstance(self._given, str) else []
        self._more: dict[str, list[Any]] = {}
        self._keep(first)
        # The progress of scanning the arguments: pieces, depth in objects, inside a string, after a backslash.
        self._seen, self._depth, self._in_string, self._escape = 0, 0, False, ""

    @property
    def arguments(self) -> Any:
        return "".join(self._pieces) if self._pieces else self._given

    @property
    def more(self) -> JSONObject | None:
        """Its server's fields beyond the format; None if there are none."""
        return joined(self._more) or None

    def _keep(self, piece: _Call) -> None:
        add_to(self._more, piece.more)
        if piece.function is not None and (more := piece.function.more):
            add_to(self._more, {"function": more})

    def add(self, piece: _Call) -> None:
        self._keep(piece)
        if (function := piece.function) is None:
            return
        self.name = self.name or function.name
        if isinstance(function.arguments, str) and (self._pieces or not self._given):
            self._pieces.append(function.arguments)
        elif function.arguments and not isinstance(function.arguments, str):
            self._given, self._pieces = function.arguments, []

    def is_left_for(self, piece: _Call) -> bool:
        """Whether a piece belongs to another call: some servers give every call index 0, or no id."""
        if piece.id or piece.function is None or not piece.function.name:
            return bool(piece.id) and piece.id != self.id
        return self._is_whole()  # and a name follows

    def _is_whole(self) -> bool:
        """Whether the arguments are a closed object. Each piece is scanned only once."""
        mark = self._escape
        for mark in _MARKS.findall(self._escape + "".join(self._pieces[self._seen :])):
            if mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark == "{" else -1 if mark == "}" else 0
        self._seen, self._escape = len(self._pieces), "\\" if mark == "\\" else ""
        begins = next((piece.lstrip()[:1] for piece in self._pieces if piece.strip()), "")
        return begins == "{" and not self._in_string and self._depth <= 0


def _detail(usage: JSONObject, of: str, name: str) -> Any:
    details = usage.get(of)
    return details.get(name) or None if isinstance(details, dict) else None


class AnswerSoFar:
    """Assembles an answer from one piece or many."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._parts: list[Part] = []
        self._pieces, self._thoughts = ThoughtPieces(), 0  # thoughts among the parts
        self._sources: list[Any] = []
        self._is_refused = False
        self._more: dict[str, list[Any]] = {}
        self._calls: list[_Begun] = []
        self._last: dict[int | None, _Begun] = {}  # of each index
        self._usage: JSONObject | None = None

    def add(self, piece: Answer) -> list[str | ReasoningDelta]:
        """Add a piece; return the pieces of its thoughts and its text."""
        self._usage = piece.usage or self._usage  # the last piece of a stream, which has no choices
        choice = piece.choices[0] if piece.choices else _Choice()
        self.stop_reason = choice.finish_reason or self.stop_reason
        said = choice.message or choice.delta or _Said()
        for call in said.tool_calls or ():
            self._add_call(call, is_whole=choice.message is not None)
        heard = list[str | ReasoningDelta]()
        if more := said.more:
            add_to(self._more, more)
            heard += self._pieces.piece(thought_text({"message": more}))
        for found in (piece.citations, (said.model_extra or {}).get("annotations")):
            self._sources += found if isinstance(found, list) else ()
        self._is_refused = self._is_refused or bool(said.refusal)
        for part in said.content if isinstance(said.content, list) else [said.content or said.refusal or ""]:
            heard += self._add_part(part)
        return heard

    def _add_part(self, part: Any) -> Iterator[str | ReasoningDelta]:
        """Add a part of the content; yield its text. Any other part is kept in its place."""
        match part:
            case str(text) | {"type": "text" | "output_text", "text": str(text)} | {"refusal": str(text)}:
                if text:
                    self._parts.append(("text", text))
                    yield text
            case {"type": str(kind)} if kind not in ("text", "output_text") and json_problem(part) is None:
                before, last = self._parts[-1] if self._parts else ("text", "")
                self._thoughts += not (before == "thought" and _continues(last, part))
                self._parts.append(("thought", part))
                yield from self._pieces.piece(thought_text({"part": part}), self._thoughts)

    def _add_call(self, piece: _Call, *, is_whole: bool) -> None:
        """Continue the last call of the same index, unless another begins."""
        begun = self._last.get(piece.index)
        if is_whole or begun is None or not begun.has_function or begun.is_left_for(piece):
            begun = self._last[piece.index] = _Begun(piece)
            self._calls.append(begun)
        else:
            begun.add(piece)

    @property
    def usage(self) -> JSONObject | None:
        """The reported usage so far: most servers report it at the end, some with each piece."""
        if (usage := self._usage) is None:
            return None
        return {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "cached_tokens": _detail(usage, "prompt_tokens_details", "cached_tokens"),
            "reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens"),
        }

    def response(self, keeper: str) -> LLMResponse:
        """Return the whole answer.

        Args:
            keeper: the server, to which all its fields beyond the format go back: fields of the message, fields of each
                call, and non-text parts of the content.
        """
        calls = list(self._functions())
        parts = [(kind, _merged(kind, run)) for kind, run in groupby(self._parts, key=itemgetter(0))]
        said = [part for kind, found in parts for part in ((kind, one) for one in found)]
        more, of_calls = joined(self._more), [call.more for call in calls]
        kept: list[Part] = [("thought", {"message": more})] if more else []
        if any(of_calls):
            kept.append(("thought", {"calls": of_calls}))
        return LLMResponse.read(
            {
                "text": "".join(part for kind, part in said if kind == "text"),
                "tool_calls": tuple(
                    ToolCall(id=call.id or "", name=call.name or "", arguments=call.arguments) for call in calls
                ),
                "usage": self.usage,
                "stop_reason": "refusal" if self._is_refused else self.stop_reason,
                "citations": tuple(dict.fromkeys(_citations(self._sources))) or None,
                "reasoning": reasoning_of(
                    keeper, [*kept, *_in_place(said), *(("call", index) for index in range(len(calls)))]
                ),
            }
        )

    def _functions(self) -> Iterator[_Begun]:
        for call in self._calls:
            # The provider runs any other type itself, and does not need a result from us.
            if (call.type or "function") == "function" and call.has_function:
                yield call


def _citations(sources: Iterable[Any]) -> Iterator[Citation]:
    for one in sources:
        match one:
            case str(url):
                yield Citation(url=url)
            case {"url_citation": {"url": str(url), **more}}:
                title = more.get("title")
                yield Citation(url=url, title=title if isinstance(title, str) else None)


def _merged(kind: str, run: Iterable[Part]) -> list[Any]:
    """Merge consecutive parts that have the same kind."""
    found = [part for _, part in run]
    return ["".join(found)] if kind == "text" else joined_items(found)


def _in_place(said: Sequence[Part]) -> Iterator[Part]:
    for kind, part in said:
        yield kind, {"part": part} if kind == "thought" else part


# --- streamed fields beyond the format, which this module does not know ---

_WHOLE = ("type", "id", "index", "format", "role", "name")  # repeated with each piece, not continued


def add_to(pieces: dict[str, list[Any]], more: Mapping[str, Any]) -> None:
    """Add pieces of fields; values that are not strict JSON, or nested too deep, cannot be kept and sent back."""
    for name, value in more.items():
        if isinstance(value, str) or json_problem(value) is None:
            pieces.setdefault(name, []).append(value)


def joined(pieces: Mapping[str, list[Any]]) -> JSONObject:
    """Return the streamed fields: texts are continued, objects and list items completed."""
    return {name: _joined(name, values) for name, values in pieces.items()}


def _joined(name: str, values: list[Any]) -> Any:
    if all(isinstance(value, str) for value in values):
        return clean_text(values[-1] if name in _WHOLE else "".join(values))
    if len(values) == 1 or name in _WHOLE:
        return values[-1]
    if all(isinstance(value, list) for value in values):
        return joined_items([item for value in values for item in value])
    if not all(isinstance(value, dict) for value in values):
        return values[-1]
    fields: dict[str, list[Any]] = {}
    for value in values:
        for key, of_key in value.items():
            if of_key is not None or key not in fields:
                of_before = fields.setdefault(key, [])
                if of_before == [None]:
                    of_before.clear()
                of_before.append(of_key)
    return joined(fields)


def joined_items(items: Sequence[Any]) -> list[Any]:
    """Return the streamed items of a list: by index, or in order of arrival for consecutive texts of one kind."""
    found: list[list[Any]] = []
    by_index: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        if isinstance(item, dict) and isinstance(index := item.get("index"), int):
            place = (str(item.get("type")), index)
            if place in by_index:
                by_index[place].append(item)
                continue
            found.append([item])
            by_index[place] = found[-1]
        elif found and _continues(found[-1][-1], item):
            found[-1].append(item)
        else:
            found.append([item])
    return [_joined("", pieces) for pieces in found]


def _continues(before: Any, item: Any) -> bool:
    """Whether an item continues the previous text or thought."""
    if not isinstance(before, dict) or not isinstance(item, dict) or "id" in item or before.get("closed"):
        return False
    return item.get("type") == before.get("type") and item.get("type") in ("text", "thinking")
