"""Models behind OpenAI's Chat Completions: the requests, and the reading of every possible answer."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from support.doubles import echo
from support.model_server import ModelServer, Reply, calls, says

from standfast import Agent, LLMResponse, Message, ModelError, ToolCall, Usage, assert_complete, run
from standfast.llm import ToolDescription
from standfast.llm.openai_compatible import OpenAICompatible

HI = [Message(role="user", content="hi")]
ECHO = ToolDescription(
    name="echo",
    description="Return the text.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


async def answer(
    reply: Reply, messages: Sequence[Message] = HI, tools: Sequence[ToolDescription] = (), **settings: Any
) -> LLMResponse:
    async with ModelServer(reply) as server:
        return await OpenAICompatible(model="m", base_url=server.url).chat(messages, tools, **settings)


async def sent(
    messages: Sequence[Message] = HI, tools: Sequence[ToolDescription] = (), key: str | None = None, **settings: Any
) -> Any:
    async with ModelServer(says("ok")) as server:
        await OpenAICompatible(model="m", base_url=server.url, api_key=key).chat(messages, tools, **settings)
    return server.requests[0]


async def error(reply: Reply, **options: Any) -> ModelError:
    async with ModelServer(reply) as server:
        with pytest.raises(ModelError) as caught:
            await OpenAICompatible(model="m", base_url=server.url, **options).chat(HI, [])
        assert str(caught.value).startswith(f"Model 'm' at {server.address} ")
    assert len(server.requests) == 1
    return caught.value


# --- requests -----------------------------------------------------------------------------------------------------


async def test_a_request_has_the_model_the_conversation_and_the_settings_and_no_tools_without_any() -> None:
    request = await sent([Message(role="system", content="Be brief."), *HI], temperature=0, max_tokens=5)
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "temperature": 0,
        "max_tokens": 5,
    }
    assert "authorization" not in request.headers


async def test_a_key_is_sent_as_a_bearer_token_without_the_line_break_of_its_file() -> None:
    assert (await sent(key="sk-1\n")).headers["authorization"] == "Bearer sk-1"


async def test_a_key_for_another_server_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert "authorization" not in (await sent()).headers


async def test_tools_are_sent_as_functions() -> None:
    function = {"name": "echo", "description": "Return the text.", "parameters": ECHO.input_schema}
    assert (await sent(tools=[ECHO])).body["tools"] == [{"type": "function", "function": function}]


async def test_calls_and_results_are_sent_with_ids_and_json_text() -> None:
    call = ToolCall(id="c1", name="echo", arguments={"text": "ö"})
    request = await sent(
        [
            Message(role="system", content="One."),
            Message(role="system", content="Two."),
            Message(role="system", content=""),
            *HI,
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="ö", tool_call_id="c1", tool_name="echo", status="completed"),
            Message(role="assistant", content="Again.", tool_calls=(call,)),
        ]
    )
    sent_call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "ö"}'}}
    assert request.body["messages"] == [
        {"role": "system", "content": "One."},
        {"role": "system", "content": "Two."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [sent_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ö"},
        {"role": "assistant", "content": "Again.", "tool_calls": [sent_call]},
    ]


async def test_malformed_arguments_go_back_as_an_object_since_servers_read_them() -> None:
    call = ToolCall(id="c1", name="echo", arguments='{"text": ')
    request = await sent([Message(role="assistant", tool_calls=(call,))])
    assert request.body["messages"][0]["tool_calls"][0]["function"]["arguments"] == r'{"malformed": "{\"text\": "}'


async def test_a_setting_goes_into_the_request_as_it_is_even_the_models_name() -> None:
    body = (await sent(tools=[ECHO], tool_choice="required", model="other")).body
    assert (body["tool_choice"], body["model"]) == ("required", "other")


# --- answers ------------------------------------------------------------------------------------------------------


async def test_an_answer_has_text_usage_and_why_it_stopped() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert await answer(says("hello", usage=usage, finish="length")) == LLMResponse(
        text="hello", usage=Usage(input_tokens=3, output_tokens=2), stop_reason="length"
    )


async def test_calls_are_read_with_their_ids_and_arguments() -> None:
    reply = says(None, calls("echo", '{"text": "x"}'), calls("echo", "", None), finish="tool_calls")
    assert await answer(reply) == LLMResponse(
        tool_calls=(ToolCall(id="c1", name="echo", arguments={"text": "x"}), ToolCall(name="echo")),
        stop_reason="tool_calls",
    )


@pytest.mark.parametrize("arguments", ['{"text": ', "[1]", '{"text": NaN}'])
async def test_malformed_arguments_are_kept_as_text(arguments: str) -> None:
    assert (await answer(says("", calls("echo", arguments)))).tool_calls[0].arguments == arguments


async def test_arguments_may_come_as_an_object() -> None:
    assert (await answer(says("", calls("echo", {"text": "x"})))).tool_calls[0].arguments == {"text": "x"}


async def test_a_call_without_a_type_is_a_function_and_any_other_type_is_the_providers_own() -> None:
    hosted = {"id": "c2", "type": "web_search", "function": {"name": "echo", "arguments": "{}"}}
    custom = {"id": "c3", "type": "custom", "custom": {"name": "echo", "input": "x"}}
    response = await answer(says(None, calls("echo", "{}", type=None), hosted, custom))
    assert [call.id for call in response.tool_calls] == ["c1"]


@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": []}, {"choices": [{}]}, {"error": None}])
async def test_an_answer_without_choices_is_one_without_text(body: Any) -> None:
    assert await answer(Reply(body)) == LLMResponse()


async def test_a_refusal_of_the_model_is_its_text() -> None:
    assert (await answer(says(None, refusal="I may not."))).text == "I may not."


async def test_half_an_emoji_does_not_make_an_answer_unreadable() -> None:
    reply = Reply(rb'{"choices": [{"message": {"content": "a\ud83d"}}]}')
    result = assert_complete(await run(Agent("a"), message="hi", llm=Scripted(await answer(reply))))
    assert result.response == "a\ufffd"


class Scripted:
    def __init__(self, response: LLMResponse) -> None:
        self._response = response

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> LLMResponse:
        return self._response


@pytest.mark.parametrize("usage", [{"prompt_tokens": 3}, {"prompt_tokens": None, "completion_tokens": 2}])
async def test_usage_needs_both_counts(usage: Any) -> None:
    assert (await answer(says("ok", usage=usage))).usage is None


async def test_an_agent_calls_its_tool_and_answers() -> None:
    script = [says(None, calls("echo", '{"text": "ping"}'), finish="tool_calls"), says("It said ping.")]
    async with ModelServer(*script) as server:
        model = OpenAICompatible(model="m", base_url=server.url)
        result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=model))
    assert (result.status, result.response) == ("complete", "It said ping.")
    assert server.requests[1].body["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "ping"}


# --- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_fault_that_passes_is_transient_and_not_tried_again_here(status: int) -> None:
    refused = await error(Reply({"error": {"message": "Overloaded"}}, status))
    assert refused.transient
    assert str(refused).endswith(f" answered with status {status}: Overloaded")


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (301, "check base_url: the server sends its callers elsewhere"),
        (401, "check the API key"),
        (403, "the key may not use this model, or not from here"),
        (404, "check model and base_url"),
        (413, "show the model less, for example with Loop(context_compression=...), or take one with a larger context"),
    ],
)
async def test_a_refusal_that_stays_says_what_to_do(status: int, advice: str) -> None:
    refused = await error(Reply({"error": {"message": "No."}}, status))
    assert not refused.transient
    assert str(refused).endswith(f" answered with status {status} ({advice}): No.")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "This model's maximum context length is 8192 tokens."),
        (400, "request (6022 tokens) exceeds the available context size (4096 tokens)"),
        (500, "the request exceeds the available context size"),
        (400, "prompt is too long: 210000 tokens"),
    ],
)
async def test_a_conversation_too_long_for_the_model_stays_so_whatever_the_status(status: int, text: str) -> None:
    refused = await error(Reply({"error": {"message": text}}, status))
    assert not refused.transient
    assert "Loop(context_compression=...)" in str(refused)


async def test_a_limit_of_tokens_per_minute_passes() -> None:
    assert (await error(Reply({"error": {"message": "Context window tokens per minute"}}, 429))).transient


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": "model not loaded"}, '{"error": "model not loaded"}'),
        ({"detail": "Not here"}, '{"detail": "Not here"}'),
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (b"", "no text"),
        (b"x" * 1_000, "x" * 600 + "\n[cut: 600 of 1,000 bytes]"),
    ],
    ids=["text", "another form", "HTML", "nothing", "long"],
)
async def test_the_servers_own_words_are_kept_unchanged_and_cut(body: Any, text: str) -> None:
    assert str(await error(Reply(body, 400))).endswith(f" answered with status 400: {text}")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0.5", 0.5), ("-1", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", None), ("inf", None)],
)
async def test_retry_after_is_read(header: str, seconds: float | None) -> None:
    assert (await error(Reply(b"", 429, {"Retry-After": header}))).retry_after == seconds


async def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    refused = await error(Reply(b"", 503, {"Retry-After": date}))
    assert refused.retry_after is not None
    assert 30 < refused.retry_after <= 60


@pytest.mark.parametrize(
    ("body", "transient", "text"),
    [
        ({"error": {"code": 400, "message": "No."}}, False, "answered with status 400: No."),
        ({"error": {"code": 502, "message": "No."}}, True, "answered with status 502: No."),
        ({"error": {"code": "overloaded", "message": "No."}}, True, "answered with an error: No."),
        ({"error": {"code": 1213, "message": "No."}}, True, "answered with an error: No."),
    ],
)
async def test_an_error_under_status_200_is_one(body: Any, transient: bool, text: str) -> None:
    refused = await error(Reply(body))
    assert refused.transient == transient
    assert str(refused).endswith(text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"choices": [', "not JSON: Expecting value"),
        (b"<html>Log in</html>", "not JSON: Expecting value"),
        (b"[" * 100_000, "not JSON: maximum recursion depth exceeded"),
        (b"\xff", "not JSON: 'utf-8' codec can't decode"),
        ("text", "not in the format of Chat Completions: value: "),
        ({"choices": 5}, "not in the format of Chat Completions: choices: "),
        (
            {"choices": [{"message": {"content": 5}}]},
            "not in the format of Chat Completions: choices.0.message.",
        ),
    ],
    ids=["cut", "HTML", "deep", "no text", "no object", "no list", "a number"],
)
async def test_a_value_that_is_not_an_answer_is_an_error_that_may_pass(body: Any, text: str) -> None:
    refused = await error(Reply(body))
    assert refused.transient
    assert f" gave no answer: its answer is {text}" in str(refused)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(end="reset"), "gave no answer: ReadError"),
        (Reply({"choices": []}, end="cut"), "gave no answer: RemoteProtocolError: peer closed connection"),
        (Reply(end="silent"), "gave no answer: ReadTimeout"),
        (Reply(b"no gzip", headers={"Content-Encoding": "gzip"}), "gave no answer: its answer is not packed as gzip"),
    ],
    ids=["reset", "cut", "silent", "garbled"],
)
async def test_a_connection_that_breaks_is_an_error_that_passes(reply: Reply, text: str) -> None:
    refused = await error(reply, timeout=0.2)
    assert refused.transient
    assert text in str(refused)


async def test_a_server_that_is_not_there_is_an_error_that_passes() -> None:
    async with ModelServer() as server:
        pass
    with pytest.raises(ModelError, match="gave no answer: ConnectError") as caught:
        await OpenAICompatible(model="m", base_url=server.url).chat(HI, [])
    assert caught.value.transient


async def test_a_cancelled_call_hangs_up() -> None:
    async with ModelServer(Reply(end="silent")) as server, asyncio.timeout(60):
        call = asyncio.create_task(OpenAICompatible(model="m", base_url=server.url).chat(HI, []))
        await server.asked.wait()
        call.cancel()
        await server.hung_up.wait()
    assert call.cancelled()


async def test_a_password_in_the_address_is_in_no_message() -> None:
    async with ModelServer(Reply(b"", 500)) as server:
        url = server.url.replace("//", "//user:secret@")
        with pytest.raises(ModelError) as caught:
            await OpenAICompatible(model="m", base_url=url).chat(HI, [])
    assert str(caught.value) == f"Model 'm' at {server.address} answered with status 500: no text"
