"""Requests that providers would refuse or misread are not sent; each documented rule has its request."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from integration.models.test_providers import ECHO, HI, adapter, ask, provider, served
from standfast import Agent, Image, LLMResponse, Message, ModelError, ToolCall, run
from standfast.llm import (
    ToolDescription,
    create_adapter,
)
from standfast.messages import Reasoning
from standfast.testing import Fault, ModelServer, Reply

__all__ = ["provider"]  # a fixture


def said(content: str = "", *calls: str, thought: Reasoning | None = None) -> Message:
    asked = tuple(ToolCall(id=call, name="echo", arguments={"text": call}) for call in calls) or None
    return Message(role="assistant", content=content, tool_calls=asked, reasoning=thought)


def done(call: str) -> Message:
    return Message(role="tool", content=call, tool_call_id=call, tool_name="echo", status="completed")


async def sent(name: str, messages: Sequence[Message] = HI, *, model: str = "m", **settings: Any) -> Any:
    async with ModelServer("ok") as server:
        base_url = f"http://{server.address}" if name == "anthropic" else server.url
        at = create_adapter(provider=name, model=model, api_key="key", base_url=base_url)
        await ask(at, "chat", messages, [ECHO], **settings)
    return server.requests[0].body


def message_of(answer: LLMResponse) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls or None, reasoning=answer.reasoning
    )


# --- ids ---


@pytest.mark.parametrize("call_id", ["fc.1|2", "call:1.2", "c" * 200, "ü"])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_an_id_of_another_provider_is_written_as_this_one_takes_it(name: str, call_id: str) -> None:
    body = json.dumps(await sent(name, [*HI, said("", call_id), done(call_id)]))
    ids = [part.split('"')[0] for part in body.replace('"tool_use_id": "', '"call_id": "').split('"call_id": "')[1:]]
    ids += [part.split('"')[0] for part in body.split('"type": "tool_use", "id": "')[1:]]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert len(ids[0]) <= 64
    assert ids[0].replace("_", "").replace("-", "").isalnum()
    assert ids[0].isascii()


# --- thoughts ---

RS = [{"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": "gAAA"} for n in (1, 2)]
TH = [{"type": "thinking", "thinking": f"Hm {n}.", "signature": "Eo8C"} for n in (1, 2)]


def output(*items: dict[str, Any]) -> Reply:
    body = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": list(items)}
    return Reply(json.dumps(body).encode(), headers={"Content-Type": "application/json"})


def function_call(call: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{call}", "call_id": call, "name": "echo", "arguments": "{}"}


def spoken(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def test_thoughts_go_back_to_where_they_stood_between_calls() -> None:
    first = output(RS[0], spoken("I"), function_call("c1"), RS[1], function_call("c2"))
    async with served("openai", first, "ok") as (server, at):
        answer, _ = await ask(at, "chat", tools=[ECHO])
        await ask(at, "chat", [*HI, message_of(answer), done("c1"), done("c2")], [ECHO])
    assert [call.id for call in answer.tool_calls] == ["c1", "c2"]
    body = server.requests[1].body
    kinds = [item.get("call_id") or item.get("id") or item["content"] for item in body["input"]]
    assert kinds == ["hi", "rs_1", "I", "c1", "rs_2", "c2", "c1", "c2"]


async def test_thoughts_go_back_to_where_they_stood_between_words() -> None:
    blocks = [
        {"type": "text", "text": "A"}, TH[0], {"type": "text", "text": "B"}, TH[1],
        {"type": "tool_use", "id": "c1", "name": "echo", "input": {}},
    ]  # fmt: skip
    start = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    events: list[Any] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    stream = [(event["type"], event) for event in events]
    first = Reply(stream, headers={"Content-Type": "text/event-stream"})
    async with served("anthropic", first, "ok") as (server, at):
        answer, _ = await ask(at, "chat", tools=[ECHO])
        await ask(at, "chat", [*HI, message_of(answer), done("c1")], [ECHO])
    assert (answer.text, [call.id for call in answer.tool_calls]) == ("AB", ["c1"])
    sent_back = server.requests[1].body["messages"][1]["content"]
    assert [block.get("text") or block.get("thinking") or block["id"] for block in sent_back] == [
        "A", "Hm 1.", "B", "Hm 2.", "c1",
    ]  # fmt: skip


@pytest.mark.parametrize("changed", ["A", "ABC"], ids=["cut", "longer"])
async def test_words_that_are_not_those_that_were_said_leave_the_thoughts_before_them(changed: str) -> None:
    markers = ({"standfast": "text", "length": 1}, TH[0], {"standfast": "text", "length": 1}, {"standfast": "call"})
    thought = Reasoning(provider="anthropic", blocks=markers)
    body = await sent("anthropic", [*HI, said(changed, "c1", thought=thought), done("c1")])
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text", "tool_use"]


async def test_thoughts_that_were_cut_off_or_end_an_answer_are_not_sent() -> None:
    """Without a signature they are refused; at the end of a message of the model's as well."""
    cut = Reasoning(provider="anthropic", blocks=({"type": "thinking", "thinking": "Hm", "signature": ""},))
    body = await sent("anthropic", [*HI, said("", thought=cut), *HI])
    assert [message["role"] for message in body["messages"]] == ["user", "user"]
    whole = Reasoning(provider="anthropic", blocks=(TH[0],))
    body = await sent("anthropic", [*HI, said("", thought=whole), *HI])
    assert [message["role"] for message in body["messages"]] == ["user", "user"]


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "gpt-3.5-turbo", "ft:gpt-4o:x:y:z"])
async def test_a_model_of_openai_that_does_not_think_is_not_asked_for_thoughts(model: str) -> None:
    thought = Reasoning(provider="openai", blocks=(RS[0],))
    body = await sent("openai", [*HI, said("yes", thought=thought), *HI], model=model)
    assert "include" not in body
    assert "reasoning" not in json.dumps(body["input"])


