"""OpenAI's Chat Completions format: writes requests and reads answers. Nothing here does I/O."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from standfast.errors import InputError
from standfast.messages import LLMResponse, Message, ToolCall, explain

if TYPE_CHECKING:  # the package exports what is built on this module
    from standfast.llm import ToolDescription


def request_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Write a conversation; a system prompt without text is left out."""
    return [_message(message) for message in messages if message.role != "system" or message.content]


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": image.address}} for image in message.images]
        text = [{"type": "text", "text": message.content}] if message.content else []
        return {"role": message.role, "content": [*pictures, *text]}
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(sendable_arguments(call), ensure_ascii=False)},
        }
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def sendable_arguments(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments, as an object even if malformed: servers parse them and refuse anything else."""
    return {"malformed": call.arguments} if isinstance(call.arguments, str) else call.arguments


def sendable_id(call_id: str) -> str:
    """Return a call's id as the strictest provider accepts it; the same for the call and its result.

    Anthropic's API takes `^[a-zA-Z0-9_-]+$`, OpenAI's 64 characters. A session may hold ids of any other.
    """
    if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '_', call_id)[:40]}_{digest}"


def request_tools(tools: "Sequence[ToolDescription]") -> dict[str, Any]:
    """Return the key `tools` of a request; no key at all without tools, since an empty list is refused."""
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
    """Return settings whose `tool_choice` is as this format has it; without tools there is none."""
    written, choice = dict(settings), settings.get("tool_choice")
    if choice is not None and not has_tools:
        del written["tool_choice"]
    elif isinstance(choice, Mapping) and "type" not in choice:
        written["tool_choice"] = {"type": "function", "function": dict(choice)}
    return written


class _Function(BaseModel):
    name: str | None = None
    arguments: Any = None  # text by the format; an object from some servers


class _Call(BaseModel):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Said(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None


class Answer(BaseModel):
    """The body of an answer, or one piece of a streamed one."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None

    @classmethod
    def read(cls, body: bytes) -> "Answer":
        """Read JSON of this format.

        Raises:
            InputError: saying how it is not.
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
        # How far the arguments were scanned: pieces, depth in objects, whether in a string, or after a backslash.
        self._seen, self._depth, self._in_string, self._escape = 0, 0, False, ""

    @property
    def arguments(self) -> Any:
        return "".join(self._pieces) if self._pieces else self._given

    def add(self, function: _Function) -> None:
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


def _detail(usage: dict[str, Any], of: str, name: str) -> Any:
    details = usage.get(of)
    return details.get(name) or None if isinstance(details, dict) else None


class AnswerSoFar:
    """Assembles an answer from one piece or many."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._text: list[str] = []
        self._calls: list[_Begun] = []
        self._last: dict[int | None, _Begun] = {}  # of each index
        self._usage: dict[str, Any] | None = None

    def add(self, piece: Answer) -> str:
        """Add a piece; return the text that it brings."""
        self._usage = piece.usage or self._usage  # the last of a stream, which has no choices
        choice = piece.choices[0] if piece.choices else _Choice()
        self.stop_reason = choice.finish_reason or self.stop_reason
        said = choice.message or choice.delta or _Said()
        for call in said.tool_calls or ():
            self._add_call(call, is_whole=choice.message is not None)
        text = said.content or said.refusal or ""
        self._text.append(text)
        return text

    def _add_call(self, piece: _Call, *, is_whole: bool) -> None:
        """Continue the last call of the same index, unless another begins."""
        begun = self._last.get(piece.index)
        if is_whole or begun is None or not begun.has_function or begun.is_left_for(piece):
            begun = self._last[piece.index] = _Begun(piece)
            self._calls.append(begun)
        elif piece.function is not None:
            begun.add(piece.function)

    def response(self) -> LLMResponse:
        """Return the whole answer."""
        usage = self._usage or {}
        return LLMResponse.read(
            {
                "text": "".join(self._text),
                "tool_calls": tuple(self._tool_calls()),
                "usage": {
                    "input_tokens": usage.get("prompt_tokens"),
                    "output_tokens": usage.get("completion_tokens"),
                    "cached_tokens": _detail(usage, "prompt_tokens_details", "cached_tokens"),
                    "reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens"),
                },
                "stop_reason": self.stop_reason,
            }
        )

    def _tool_calls(self) -> Iterator[ToolCall]:
        for call in self._calls:
            # The provider runs any other type itself, and needs no result from us.
            if (call.type or "function") == "function" and call.has_function:
                yield ToolCall(id=call.id or "", name=call.name or "", arguments=call.arguments)
