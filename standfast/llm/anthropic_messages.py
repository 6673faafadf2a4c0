"""Anthropic's Messages format: writes requests and reads answers. Nothing here does I/O."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.errors import InputError
from standfast.events import ReasoningDelta
from standfast.llm.chat_completions import sendable_arguments, sendable_id
from standfast.llm.protocol import ToolDescription
from standfast.llm.reasoning import Part, ThoughtPieces, details, details_in, hosted_call, parts_of, reasoning_of
from standfast.messages import Citation, HostedCall, Image, JSONObject, LLMResponse, Message, ToolCall
from standfast.tools import HostedTool

PROVIDER = "anthropic"
_THOUGHTS = ("thinking", "redacted_thinking")
_CALLS = ("server_tool_use", "mcp_tool_use")
_NOTHING = "(nothing)"  # replaces a user's empty message: blank text is refused
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


def request(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    *,
    output: JSONObject | None,
    max_tokens: int,
    cache: bool,
    hosted: Sequence[HostedTool] = (),
) -> JSONObject:
    """Return a request's body, which omits absent values.

    Args:
        settings: used unchanged, except `tool_choice`, which every provider writes differently.
        output: the format that the answer must match.
        max_tokens: the limit of the answer, unless the settings have one; thinking tokens come on top.
        cache: whether the provider keeps the beginning of this request for the next.
        hosted: the tools that the provider runs.
    """
    given = dict(settings)
    choice, thinking = given.pop("tool_choice", None), given.get("thinking")
    if isinstance(thinking, Mapping) and isinstance(budget := thinking.get("budget_tokens"), int):
        max_tokens += budget
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    body: JSONObject = {"model": model, "max_tokens": max_tokens, "messages": _messages(messages)}
    if system:
        body["system"] = system
    if tools or hosted:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": _input_schema(tool.input_schema)}
            for tool in tools
        ] + [tool.declared(PROVIDER) for tool in hosted]
        if choice is not None:
            body["tool_choice"] = _choice(choice)
    if hosted and (container := _container(messages)) is not None:
        body["container"] = container
    if cache:
        body["cache_control"] = {"type": "ephemeral"}
    if output is not None:
        body["output_config"] = {"format": output}
    return {**body, **given}


def _input_schema(schema: Mapping[str, Any]) -> JSONObject:
    """Drop the keys that the provider refuses at the top of a schema; the full schema still checks the arguments."""
    return {name: part for name, part in schema.items() if name not in ("oneOf", "anyOf", "allOf")}


def _choice(choice: Any) -> Any:
    match choice:
        case str() if choice in _CHOICES:
            return {"type": _CHOICES[choice]}
        case {"name": str(name)} if "type" not in choice:
            return {"type": "tool", "name": name}
        case _:
            return choice


def _container(messages: Sequence[Message]) -> str | None:
    """Return the id of the container in which the last answers have run code, unless it has expired."""
    for message in reversed(messages):
        if message.role == "assistant" and message.reasoning is not None and message.reasoning.provider == PROVIDER:
            for block in message.reasoning.blocks:
                match details_in(block, "message"):
                    case {"container": {"id": str(name), "expires_at": str(until)}}:
                        return name if _is_ahead(until) else None
    return None


def _is_ahead(time: str) -> bool:
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return False
    return at.replace(tzinfo=at.tzinfo or UTC) > datetime.now(UTC)


def _messages(messages: Sequence[Message]) -> list[JSONObject]:
    """Write a conversation; the results of a turn are one user message."""
    written: list[JSONObject] = []
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
                if said := _answer_parts(message):  # a message without text is refused
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


def _result(message: Message) -> JSONObject:
    if not message.tool_call_id:
        raise InputError("a tool message has no tool_call_id: the model cannot tell which call it answers")
    block = {"type": "tool_result", "tool_use_id": sendable_id(message.tool_call_id), "content": message.content}
    return block if message.status in (None, "completed") else {**block, "is_error": True}


def _answer_parts(message: Message) -> Any:
    """Return the parts of an answer that the provider accepts: no blank text, no final thoughts; None without any."""
    blocks: list[JSONObject] = []
    unfinished = () if message.tool_calls else _unfinished(message)  # beside calls, the provider runs it afterwards
    of_text: JSONObject = {}
    of_call: JSONObject = {}
    for kind, part in parts_of(message, PROVIDER):
        match kind:
            case "thought" if "with" in part:
                of_text = details_in(part, "text") or of_text
                of_call = details_in(part, "call") or of_call
            case "thought" if part.get("type") in _CALLS and part.get("id") in unfinished:
                pass  # refused without a result
            case "thought" if part.get("type") != "thinking" or part.get("signature"):  # the others were cut off
                blocks.append(part)
            case "text" if part.strip():
                blocks.append({**of_text, **_text(part)})
                of_text = {}
            case "call":
                call = (message.tool_calls or ())[part]
                arguments = sendable_arguments(call)
                own = {"type": "tool_use", "id": sendable_id(call.id), "name": call.name, "input": arguments}
                blocks.append({**of_call, **own})
                of_call = {}
    while blocks and blocks[-1].get("type") in _THOUGHTS:
        blocks.pop()
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return blocks[0]["text"]
    return blocks or None


def _unfinished(message: Message) -> set[Any]:
    """Return the ids of calls that the provider made itself and whose results are not in the answer."""
    blocks = () if message.reasoning is None else message.reasoning.blocks
    return {one.get("id") for one in blocks if one.get("type") in _CALLS} - {one.get("tool_use_id") for one in blocks}


def _text(text: str) -> JSONObject:
    return {"type": "text", "text": text}


def _image(image: Image) -> JSONObject:
    if image.url is not None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


# The parts of a streamed answer: the name of a piece, and the place where it belongs.
_PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("partial_json", "input"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


class AnswerSoFar:
    """Assembles a streamed answer.

    Args:
        thoughts: of the part before a pause.
    """

    def __init__(self, thoughts: ThoughtPieces | None = None) -> None:
        self._message: JSONObject = {}
        self.usage: JSONObject = {}
        self._blocks: dict[int, JSONObject] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        self._items: dict[tuple[int, str], list[Any]] = {}
        self._is_whole = False
        self._thoughts = ThoughtPieces() if thoughts is None else thoughts

    def add(self, event: Mapping[str, Any]) -> Iterable[str | ReasoningDelta]:
        """Add an event; return the pieces of its thoughts and its text."""
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._message = message
                self._note(message.get("usage"))
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = block
                kind = str(block.get("type"))
                return self._shown(index, kind, block.get(kind))
            case {"type": "content_block_delta", "index": int(index), "delta": dict(piece)}:
                return self._add_piece(index, piece)
            case {"type": "message_delta", "delta": dict(end)}:
                self._message = {**self._message, **end}
                self._note(event.get("usage"))
            case {"type": "message_stop"}:
                self._is_whole = True
        return ()

    def _shown(self, index: int, place: Any, text: Any) -> Iterable[str | ReasoningDelta]:
        """Return the piece that people see of a text at this place of a block."""
        if not isinstance(text, str) or not text:
            return ()
        if place == "thinking":
            return self._thoughts.piece(text, (self._message.get("id"), index))
        return (text,) if place == "text" else ()

    def _note(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.usage |= {name: count for name, count in usage.items() if count is not None}

    def _add_piece(self, index: int, delta: Mapping[str, Any]) -> Iterable[str | ReasoningDelta]:
        if index not in self._blocks:
            return ()
        kind = str(delta.get("type"))
        if kind == "citations_delta":
            self._items.setdefault((index, "citations"), []).append(delta.get("citation"))
        elif kind in _PIECES:
            name, place = _PIECES[kind]
            if isinstance(piece := delta.get(name), str):
                self._pieces.setdefault((index, place), []).append(piece)
                return self._shown(index, place, piece)
        else:  # of an unknown kind; the block goes back whole
            for place, piece in delta.items():
                if place != "type" and isinstance(piece, str):
                    self._pieces.setdefault((index, place), []).append(piece)
                elif place != "type" and piece is not None:
                    self._blocks[index] = {**self._blocks[index], place: piece}
        return ()

    def body(self) -> JSONObject:
        """Return the answer as if it had not been streamed; a call's arguments are text.

        Raises:
            InputError: it is incomplete.
        """
        if not self._is_whole:
            raise InputError("the stream ended before the answer was complete")
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, place), pieces in self._pieces.items():
            begun = blocks[index].get(place)
            blocks[index][place] = "".join([begun if isinstance(begun, str) else "", *pieces])
        for (index, place), items in self._items.items():
            blocks[index][place] = [*(blocks[index].get(place) or ()), *items]
        for block in blocks.values():
            if block.get("type") != "tool_use" and isinstance(given := block.get("input"), str):
                block["input"] = _object(given)  # it goes back unchanged
        return {**self._message, "content": [blocks[index] for index in sorted(blocks)], "usage": self.usage}


def _object(text: str) -> JSONObject:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def continued(messages: Sequence[Any], body: Mapping[str, Any]) -> list[Any]:
    """Return the messages of the request that continues a paused answer."""
    said = [block for block in body["content"] if block.get("type") != "text" or str(block.get("text") or "").strip()]
    return [*messages, {"role": "assistant", "content": said}]


def together(before: Mapping[str, Any] | None, body: JSONObject) -> JSONObject:
    """Return an answer together with its part before a pause."""
    if before is None:
        return body
    first, usage = before.get("usage") or {}, dict(body.get("usage") or {})
    for name, count in first.items():
        if isinstance(count, int) and isinstance(usage.get(name, 0), int):
            usage[name] = count + usage.get(name, 0)
    return {**before, **body, "content": [*before["content"], *body["content"]], "usage": usage}


def usage_of(before: Mapping[str, Any] | None, answer: AnswerSoFar) -> JSONObject | None:
    """Return the reported usage of an answer so far, together with its part before a pause."""
    return _usage(together(before, {"content": (), "usage": answer.usage})["usage"])


def response(body: Mapping[str, Any]) -> LLMResponse:
    """Return the content of an answer.

    Raises:
        InputError: it does not have this format.
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
        reasoning=reasoning_of(PROVIDER, [*_container_of(body), *_parts(blocks)]),
        hosted=tuple(_hosted(blocks)) or None,
        citations=tuple(_citations(blocks)) or None,
    )


