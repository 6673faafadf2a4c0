"""Tool calls in plain text: every answer is one JSON object, whose schema the server enforces.

For small models, which rarely use a server's own tool calls well, and for servers without them. No I/O here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from standfast.errors import InputError
from standfast.llm.chat_completions import sendable_arguments
from standfast.llm.protocol import ToolDescription
from standfast.messages import JSONObject, LLMResponse, Message, ToolCall, clean_text, read_object


def plain_messages(messages: Sequence[Message], tools: Sequence[ToolDescription]) -> list[Message]:
    """Return a conversation without tool calls: one system message, then alternating user and assistant messages.

    Chat templates of small models refuse a second system message and two messages of one role in a row.
    """
    system = [message.content for message in messages if message.role == "system" and message.content]
    if tools:
        system.append(_instructions(tools))
    result = [Message(role="system", content="\n\n".join(system))] if system else []
    for message in messages:
        if message.role == "system":
            continue
        plain = Message(
            role="assistant" if message.role == "assistant" else "user",
            content=_plain(message),
            images=message.images,
        )
        if result and result[-1].role == plain.role:
            before = result.pop()
            both = (*(before.images or ()), *(plain.images or ())) or None
            plain = plain.model_copy(update={"content": f"{before.content}\n\n{plain.content}", "images": both})
        result.append(plain)
    return result


def _plain(message: Message) -> str:
    if message.role == "tool":
        return f"Result of {message.tool_name or message.tool_call_id}: {message.content}"
    calls = [
        json.dumps({"tool": call.name, "arguments": sendable_arguments(call)}, ensure_ascii=False)
        for call in message.tool_calls or ()
    ]
    return "\n".join([message.content, *calls] if message.content else calls)


def _instructions(tools: Sequence[ToolDescription]) -> str:
    """Describe the tools before the form of an answer: in the reverse order, small models always call a tool."""
    described = "\n".join(
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.input_schema, ensure_ascii=False)}"
        for tool in tools
    )
    return (
        f"You have these tools:\n{described}\n\n"
        'Reply with one JSON object. To call a tool: {"tool": "<its name>", "arguments": {...}}. '
        'To answer the user instead: {"answer": "..."}.'
    )


def response_format(tools: Sequence[ToolDescription]) -> JSONObject:
    """Return the key `response_format` of a request: a call of one of the tools, or an answer."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": reply_schema(tools)}}}


def reply_schema(tools: Sequence[ToolDescription]) -> JSONObject:
    """Return the schema of a reply: a call of one of the tools, or an answer."""
    calls = [_object(tool={"const": tool.name}, arguments={"$ref": f"#/$defs/{tool.name}"}) for tool in tools]
    return {
        "anyOf": [*calls, _object(answer={"type": "string"})],
        "$defs": {tool.name: _moved(tool.input_schema, f"#/$defs/{tool.name}") for tool in tools},
    }


def _object(**properties: Any) -> JSONObject:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema embedded at `place` in another one: its references begin there."""
    match schema:
        case {"$ref": str(reference), **rest} if reference.startswith("#"):
            return {"$ref": place + reference[1:], **_moved(rest, place)}
        case Mapping():
            return {key: _moved(value, place) for key, value in schema.items()}
        case list():
            return [_moved(item, place) for item in schema]
        case _:
            return schema


def read_reply(response: LLMResponse) -> LLMResponse:
    """Return the contents of an answer's JSON object; any other answer is returned unchanged.

    If a token limit cut it off, a text keeps its beginning, and a call keeps its raw text instead of arguments: half of
    the arguments may look valid.
    """
    text = response.text
    try:
        reply, is_whole = read_object(text), True
    except InputError:
        reply, is_whole = _beginning(text), False
    match reply:
        case {"tool": str(name), **rest}:
            call = ToolCall(name=name, arguments=rest.get("arguments", rest) if is_whole else text)
            return response.model_copy(update={"text": "", "tool_calls": (call,)})
        case {"answer": str(answer)}:
            return response.model_copy(update={"text": answer})
        case _:
            return response


def _beginning(text: str) -> Any:
    try:
        return from_json(clean_text(text), allow_partial="trailing-strings")
    except ValueError:
        return None
