"""Shows pydantic-ai messages as a session's, for people who view it; nothing is read back from them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_core import to_jsonable_python

from standfast.messages import Message, ToolCall, Usage


def messages_of(messages: Sequence[ModelMessage]) -> tuple[Message, ...]:
    """Return messages in a session's form; the message that begins a turn is already there."""
    return tuple(_messages(messages))


def _messages(messages: Sequence[ModelMessage]) -> Iterator[Message]:
    for message in messages:
        if isinstance(message, ModelResponse):
            yield _of_response(message)
        else:
            yield from (one for part in message.parts if (one := _of_part(part)) is not None)


def _of_response(response: ModelResponse) -> Message:
    calls = tuple(
        ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=arguments_of(part))
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    usage = Usage(
        input_tokens=response.usage.input_tokens or 0,
        output_tokens=response.usage.output_tokens or 0,
    )
    return Message(
        role="assistant", content=response.text or "", tool_calls=calls or None, usage=usage, model=response.model_name
    )


def _of_part(part: ModelRequestPart) -> Message | None:
    status: Literal["completed", "failed"]
    if isinstance(part, ToolReturnPart):
        status = "completed" if part.outcome == "success" else "failed"
    elif isinstance(part, RetryPromptPart):
        status = "failed"
    else:
        return None
    content = part.content if isinstance(part.content, str) else _json(part.content)
    if part.tool_name is None:
        return Message(role="user", content=content)
    return Message(
        role="tool", content=content, tool_call_id=part.tool_call_id, tool_name=part.tool_name, status=status
    )


def arguments_of(part: ToolCallPart) -> Any:
    """Return the arguments of a call as an object."""
    try:
        return part.args_as_dict()
    except ValueError:
        return {"arguments": str(part.args)}


def _json(value: Any) -> str:
    return json.dumps(to_jsonable_python(value, fallback=str, bytes_mode="base64"), ensure_ascii=False)