def _why_refused(body: Mapping[str, Any]) -> str:
    """Return the provider's text about a refusal, if the answer is without text."""
    match body.get("stop_details"):
        case {"explanation": str(words)} if words:
            return words
        case {"category": str(kind)}:
            return f"The model has refused to answer ({kind})."
    return ""


def _container_of(body: Mapping[str, Any]) -> Iterator[Part]:
    return details("message", {"container": body.get("container")}, ())


def _parts(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """Yield the parts of an answer; results of the provider's own tools, and unknown blocks, go back to it."""
    calls = 0
    for block in blocks:
        match block.get("type"):
            case "text":
                yield from details("text", block, ("type", "text"))
                yield "text", str(block.get("text") or "")
            case "tool_use":
                known = ("type", "id", "name", "input")
                yield from details("call", block, (*known, "caller") if _is_direct(block) else known)
                yield "call", calls
                calls += 1
            case _:
                yield "thought", block


def _is_direct(block: Mapping[str, Any]) -> bool:
    """Whether the model itself calls the tool, as is usual, rather than code that it runs."""
    caller = block.get("caller")
    return not isinstance(caller, Mapping) or caller.get("type") == "direct"


def _hosted(blocks: Sequence[Mapping[str, Any]]) -> Iterator[HostedCall]:
    """Yield the calls that the provider made itself; a call without a result in the answer may have run."""
    results = {
        block.get("tool_use_id"): block.get("content")
        for block in blocks
        if str(block.get("type")).endswith("tool_result")
    }
    for block in blocks:
        if block.get("type") in _CALLS:
            name, given = block.get("name"), block.get("input")
            if block.get("id") not in results:
                yield hosted_call(name, given, "unknown")
                continue
            match results[block.get("id")]:
                case {"error_code": why}:
                    yield hosted_call(name, given, "failed", why)
                case _:
                    yield hosted_call(name, given, "ran")


def _citations(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Citation]:
    seen = set()
    for block in blocks:
        for one in block.get("citations") or () if block.get("type") == "text" else ():
            if isinstance(one, Mapping):
                found = {
                    "url": one.get("url") or one.get("source"),
                    "title": one.get("title") or one.get("document_title"),
                    "text": one.get("cited_text"),
                }
                citation = Citation(**{name: str(value) for name, value in found.items() if value})
                if citation not in seen:
                    seen.add(citation)
                    yield citation


def _usage(usage: Any) -> JSONObject | None:
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
