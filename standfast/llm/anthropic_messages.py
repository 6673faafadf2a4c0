"""Anthropic's Messages format: writes requests and reads answers. Nothing here does I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from standfast.errors import InputError
from standfast.llm.chat_completions import sendable_arguments, sendable_id
from standfast.llm.reasoning import Part, parts_of, reasoning_of
from standfast.messages import Image, LLMResponse, Message, ToolCall

if TYPE_CHECKING:  # the package exports what is built on this module
    from standfast.llm import ToolDescription

PROVIDER = "anthropic"
_THOUGHTS = ("thinking", "redacted_thinking")
_NOTHING = "(nothing)"  # stands for an empty message of a user: blank text is refused
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


def request(
    model: str,
    messages: Sequence[Message],
    tools: "Sequence[ToolDescription]",
    settings: Mapping[str, Any],
    *,
    output: dict[str, Any] | None,
    max_tokens: int,
    cache: bool,
) -> dict[str, Any]:
    """Return the body of a request; absent values have no key.

    Args:
        settings: used as they are, except `tool_choice`, which every provider writes differently.
        output: the format that the answer is held to.
        max_tokens: the limit of the answer, unless the settings have one; tokens for thinking come on top.
        cache: whether the provider keeps the beginning of this request for the next.
    """
    given = dict(settings)
    choice, thinking = given.pop("tool_choice", None), given.get("thinking")
    if isinstance(thinking, Mapping) and isinstance(budget := thinking.get("budget_tokens"), int):
        max_tokens += budget
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": _messages(messages)}
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": _input_schema(tool.input_schema)}
            for tool in tools
        ]
        if choice is not None:
            body["tool_choice"] = _choice(choice)
    if cache:
        body["cache_control"] = {"type": "ephemeral"}
    if output is not None:
        body["output_config"] = {"format": output}
    return {**body, **given}


def _input_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the keys that the provider refuses at the top of a schema; the arguments are checked by all of it."""
    return {name: part for name, part in schema.items() if name not in ("oneOf", "anyOf", "allOf")}


