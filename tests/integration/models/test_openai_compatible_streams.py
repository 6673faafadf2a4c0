"""Streams of OpenAI's Chat Completions: pieces of text, calls in fragments, and broken streams."""

import contextlib
from typing import Any

import pytest
from support.model_server import ModelServer, Reply, calls, fragments, says, streams

from standfast import Agent, LLMResponse, Message, ModelError, ToolCall, Usage, run_streaming
from standfast.events import RunEnded, TextDelta
from standfast.llm import StreamingLLMAdapter
from standfast.llm.openai_compatible import OpenAICompatible

HI = [Message(role="user", content="hi")]


async def parts_of(reply: Reply, **settings: Any) -> list[Any]:
    async with ModelServer(reply) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        assert isinstance(model, StreamingLLMAdapter)
        return [part async for part in model.stream(HI, [], **settings)]


async def tool_calls_of(*pieces: dict[str, Any]) -> list[tuple[str, str, Any]]:
    *_, whole = await parts_of(streams(*fragments(*pieces), finish="tool_calls"))
    return [(call.id, call.name, call.arguments) for call in whole.tool_calls]


async def test_a_stream_yields_its_text_and_at_last_the_whole_answer() -> None:
    reply = streams(
        {"role": "assistant", "content": ""}, "Hel", "lo", usage={"prompt_tokens": 3, "completion_tokens": 2}
    )
    whole = LLMResponse(text="Hello", usage=Usage(input_tokens=3, output_tokens=2), stop_reason="stop")
    assert await parts_of(reply) == ["Hel", "lo", whole]


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_a_stream_is_asked_for_its_usage_unless_a_setting_says_otherwise(options: Any) -> None:
    async with ModelServer(streams("ok"), streams("ok")) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        _ = [part async for part in model.stream(HI, [])]
        _ = [part async for part in model.stream(HI, [], stream_options=options)]
    assert [request.body["stream"] for request in server.requests] == [True, True]
    assert [request.body["stream_options"] for request in server.requests] == [{"include_usage": True}, options]


async def test_a_call_comes_in_fragments() -> None:
    assert await tool_calls_of(
        calls("echo", "", "c1", index=0),
        {"index": 0, "function": {"arguments": '{"text"'}},
        {"index": 0},
        {"index": 0, "function": {"arguments": ': "x"}'}},
        calls("fail", "{}", "c2", index=1),
    ) == [("c1", "echo", {"text": "x"}), ("c2", "fail", {})]


async def test_fragments_of_two_calls_may_alternate() -> None:
    assert await tool_calls_of(
        calls("echo", "", "c1", index=0),
        calls("fail", "", "c2", index=1),
        {"index": 0, "function": {"arguments": '{"text": "x"}'}},
        {"index": 1, "function": {"arguments": '{"text": "y"}'}},
    ) == [("c1", "echo", {"text": "x"}), ("c2", "fail", {"text": "y"})]


@pytest.mark.parametrize("index", [0, None], ids=["always 0", "none"])
async def test_a_server_that_does_not_count_its_calls_is_understood_by_their_ids(index: int | None) -> None:
    assert await tool_calls_of(
        calls("echo", '{"text": "x"}', "c1", index=index), calls("echo", '{"text": "y"}', "c2", index=index)
    ) == [("c1", "echo", {"text": "x"}), ("c2", "echo", {"text": "y"})]


async def test_a_server_that_repeats_id_and_name_with_every_fragment_is_understood() -> None:
    assert await tool_calls_of(
        calls("echo", '{"text": ', "c1", index=0), calls("echo", '"x"}', "c1", index=0)
    ) == [("c1", "echo", {"text": "x"})]  # fmt: skip


async def test_a_line_break_of_unicode_inside_a_piece_does_not_split_it() -> None:
    assert (await parts_of(streams("a\u2028b\x85c")))[0] == "a\u2028b\x85c"


async def test_comments_empty_events_and_carriage_returns_are_passed_over() -> None:
    lines = [
        b": waiting",
        b"",
        b"event: x",
        b"data:",
        b'data:{"choices":[{"delta":{"content":"ok"}}]}',
        b"data: [DONE]",
    ]
    assert await parts_of(Reply(b"\r\n".join(lines))) == ["ok", LLMResponse(text="ok")]


async def test_a_stream_may_end_without_saying_so_if_its_answer_has() -> None:
    body = b'data: {"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]}'
    assert await parts_of(Reply(body)) == ["ok", LLMResponse(text="ok", stop_reason="stop")]


BEGUN = b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n'


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(BEGUN, end="cut"), "gave no answer: RemoteProtocolError"),
        (Reply(BEGUN, end="closed"), "gave no answer: the stream ended before the answer was complete"),
        (Reply(BEGUN + b'data: {"cho', end="closed"), "gave no answer: its answer is not JSON"),
        (Reply(BEGUN + b'data: {"error": {"message": "gone"}}\n\n'), "answered with an error: gone"),
    ],
    ids=["cut", "cut without notice", "cut in a piece", "an error"],
)
async def test_a_stream_that_breaks_off_is_an_error_that_passes(reply: Reply, text: str) -> None:
    async with ModelServer(reply) as server:
        parts = OpenAICompatible(model="m", base_url=server.url).stream(HI, [])
        assert await anext(parts) == "Hel"
        with pytest.raises(ModelError, match=text) as caught:
            await anext(parts)
    assert caught.value.transient


async def test_what_breaks_after_the_end_of_a_stream_does_not_matter() -> None:
    assert (await parts_of(streams("ok", end="cut")))[-1] == LLMResponse(text="ok", stop_reason="stop")


async def test_a_stream_that_is_refused_says_why() -> None:
    with pytest.raises(ModelError, match="status 429: Slow down") as caught:
        await parts_of(Reply({"error": {"message": "Slow down"}}, 429, {"Retry-After": "3"}))
    assert (caught.value.transient, caught.value.retry_after) == (True, 3)


async def test_a_server_that_does_not_stream_is_reported() -> None:
    with pytest.raises(ModelError, match="the stream ended before the answer was complete"):
        await parts_of(says("ok"))


async def test_a_reader_may_leave_a_stream_early() -> None:
    async with ModelServer(streams("Hel", "lo")) as server:
        parts: Any = OpenAICompatible(model="m", base_url=server.url).stream(HI, [])
        async with contextlib.aclosing(parts):
            assert await anext(parts) == "Hel"


async def test_a_run_shows_the_pieces() -> None:
    async with ModelServer(streams("Roses ", "are red")) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        events = [event async for event in run_streaming(Agent("poet"), message="Hi", llm=model)]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Roses ", "are red"]
    assert isinstance(events[-1], RunEnded)


async def test_ids_of_a_stream_may_be_missing() -> None:
    *_, whole = await parts_of(streams(*fragments(calls("echo", "{}", None, index=0))))
    assert whole.tool_calls == (ToolCall(name="echo"),)
