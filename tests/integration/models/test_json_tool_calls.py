"""Tool calls as JSON in plain text, for small models: the request, and the parsed answer."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from support.doubles import echo
from support.model_server import ModelServer, Reply, calls, says, streams

from standfast import Agent, LLMResponse, Message, ToolCall, Usage, assert_complete, run, tool
from standfast.llm import ToolDescription
from standfast.llm.openai_compatible import OpenAICompatible

HI = [Message(role="user", content="hi")]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ECHO = ToolDescription(name="echo", description="Return the text.", input_schema=SCHEMA)
PROMPT = f"""\
You have these tools:
- echo: Return the text. Arguments: {json.dumps(SCHEMA)}

Reply with one JSON object. To call a tool: {{"tool": "<its name>", "arguments": {{...}}}}. \
To answer the user instead: {{"answer": "..."}}."""


def model_at(server: ModelServer) -> OpenAICompatible:
    return OpenAICompatible(model="m", base_url=server.url, tool_mode="json")


async def sent(messages: Sequence[Message] = HI, tools: Sequence[ToolDescription] = (ECHO,)) -> Any:
    async with ModelServer(says('{"answer": "ok"}')) as server:
        await model_at(server).chat(messages, tools)
    return server.requests[0].body


async def answer(content: str | None, *native: Any, finish: str = "stop") -> LLMResponse:
    async with ModelServer(says(content, *native, finish=finish)) as server:
        return await model_at(server).chat(HI, [ECHO])


async def test_the_schema_admits_a_call_of_each_tool_or_an_answer() -> None:
    body = await sent()
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"] == {
        "name": "reply",
        "schema": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"tool": {"const": "echo"}, "arguments": {"$ref": "#/$defs/echo"}},
                    "required": ["tool", "arguments"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"answer": {"type": "string"}},
                    "required": ["answer"],
                    "additionalProperties": False,
                },
            ],
            "$defs": {"echo": SCHEMA},
        },
    }
    assert "tools" not in body


class Part(BaseModel):
    name: str
    parts: "list[Part]" = []


@tool
async def build(part: Part) -> None:
    """Build it."""


async def test_the_references_of_a_tools_schema_still_hold_where_it_stands() -> None:
    description = ToolDescription(name="build", description="Build it.", input_schema=build.input_schema)
    schema = (await sent(tools=[description]))["response_format"]["json_schema"]["schema"]["$defs"]["build"]
    assert schema["properties"]["part"] == {"$ref": "#/$defs/build/$defs/Part"}
    assert schema["$defs"]["Part"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/build/$defs/Part"}


async def test_the_tools_are_described_after_the_system_prompt() -> None:
    messages = [Message(role="system", content="Be brief."), *HI]
    assert (await sent(messages))["messages"] == [
        {"role": "system", "content": f"Be brief.\n\n{PROMPT}"},
        {"role": "user", "content": "hi"},
    ]


async def test_without_tools_nothing_is_said_of_them_and_the_answer_is_plain_text() -> None:
    async with ModelServer(says('{"answer": "ok"}')) as server:
        response = await model_at(server).chat([Message(role="system", content=""), *HI], [])
    assert server.requests[0].body == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert response.text == '{"answer": "ok"}'


async def test_calls_and_results_are_shown_as_text_and_the_roles_alternate() -> None:
    calls = (ToolCall(id="c1", name="echo", arguments={"text": "ö"}), ToolCall(id="c2", name="echo", arguments="{oops"))
    messages = [
        Message(role="system", content="Be brief."),
        *HI,
        Message(role="assistant", content="I look.", tool_calls=calls),
        Message(role="tool", content="ö", tool_call_id="c1", tool_name="echo", status="completed"),
        Message(role="tool", content='{"error": "no"}', tool_call_id="c2", tool_name="echo", status="failed"),
        Message(role="system", content="Hurry."),
        Message(role="user", content="And?"),
        Message(role="assistant", content="Done."),
    ]
    called = '{"tool": "echo", "arguments": {"text": "ö"}}\n{"tool": "echo", "arguments": {"malformed": "{oops"}}'
    assert (await sent(messages))["messages"] == [
        {"role": "system", "content": f"Be brief.\n\nHurry.\n\n{PROMPT}"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": f"I look.\n{called}"},
        {"role": "user", "content": 'Result of echo: ö\n\nResult of echo: {"error": "no"}\n\nAnd?'},
        {"role": "assistant", "content": "Done."},
    ]


async def test_a_call_is_read_and_its_id_left_to_the_loop() -> None:
    response = await answer('{\n  "tool": "echo",\n  "arguments": {"text": "x"}\n}')
    assert response == LLMResponse(
        tool_calls=(ToolCall(id="", name="echo", arguments={"text": "x"}),), stop_reason="stop"
    )


async def test_an_answer_is_read() -> None:
    assert await answer('{"answer": "It is ö."}') == LLMResponse(text="It is ö.", stop_reason="stop")


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ('{"tool": "echo"}', {}),
        ('{"tool": "echo", "text": "x"}', {"text": "x"}),
        ('{"tool": "echo", "arguments": null}', {}),
    ],
    ids=["none", "beside the name", "null"],
)
async def test_arguments_that_stand_elsewhere_are_found(content: str, arguments: Any) -> None:
    assert (await answer(content)).tool_calls == (ToolCall(name="echo", arguments=arguments),)


async def test_of_an_answer_cut_off_the_beginning_is_kept() -> None:
    assert await answer('{"answer": "It is', finish="length") == LLMResponse(text="It is", stop_reason="length")


@pytest.mark.parametrize("content", ['{"tool": "echo", "arguments": {"text": "x"', '{"tool": "echo", "argum'])
async def test_of_a_call_cut_off_nothing_is_run(content: str) -> None:
    response = await answer(content, finish="length")
    assert response.tool_calls == (ToolCall(name="echo", arguments=content),)
    assert isinstance(response.tool_calls[0].arguments, str)


@pytest.mark.parametrize("content", ["Hello!", "", "[1]", '{"other": 1}', '{"tool": 5}', '{"answer": 5}', "\ud800"])
async def test_an_answer_in_another_form_is_left_unchanged(content: str) -> None:
    async with ModelServer(Reply(json.dumps({"choices": [{"message": {"content": content}}]}).encode())) as server:
        assert await model_at(server).chat(HI, [ECHO]) == LLMResponse(text=content)


async def test_a_native_call_is_taken_all_the_same() -> None:
    response = await answer(None, calls("echo", "{}"))
    assert response.tool_calls == (ToolCall(id="c1", name="echo"),)


async def test_a_stream_shows_the_answer_in_one_piece() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    whole = LLMResponse(text="ok", usage=Usage(input_tokens=3, output_tokens=2), stop_reason="stop")
    async with ModelServer(
        says('{"answer": "ok"}', usage=usage), says('{"tool": "echo"}'), streams("o", "k")
    ) as server:
        model = model_at(server)
        assert [part async for part in model.stream(HI, [ECHO])] == ["ok", whole]
        assert [type(part) async for part in model.stream(HI, [ECHO])] == [LLMResponse]
        assert [part async for part in model.stream(HI, [])][:-1] == ["o", "k"]


async def test_an_agent_calls_its_tool_and_answers() -> None:
    script = [says('{"tool": "echo", "arguments": {"text": "ping"}}'), says('{"answer": "It said ping."}')]
    async with ModelServer(*script) as server:
        result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=model_at(server)))
    assert (result.status, result.response) == ("complete", "It said ping.")
    assert server.requests[1].body["messages"][-1] == {"role": "user", "content": "Result of echo: ping"}