async def test_a_model_of_openai_that_turns_out_not_to_think_is_asked_again_and_then_never_more() -> None:
    no = Fault(400, words="Encrypted content is not supported with this model.")
    thought = Reasoning(provider="openai", blocks=(RS[0],))
    async with served("openai", no, "one", "two") as (server, at):
        for way, text in (("chat", "one"), ("stream", "two")):
            answer, _ = await ask(at, way, [*HI, said("yes", thought=thought), *HI])
            assert answer.text == text
    assert ["include" in request.body for request in server.requests] == [True, False, False]
    assert "reasoning" not in json.dumps(server.requests[1].body["input"])


async def test_thoughts_that_cannot_be_read_are_left_out_of_that_request_alone() -> None:
    no = Fault(400, words="The encrypted content gAAA could not be verified.")
    thought = Reasoning(provider="openai", blocks=(RS[0],))
    async with served("openai", no, "one", "two") as (server, at):
        for text in ("one", "two"):
            answer, _ = await ask(at, "chat", [*HI, said("yes", thought=thought), *HI])
            assert answer.text == text
    assert ["include" in request.body for request in server.requests] == [True, False, True]


MARKS: list[Any] = [
    {"standfast": "text", "length": "x"}, {"standfast": "text"}, {"standfast": "text", "length": -1},
    {"standfast": "text", "length": 2.5}, {"standfast": {}}, {"standfast": "nope", "length": 5}, {"nothing": 1},
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS, ids=str)
@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_marks_that_are_none_of_ours_do_no_harm(name: str, mark: Any) -> None:
    """A transcript that someone brings may have anything."""
    thought = Reasoning(provider=name, blocks=(mark, {"standfast": "text", "length": 5}))
    body = json.dumps(await sent(name, [*HI, said("hello", "c1", thought=thought), done("c1")]))
    assert "hello" in body
    assert "standfast" not in body


async def test_another_refusal_is_not_asked_again() -> None:
    async with served("openai", Fault(400, words="bad request"), "never") as (server, at):
        with pytest.raises(ModelError, match="bad request"):
            await ask(at, "chat")
    assert len(server.requests) == 1


async def test_thinking_has_room_beside_the_answer() -> None:
    thinking = {"type": "enabled", "budget_tokens": 10_000}
    assert (await sent("anthropic", thinking=thinking))["max_tokens"] == 18_192
    assert (await sent("anthropic", thinking=thinking, max_tokens=12_000))["max_tokens"] == 12_000


# --- words ---


async def test_blank_words_are_not_sent_where_they_are_refused() -> None:
    messages = [Message(role="user", content=" "), said("\n\n", "c1"), done("c1"), said(" "), *HI]
    body = await sent("anthropic", messages)
    assert body["messages"][0]["content"] == "(nothing)"
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "user"]


async def test_images_are_sent_in_json_tool_mode_too(provider: str) -> None:
    picture = Image(data=b"\x89PNG", media_type="image/png")
    async with served(provider, '{"answer": "a cat"}', tool_mode="json") as (server, at):
        answer, _ = await ask(at, "chat", [Message(role="user", content="What?", images=(picture,))], [ECHO])
    assert answer.text == "a cat"
    assert picture.data in json.dumps(server.requests[0].body)


# --- settings ---


