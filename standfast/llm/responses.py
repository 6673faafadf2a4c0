"""OpenAI's Responses format: writes requests and reads answers. Nothing here does I/O."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from standfast.errors import InputError
from standfast.llm.chat_completions import sendable_arguments, sendable_id
from standfast.llm.protocol import ToolDescription
from standfast.llm.reasoning import Part, details, details_in, hosted_call, parts_of, reasoning_of
from standfast.messages import Citation, HostedCall, JSONObject, LLMResponse, Message, ToolCall
from standfast.tools import HostedTool

PROVIDER = "openai"
_ENCRYPTED = "reasoning.encrypted_content"
# The provider omits these results from its answer unless the request includes them; the next request needs them.
_RESULTS = {"code_execution": "code_interpreter_call.outputs", "file_search": "file_search_call.results"}


def request(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    *,
    output: JSONObject | None,
    thoughts: bool,
    hosted: Sequence[HostedTool] = (),
) -> JSONObject:
    """Return a request's body, which omits absent values.

    The provider keeps nothing (`store`): we keep the transcript and send it with every request, with encrypted
    thoughts.

    Args:
        settings: used unchanged, except `tool_choice` and `max_tokens`, which every provider writes differently.
        output: the format that the answer must match.
        thoughts: send back the provider's earlier thoughts, and ask for more; a model without thoughts refuses both.
    """
    given = dict(settings)
    choice = given.pop("tool_choice", None)
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    body: JSONObject = {
        "model": model,
        "input": [item for message in messages for item in _items(message)],
        "store": False,
        "include": [_ENCRYPTED],
    }
    if not thoughts:
        body = _without_thoughts(body)
    if results := [_RESULTS[tool.name] for tool in hosted if tool.name in _RESULTS]:
        body["include"] = [*body.get("include", ()), *results]
    if system:
        body["instructions"] = system
    if tools or hosted:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.input_schema),
                "strict": False,
            }
            for tool in tools
        ] + [tool.declared(PROVIDER) for tool in hosted]
        if choice is not None:
            body["tool_choice"] = _choice(choice)
    if output is not None:
        body["text"] = {"format": output}
    return {**body, **given}


def without_thoughts(request: Mapping[str, Any]) -> JSONObject:
    """Return the arguments of a request for a model without thoughts."""
    body = {**request["extra_body"], "input": request["input"]}
    plain = _without_thoughts(body)
    return {**request, "input": plain.pop("input"), "extra_body": plain}


def _without_thoughts(body: Mapping[str, Any]) -> JSONObject:
    plain = {name: value for name, value in body.items() if name != "include"}
    if others := [one for one in body.get("include", ()) if one != _ENCRYPTED]:
        plain["include"] = others
    return {**plain, "input": [item for item in body["input"] if item.get("type") != "reasoning"]}


def _choice(choice: Any) -> Any:
    match choice:
        case {"name": str(name)} if "type" not in choice:
            return {"type": "function", "name": name}
        case _:
            return choice


def _items(message: Message) -> Iterator[JSONObject]:
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


def _answer_parts(message: Message) -> Iterator[JSONObject]:
    of_text: JSONObject = {}
    of_call: JSONObject = {}
    for kind, part in parts_of(message, PROVIDER):
        match kind:
            case "thought" if "with" in part:
                of_text = details_in(part, "text") or of_text
                of_call = details_in(part, "call") or of_call
            case "thought" if part.get("type") == "reasoning" and not part.get("encrypted_content"):
                pass  # the provider keeps nothing, and so cannot find it again
            case "thought":
                yield part
            case "text" if part or not message.tool_calls:
                yield {**of_text, "role": "assistant", "content": part}
                of_text = {}
            case "call":
                call = (message.tool_calls or ())[part]
                arguments = json.dumps(sendable_arguments(call), ensure_ascii=False)
                call_id = sendable_id(call.id)
                own = {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": arguments}
                yield {**of_call, **own}
                of_call = {}


def response(body: Mapping[str, Any]) -> LLMResponse:
    """Return the content of an answer.

    Raises:
        InputError: it does not have this format.
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
        usage=usage_of(body.get("usage")),  # type: ignore[arg-type]  # read from a dict
        stop_reason="refusal" if refused else _why_incomplete(body),
        reasoning=reasoning_of(PROVIDER, list(_parts(items))),
        hosted=tuple(_hosted(items)) or None,
        citations=tuple(_citations(said)) or None,
    )


def _text(part: Mapping[str, Any]) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _parts(items: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    calls = 0
    for item in items:
        match item.get("type"):
            case "message":
                yield from details("text", item, ("id", "type", "role", "status", "content"))
                yield "text", "".join(_text(part) for part in item.get("content") or () if isinstance(part, dict))
            case "function_call":
                known = ("id", "type", "call_id", "name", "arguments", "status", "created_by")
                yield from details("call", item, known)
                yield "call", calls
                calls += 1
            case _:  # of a tool that the provider runs, or unknown; it goes back in its place
                yield "thought", item


_OF_OTHERS = ("reasoning", "message", "function_call", "compaction")


def _hosted(items: Sequence[Mapping[str, Any]]) -> Iterator[HostedCall]:
    """Yield the calls that the provider made itself; an incomplete one may have run."""
    for item in items:
        kind = str(item.get("type"))
        if not kind.endswith("_call") or kind in _OF_OTHERS:
            continue
        given = next((item[name] for name in ("action", "code", "queries", "arguments") if item.get(name)), None)
        match item.get("status"):
            case "completed" | None:
                yield hosted_call(kind.removesuffix("_call"), given, "ran")
            case "failed":
                yield hosted_call(kind.removesuffix("_call"), given, "failed", item.get("error"))
            case _:
                yield hosted_call(kind.removesuffix("_call"), given, "unknown")


def _citations(said: Sequence[Mapping[str, Any]]) -> Iterator[Citation]:
    seen = set()
    for part in said:
        for one in part.get("annotations") or ():
            if isinstance(one, Mapping):
                found = {"url": one.get("url"), "title": one.get("title") or one.get("filename")}
                citation = Citation(**{name: str(value) for name, value in found.items() if value})
                if citation not in seen:
                    seen.add(citation)
                    yield citation


def _why_incomplete(body: Mapping[str, Any]) -> str | None:
    details = body.get("incomplete_details")
    return details.get("reason") if isinstance(details, Mapping) else body.get("status")


def usage_of(usage: Any) -> JSONObject | None:
    """Return the usage that an answer reports; None if it reports none."""
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
