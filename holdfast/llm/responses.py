"""OpenAI's Responses format: what a request says and what an answer means. Nothing here does I/O."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import InputError
from holdfast.llm.chat_completions import sendable_arguments
from holdfast.messages import LLMResponse, Message, Reasoning, ToolCall

if TYPE_CHECKING:  # the package exports what is built on this module
    from holdfast.llm import ToolDescription

PROVIDER = "openai"


def request(
    model: str, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of a request; what is absent has no key.

    The provider keeps nothing (`store`): the transcript is ours, and goes with every request, thoughts encrypted.

    Args:
        settings: go into it as they are, but for `tool_choice`, `max_tokens` and `output_schema`, which every provider
            writes otherwise.
    """
    given = dict(settings)
    choice, schema = given.pop("tool_choice", None), given.pop("output_schema", None)
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    body: dict[str, Any] = {
        "model": model,
        "input": [item for message in messages for item in _items(message)],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
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
    if schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": False}}
    return {**body, **given}


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
            yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        case "user" if message.images:
            pictures = [{"type": "input_image", "image_url": image.address} for image in message.images]
            text = [{"type": "input_text", "text": message.content}] if message.content else []
            yield {"role": "user", "content": [*pictures, *text]}
        case "user":
            yield {"role": "user", "content": message.content}
        case _:
            if message.reasoning is not None and message.reasoning.provider == PROVIDER:
                yield from message.reasoning.blocks
            if message.content or not message.tool_calls:
                yield {"role": "assistant", "content": message.content}
            for call in message.tool_calls or ():
                arguments = json.dumps(sendable_arguments(call), ensure_ascii=False)
                yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def response(body: Mapping[str, Any]) -> LLMResponse:
    """Return what an answer says.

    Raises:
        InputError: it is not in this format.
    """
    items = body.get("output")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError(f"its answer is not in the format of Responses: output is {items!r:.80}")
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]
    refused = any(part.get("type") == "refusal" for part in parts)
    thought = tuple(item for item in items if item.get("type") == "reasoning" and item.get("encrypted_content"))
    return LLMResponse(
        text="".join(str(part.get("text") or part.get("refusal") or "") for part in parts),
        tool_calls=tuple(
            ToolCall(
                id=str(item.get("call_id") or ""), name=str(item.get("name") or ""), arguments=item.get("arguments")
            )
            for item in items
            if item.get("type") == "function_call"
        ),
        usage=_usage(body.get("usage")),  # type: ignore[arg-type]  # read from a dict
        stop_reason="refusal" if refused else _why_incomplete(body),
        reasoning=Reasoning(provider=PROVIDER, blocks=thought) if thought else None,
    )


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
