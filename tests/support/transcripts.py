"""Short builders for models' answers and transcripts, and readers of their contents."""

import json
from collections.abc import Sequence
from typing import Any

from standfast import LLMResponse, Message, RunResult, ToolCall, ToolDurabilityError, Usage


def call(name: str, call_id: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def asks_for(*calls: ToolCall, text: str = "", tokens: int | None = None, output_tokens: int = 0) -> LLMResponse:
    usage = None if tokens is None else Usage(input_tokens=tokens, output_tokens=output_tokens)
    return LLMResponse(text=text, tool_calls=calls, usage=usage)


def says(text: str, tokens: int | None = None, output_tokens: int = 0) -> LLMResponse:
    return asks_for(text=text, tokens=tokens, output_tokens=output_tokens)


def calls(*ids: str, tool: str = "post") -> dict[str, Any]:
    return {"tool_calls": [{"id": call_id, "name": tool, "arguments": {"text": call_id}} for call_id in ids]}


def asks(*ids: str, tool: str = "post") -> Message:
    return Message.model_validate({"role": "assistant", **calls(*ids, tool=tool)})


USER = Message(role="user", content="hi")
DURABILITY = ToolDurabilityError.kind


def shape(messages: Sequence[Message]) -> list[str]:
    """Return a transcript in short: "user hi", "calls c1 c2", "result c1", "assistant done"."""
    lines = []
    for message in messages:
        if message.role == "tool":
            lines.append(f"result {message.tool_call_id}")
        elif message.tool_calls:
            lines.append(" ".join(["calls", *(call.id for call in message.tool_calls)]))
        else:
            lines.append(f"{message.role} {message.content}")
    return lines


def result_of(messages: Sequence[Message], call_id: str) -> str:
    (content,) = [message.content for message in messages if message.tool_call_id == call_id]
    return content


def kind_of(messages: Sequence[Message], call_id: str) -> str | None:
    """Return the `kind` of a result that is an error object, or None for any other."""
    try:
        kind: str | None = json.loads(result_of(messages, call_id)).get("kind")
    except ValueError:
        return None
    return kind


def tool_results(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "tool"]


def error_of(message: Message) -> str:
    return str(json.loads(message.content)["error"])


def results(result: RunResult) -> list[Message]:
    return tool_results(result.messages)


def contents(result: RunResult) -> list[str]:
    return [message.content for message in results(result)]


def error(result: RunResult, position: int = 0) -> str:
    return error_of(results(result)[position])


def tool_contents(messages: Any) -> list[tuple[str | None, str]]:
    return [(message.tool_call_id, message.content) for message in messages if message.role == "tool"]


def without_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages as an in-process run has them, which gets none from elsewhere."""
    return [message.model_copy(update={"id": None}) for message in messages]
