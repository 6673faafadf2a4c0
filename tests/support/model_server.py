"""Short builders for the exact answers of a server with OpenAI's format."""

from collections.abc import Iterable, Mapping
from typing import Any

from standfast.testing.model_server import ModelServer, Reply

__all__ = ["ModelServer", "Reply", "calls", "fragments", "says", "streams"]


def says(content: str | None, *calls: Mapping[str, Any], usage: Any = None, finish: str = "stop", **more: Any) -> Reply:
    """Return a whole answer in OpenAI's format."""
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}
    body = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return Reply({**body, **({"usage": usage} if usage else {})})


def calls(name: str, arguments: Any, call_id: str | None = "c1", **more: Any) -> dict[str, Any]:
    """Return a tool call in OpenAI's format, or a piece of one with `index=`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def streams(*deltas: Mapping[str, Any] | str, finish: str | None = "stop", usage: Any = None, **options: Any) -> Reply:
    """Return a streamed answer in OpenAI's format: each delta is an event, a text a delta of content."""
    said = [{"content": delta} if isinstance(delta, str) else delta for delta in deltas]
    events: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in said]
    if finish:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage:
        events.append({"choices": [], "usage": usage})
    return Reply([*events, b"[DONE]"], **options)


def fragments(*pieces: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Return a delta for each piece of a tool call."""
    return ({"tool_calls": [piece]} for piece in pieces)