async def test_settings_under_the_name_of_a_provider_are_for_its_models_alone(provider: str) -> None:
    settings = {
        "temperature": 0,
        **{name: {"max_tokens": 100 + n} for n, name in enumerate(["openai", "anthropic", "cloudflare", "minimax"])},
        "openai-compatible": {"max_tokens": 104},
    }
    async with ModelServer("ok") as server:
        await run(Agent("a", settings=settings), message="hi", llm=adapter(provider, server))
    body = server.requests[0].body
    place = "max_output_tokens" if provider == "openai" else "max_tokens"
    assert body[place] == settings[provider]["max_tokens"]  # type: ignore[index]
    assert body["temperature"] == 0
    assert not body.keys() & {"openai", "anthropic", "cloudflare", "minimax", "openai-compatible"}


# --- schemas ---


class Fields(BaseModel):
    name: str
    size: int = 3


class Open(BaseModel):
    counts: dict[str, int]


def _format(name: str, body: Any) -> Any:
    return (
        (body.get("text") or {}).get("format") if name == "openai" else (body.get("output_config") or {}).get("format")
    )


async def asked_for(name: str, output: Any, text: str) -> Any:
    async with ModelServer(text) as server:
        ended: Any = await run(Agent("a", output=output), message="hi", llm=adapter(name, server))
        assert ended.status == "complete", ended.error
    return _format(name, server.requests[0].body)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_an_output_of_known_fields_is_held_by_the_provider(name: str) -> None:
    form = await asked_for(name, Fields, '{"name": "a", "size": 1}')
    assert form["type"] == "json_schema"
    assert form["schema"]["required"] == ["name", "size"]
    assert form["schema"]["additionalProperties"] is False
    assert form.get("strict") is (True if name == "openai" else None)


async def test_an_output_of_any_keys_is_not_held_to_none() -> None:
    """Closed, as Anthropic wants schemas, it could only be empty; OpenAI is told the schema, and not bound to it."""
    assert await asked_for("anthropic", Open, '{"counts": {"a": 1}}') is None
    form = await asked_for("openai", Open, '{"counts": {"a": 1}}')
    assert form["strict"] is False
    assert form["schema"]["properties"]["counts"]["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_an_output_that_is_not_an_object_is_left_to_the_prompt(name: str) -> None:
    assert await asked_for(name, list[int], "[1, 2]") is None


async def test_arguments_of_any_keys_are_not_held_to_none_in_json_tool_mode() -> None:
    free = ToolDescription(
        name="free", description="Take anything.", input_schema={"type": "object", "additionalProperties": True}
    )
    async with served("anthropic", '{"answer": "a"}', tool_mode="json") as (server, at):
        await ask(at, "chat", tools=[free])
    assert _format("anthropic", server.requests[0].body) is None


async def test_a_tool_with_alternatives_at_the_top_of_its_schema_is_told_to_anthropic_without_them() -> None:
    either = ToolDescription(
        name="either",
        description="One of both.",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    )
    async with served("anthropic", "ok") as (server, at):
        await ask(at, "chat", tools=[either])
    (told,) = server.requests[0].body["tools"]
    assert told["input_schema"] == {key: part for key, part in either.input_schema.items() if key != "oneOf"}


# --- limits that do not pass ---


async def test_a_spent_account_is_not_asked_again(provider: str) -> None:
    body = {"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": None}}
    async with served(provider, Reply(json.dumps(body).encode(), 429, {"Retry-After": "1"})) as (_, at):
        with pytest.raises(ModelError, match=r"status 429 \(the account has no credit left") as raised:
            await ask(at, "chat")
    assert not raised.value.transient


async def test_two_calls_without_ids_and_indexes_of_their_own_are_two() -> None:
    def piece(name: str | None, arguments: str) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": name} if name else {})}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]}

    pieces = [piece("echo", '{"text":'), piece(None, ' "a"}'), piece("echo", '{"text": "b"}')]
    stream = [*pieces, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, "[DONE]"]
    async with served("openai-compatible", Reply(stream, headers={"Content-Type": "text/event-stream"})) as (_, at):
        answer, _ = await ask(at, "stream", tools=[ECHO])
    assert [call.arguments for call in answer.tool_calls] == [{"text": "a"}, {"text": "b"}]


async def test_an_answer_of_anthropic_is_never_silent(provider: str) -> None:
    """Streamed always, so that a long answer, which was paid for, is not lost to a timeout."""
    async with served(provider, LLMResponse(text="hello")) as (server, at):
        await ask(at, "chat")
    assert bool(server.requests[0].body.get("stream")) is (provider == "anthropic")