def _choice(choice: Any) -> Any:
    match choice:
        case str() if choice in _CHOICES:
            return {"type": _CHOICES[choice]}
        case {"name": str(name)} if "type" not in choice:
            return {"type": "tool", "name": name}
        case _:
            return choice


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Write a conversation; the results of a turn are one message of the user."""
    written: list[dict[str, Any]] = []
    for message in messages:
        match message.role:
            case "system":
                continue
            case "tool":
                block = _result(message)
                if written and _holds_results(written[-1]):
                    written[-1]["content"].append(block)
                else:
                    written.append({"role": "user", "content": [block]})
            case "assistant":
                if said := _answer_parts(message):  # one without text is refused
                    written.append({"role": "assistant", "content": said})
            case _ if message.images:
                blocks = [*map(_image, message.images), *([_text(message.content)] if message.content.strip() else [])]
                written.append({"role": "user", "content": blocks})
            case _:
                written.append({"role": "user", "content": message.content if message.content.strip() else _NOTHING})
    return written


def _holds_results(written: Mapping[str, Any]) -> bool:
    content = written["content"]
    return isinstance(content, list) and bool(content) and content[0].get("type") == "tool_result"


def _result(message: Message) -> dict[str, Any]:
    if not message.tool_call_id:
        raise InputError("a tool message has no tool_call_id: the model cannot tell which call it answers")
    block = {"type": "tool_result", "tool_use_id": sendable_id(message.tool_call_id), "content": message.content}
    return block if message.status in (None, "completed") else {**block, "is_error": True}


def _answer_parts(message: Message) -> Any:
    """Return the parts of an answer that the provider accepts: no blank text, no final thoughts. None if none."""
    blocks: list[dict[str, Any]] = []
    for kind, part in parts_of(message, PROVIDER):
        match kind:
            case "thought" if part.get("type") != "thinking" or part.get("signature"):  # others were cut off
                blocks.append(part)
            case "text" if part.strip():
                blocks.append(_text(part))
            case "call":
                call = (message.tool_calls or ())[part]
                arguments = sendable_arguments(call)
                blocks.append({"type": "tool_use", "id": sendable_id(call.id), "name": call.name, "input": arguments})
    while blocks and blocks[-1].get("type") in _THOUGHTS:
        blocks.pop()
    if len(blocks) == 1 and blocks[0].get("type") == "text":
        return blocks[0]["text"]
    return blocks or None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: Image) -> dict[str, Any]:
    if image.url is not None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


# The parts of an answer that come in pieces: the name of a piece, and the place where it belongs.
_PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("partial_json", "input"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


class AnswerSoFar:
    """Assembles a streamed answer."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        self._is_whole = False

    def add(self, event: Mapping[str, Any]) -> str:
        """Add an event; return the text that it brings."""
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._message = message
                self._note(message.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = block
                return str(block.get("text") or "") if block.get("type") == "text" else ""
            case {"type": "content_block_delta", "index": int(index), "delta": dict(piece)}:
                return self._add_piece(index, piece)
            case {"type": "message_delta", "delta": dict(end)}:
                self._message = {**self._message, **end}
                self._note(event.get("usage"))
            case {"type": "message_stop"}:
                self._is_whole = True
        return ""

    def _note(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: count for name, count in usage.items() if count is not None}

    def _add_piece(self, index: int, delta: Mapping[str, Any]) -> str:
        name, place = _PIECES.get(str(delta.get("type")), ("", ""))
        piece = delta.get(name)
        if index not in self._blocks or not isinstance(piece, str):
            return ""
        self._pieces.setdefault((index, place), []).append(piece)
        return piece if place == "text" else ""

    def body(self) -> dict[str, Any]:
        """Return the answer as if it had not been streamed; the arguments of a call are text.

        Raises:
            InputError: it is not whole.
        """
        if not self._is_whole:
            raise InputError("the stream ended before the answer was whole")
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, place), pieces in self._pieces.items():
            begun = blocks[index].get(place)
            blocks[index][place] = "".join([begun if isinstance(begun, str) else "", *pieces])
        return {**self._message, "content": [blocks[index] for index in sorted(blocks)], "usage": self._usage}


def response(body: Mapping[str, Any]) -> LLMResponse:
    """Return the content of an answer.

    Raises:
        InputError: it is not in this format.
    """
    blocks = body.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise InputError(f"its answer is not in the format of Messages: content is {blocks!r:.80}")
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    return LLMResponse(
        text=text or _why_refused(body),
        tool_calls=tuple(
            ToolCall(
                id=str(block.get("id") or ""),
                name=str(block.get("name") or ""),
                arguments=block.get("input"),
            )
            for block in blocks
            if block.get("type") == "tool_use"
        ),
        usage=_usage(body.get("usage")),  # type: ignore[arg-type]  # read from a dict
        stop_reason=body.get("stop_reason"),
        reasoning=reasoning_of(PROVIDER, list(_parts(blocks))),
    )


def _why_refused(body: Mapping[str, Any]) -> str:
    """Return what the provider says about a refusal without text."""
    match body.get("stop_details"):
        case {"explanation": str(words)} if words:
            return words
        case {"category": str(kind)}:
            return f"The model has refused to answer ({kind})."
    return ""


def _parts(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    calls = 0
    for block in blocks:
        match block.get("type"):
            case kind if kind in _THOUGHTS:
                yield "thought", block
            case "text":
                yield "text", str(block.get("text") or "")
            case "tool_use":
                yield "call", calls
                calls += 1


def _usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, Mapping):
        return None
    given, said = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(given, int) or not isinstance(said, int):
        return None
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    details = usage.get("output_tokens_details") or {}
    return {
        "input_tokens": given + (read or 0) + (written or 0),  # which this provider counts separately
        "output_tokens": said,
        "cached_tokens": read or None,
        "cache_write_tokens": written or None,
        "reasoning_tokens": details.get("thinking_tokens") if isinstance(details, Mapping) else None,
    }
