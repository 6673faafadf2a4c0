"""Writes answers as the providers do: complete, or as the events of a stream, with one function per format."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from standfast.messages import JSONObject, LLMResponse, Usage

Event = tuple[str | None, Any]  # its name, and its data


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def _ids(answer: LLMResponse) -> list[JSONObject]:
    """Return the calls with ids, in every provider's style."""
    return [
        {"id": call.id or f"call_{number}", "name": call.name, "arguments": call.arguments}
        for number, call in enumerate(answer.tool_calls)
    ]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


# --- Chat Completions ---------------------------------------------------------------------------------------------


def chat_completion(answer: LLMResponse, model: str) -> JSONObject:
    message: JSONObject = {"role": "assistant", "content": answer.text or None}
    if answer.tool_calls:
        message["tool_calls"] = [_function(call) for call in _ids(answer)]
    stop = answer.stop_reason or ("tool_calls" if answer.tool_calls else "stop")
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": stop}],
    }
    return body if answer.usage is None else {**body, "usage": _completion_usage(answer.usage)}


def chat_completion_events(answer: LLMResponse, model: str) -> Iterator[Event]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": model}

    def event(delta: JSONObject, stop: str | None = None) -> Event:
        return None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}

    for piece in _pieces(answer.text):
        yield event({"content": piece})
    for index, call in enumerate(_ids(answer)):
        yield event({"tool_calls": [{**_function(call), "index": index}]})
    yield event({}, answer.stop_reason or ("tool_calls" if answer.tool_calls else "stop"))
    if answer.usage is not None:
        yield None, {**head, "choices": [], "usage": _completion_usage(answer.usage)}
    yield None, "[DONE]"


def _function(call: Mapping[str, Any]) -> JSONObject:
    function = {"name": call["name"], "arguments": _text(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}


def _completion_usage(usage: Usage) -> JSONObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


# --- Responses ----------------------------------------------------------------------------------------------------


def response(answer: LLMResponse, model: str) -> JSONObject:
    whole = answer.stop_reason in (None, "completed", "refusal")
    usage = answer.usage or Usage()
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": model,
        "status": "completed" if whole else "incomplete",
        "incomplete_details": None if whole else {"reason": answer.stop_reason},
        "error": None,
        "output": [*_reasoning_items(answer), *_items(answer)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None
        if answer.usage is None
        else {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens or 0,
                "cache_write_tokens": usage.cache_write_tokens or 0,
            },
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        },
    }


def _reasoning_items(answer: LLMResponse) -> list[JSONObject]:
    return [] if answer.reasoning is None else list(answer.reasoning.blocks)


def _items(answer: LLMResponse) -> Iterator[JSONObject]:
    if answer.text:
        part: JSONObject = {"type": "output_text", "text": answer.text, "annotations": []}
        if answer.stop_reason == "refusal":
            part = {"type": "refusal", "refusal": answer.text}
        yield {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    for call in _ids(answer):
        yield {
            "type": "function_call",
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "name": call["name"],
            "arguments": _text(call["arguments"]),
            "status": "completed",
        }


def response_events(answer: LLMResponse, model: str) -> Iterator[Event]:
    whole, number = response(answer, model), 0
    events: list[JSONObject] = [{"type": "response.created", "response": {**whole, "output": []}}]
    kind = "response.refusal.delta" if answer.stop_reason == "refusal" else "response.output_text.delta"
    events += [
        {"type": kind, "delta": piece, "item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
        for piece in _pieces(answer.text)
    ]
    for index, item in enumerate(whole["output"]):
        if item["type"] == "function_call":
            at = {"output_index": index, "item_id": item["id"]}
            empty = {**item, "arguments": "", "status": "in_progress"}
            events += [
                {"type": "response.output_item.added", "output_index": index, "item": empty},
                {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
                {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]},
                {"type": "response.output_item.done", "output_index": index, "item": item},
            ]
    ends = "response.completed" if whole["status"] == "completed" else "response.incomplete"
    for number, event in enumerate([*events, {"type": ends, "response": whole}]):
        yield event["type"], {**event, "sequence_number": number}


# --- Messages -----------------------------------------------------------------------------------------------------


def message(answer: LLMResponse, model: str) -> JSONObject:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(_blocks(answer)),
        "stop_reason": answer.stop_reason or ("tool_use" if answer.tool_calls else "end_turn"),
        "stop_sequence": None,
        "usage": _message_usage(answer.usage or Usage()),
    }


def _blocks(answer: LLMResponse) -> Iterator[JSONObject]:
    if answer.reasoning is not None:
        yield from answer.reasoning.blocks
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for call in _ids(answer):
        yield {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}


def _message_usage(usage: Usage) -> JSONObject:
    read, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    return {
        "input_tokens": usage.input_tokens - read - written,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }


def message_events(answer: LLMResponse, model: str) -> Iterator[Event]:
    whole = message(answer, model)
    opening = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": opening}
    for index, block in enumerate(whole["content"]):
        for event in _block_events(index, block):
            yield event["type"], event
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    ended = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": whole["usage"]["output_tokens"]}}
    yield "message_delta", ended
    yield "message_stop", {"type": "message_stop"}


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[JSONObject]:
    empty: JSONObject = dict(block)
    deltas: list[JSONObject] = []
    match block["type"]:
        case "text":
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        case "tool_use":
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": _text(block["input"])}]
        case "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


Whole = Callable[[LLMResponse, str], JSONObject]
Streamed = Callable[[LLMResponse, str], Iterator[Event]]

FORMATS: Mapping[str, tuple[Whole, Streamed]] = {
    "/chat/completions": (chat_completion, chat_completion_events),
    "/responses": (response, response_events),
    "/messages": (message, message_events),
}
"""By the end of a request's path."""


def error(path: str, status: int, words: str) -> JSONObject:
    """Return the body of an error, in the format of a path's provider."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    kind = kinds.get(status, "api_error")
    if path.endswith("/messages"):
        return {"type": "error", "error": {"type": kind, "message": words}}
    if "/client/v4/accounts/" in path:  # Cloudflare's own envelope
        return {"success": False, "errors": [{"code": 7000 + status, "message": words}], "result": None}
    return {"error": {"message": words, "type": kind, "param": None, "code": None}}
