"""OpenAI's Responses format: writes requests and reads answers. Nothing here does I/O."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from standfast.errors import InputError
from standfast.llm.chat_completions import sendable_arguments, sendable_id
from standfast.llm.reasoning import Part, parts_of, reasoning_of
from standfast.messages import LLMResponse, Message, ToolCall

if TYPE_CHECKING:  # the package exports what is built on this module
    from standfast.llm import ToolDescription

PROVIDER = "openai"


def request(
    model: str,
    messages: Sequence[Message],
    tools: "Sequence[ToolDescription]",
    settings: Mapping[str, Any],
    *,
    output: dict[str, Any] | None,
    thoughts: bool,
) -> dict[str, Any]:
    """Return the body of a request; absent values have no key.

    The provider keeps nothing (`store`): the transcript is ours, and goes with every request, thoughts encrypted.

    Args:
        settings: used as they are, except `tool_choice` and `max_tokens`, which every provider writes differently.
        output: the format that the answer is held to.
        thoughts: send back the provider's earlier ones, and ask for more; a model without thoughts refuses both.
    """
    given = dict(settings)
    choice = given.pop("tool_choice", None)
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    body: dict[str, Any] = {
        "model": model,
        "input": [item for message in messages for item in _items(message)],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if not thoughts:
        body = _without_thoughts(body)
    if system:
        body["instructions"] = system
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.input_schema),
                "strict": False,
            }
            for tool in tools
        ]
        if choice is not None:
            body["tool_choice"] = _choice(choice)
    if output is not None:
        body["text"] = {"format": output}
    return {**body, **given}


def without_thoughts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request for a model that has no thoughts."""
    body = {**request["extra_body"], "input": request["input"]}
    plain = _without_thoughts(body)
    return {**request, "input": plain.pop("input"), "extra_body": plain}


def _without_thoughts(body: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in body.items() if name != "include"}
    return {**plain, "input": [item for item in body["input"] if item.get("type") != "reasoning"]}


def _choice(choice: Any) -> Any:
    match choice:
        case {"name": str(name)} if "type" not in choice:
            return {"type": "function", "name": name}
        case _:
            return choice


def _items(message: Message) -> Iterator[dict[str, Any]]:
    match message.role:
        case "system":
            return
        case "tool":
            call_id = sendable_id(message.tool_call_id or "")
            yield {"type": "function_call_output", "call_id": call_id, "output": message.content}
        case "user" if message.images:
            pictures = [{"type": "input_image", "image_url": image.address} for image in message.images]
            text = [{"type": "input_text", "text": message.content}] if message.content else []
            yield {"role": "user", "content": [*pictures, *text]}
        case "user":
            yield {"role": "user", "content": message.content}
        case _:
            yield from _answer_parts(message)


def _answer_parts(message: Message) -> Iterator[dict[str, Any]]:
    for kind, part in parts_of(message, PROVIDER):
        match kind:
            case "thought":
                yield part
            case "text" if part or not message.tool_calls:
                yield {"role": "assistant", "content": part}
            case "call":
                call = (message.tool_calls or ())[part]
                arguments = json.dumps(sendable_arguments(call), ensure_ascii=False)
                call_id = sendable_id(call.id)
                yield {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": arguments}


def response(body: Mapping[str, Any]) -> LLMResponse:
    """Return the content of an answer.

    Raises:
        InputError: it is not in this format.
    """
    items = body.get("output")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError(f"its answer is not in the format of Responses: output is {items!r:.80}")
    said = [
        part
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]
    refused = any(part.get("type") == "refusal" for part in said)
    return LLMResponse(
        text="".join(map(_text, said)),
        tool_calls=tuple(
            ToolCall(
                id=str(item.get("call_id") or ""), name=str(item.get("name") or ""), arguments=item.get("arguments")
            )
            for item in items
            if item.get("type") == "function_call"
        ),
        usage=_usage(body.get("usage")),  # type: ignore[arg-type]  # read from a dict
        stop_reason="refusal" if refused else _why_incomplete(body),
        reasoning=reasoning_of(PROVIDER, list(_parts(items))),
    )


def _text(part: Mapping[str, Any]) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _parts(items: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    calls = 0
    for item in items:
        match item.get("type"):
            case "reasoning" if item.get("encrypted_content"):
                yield "thought", item
            case "message":
                yield "text", "".join(_text(part) for part in item.get("content") or () if isinstance(part, dict))
            case "function_call":
                yield "call", calls
                calls += 1


def _why_incomplete(body: Mapping[str, Any]) -> str | None:
    details = body.get("incomplete_details")
    return details.get("reason") if isinstance(details, Mapping) else body.get("status")


def _usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, Mapping):
        return None
    given, said = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    return {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": given.get("cached_tokens") or None,
        "cache_write_tokens": given.get("cache_write_tokens") or None,
        "reasoning_tokens": said.get("reasoning_tokens") or None,
    }
