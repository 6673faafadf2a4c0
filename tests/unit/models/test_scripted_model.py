"""The test double of a model: it answers by script, and records its calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import LLMResponse, Message, ModelError, ToolCall
from standfast.llm import ToolDescription
from standfast.testing import ModelCall, ScriptedModel

HI = [Message(role="user", content="hi")]
LOOK = [ToolDescription(name="look", description="Look.", input_schema={"type": "object"})]


async def streamed(model: ScriptedModel) -> list[str | LLMResponse]:
    return [part async for part in model.stream(HI, [])]


async def test_answers_come_in_order() -> None:
    model = ScriptedModel(["one", "two"])

    assert [await model.chat(HI, []) for _ in range(2)] == [LLMResponse(text="one"), LLMResponse(text="two")]


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("hi", LLMResponse(text="hi")),
        ("", LLMResponse()),
        ({"text": "hi"}, LLMResponse(text="hi")),
        ({"tool_calls": [{"id": "c1", "name": "look"}]}, LLMResponse(tool_calls=(ToolCall(id="c1", name="look"),))),
        (LLMResponse(text="hi", stop_reason="end"), LLMResponse(text="hi", stop_reason="end")),
    ],
    ids=repr,
)
async def test_an_answer_may_be_a_text_a_dict_or_a_response(answer: Any, response: LLMResponse) -> None:
    assert await ScriptedModel([answer]).chat(HI, []) == response


@pytest.mark.parametrize("error", [ModelError("busy", transient=True), KeyboardInterrupt()], ids=repr)
async def test_an_exception_is_raised(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        await ScriptedModel([error]).chat(HI, [])
    assert caught.value is error


async def test_an_answer_that_is_none_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="neither an LLMResponse"):
        await ScriptedModel([{"content": "hi"}]).chat(HI, [])


async def test_a_script_that_is_too_short_says_so() -> None:
    model = ScriptedModel(["one"])
    await model.chat(HI, [])

    with pytest.raises(AssertionError, match="ScriptedModel has 1 answers and was asked for another one"):
        await model.chat(HI, [])


async def test_a_failed_call_uses_up_its_answer() -> None:
    model = ScriptedModel([ModelError("busy"), "hi"])
    with pytest.raises(ModelError):
        await model.chat(HI, [])

    assert await model.chat(HI, []) == LLMResponse(text="hi")


async def test_a_script_does_not_change_with_the_list_it_was_made_from() -> None:
    script = ["one"]
    model = ScriptedModel(script)
    script[0] = "two"

    assert await model.chat(HI, []) == LLMResponse(text="one")


def by_length(messages: list[Message], tools: list[ToolDescription]) -> str:
    return f"{len(messages)} messages, {len(tools)} tools"


async def by_length_later(messages: list[Message], tools: list[ToolDescription]) -> str:
    return by_length(messages, tools)


@pytest.mark.parametrize("script", [by_length, by_length_later])
async def test_a_function_is_asked_every_time(script: Any) -> None:
    model = ScriptedModel(script)

    assert [(await model.chat(HI * times, LOOK)).text for times in (1, 3)] == [
        "1 messages, 1 tools",
        "3 messages, 1 tools",
    ]


async def test_a_function_may_give_an_exception_to_raise() -> None:
    with pytest.raises(ModelError, match="busy"):
        await ScriptedModel(lambda messages, tools: ModelError("busy")).chat(HI, [])


async def test_calls_remember_what_was_asked() -> None:
    model = ScriptedModel(["hi"])
    await model.chat(HI, LOOK, max_tokens=5)

    assert model.calls == [ModelCall(HI, LOOK, {"max_tokens": 5})]


async def test_a_call_that_failed_is_remembered_too() -> None:
    model = ScriptedModel([ModelError("busy")])
    with pytest.raises(ModelError):
        await model.chat(HI, [])

    assert model.calls == [ModelCall(HI, [], {})]


async def test_what_was_asked_does_not_change_with_the_transcript() -> None:
    messages = list(HI)
    model = ScriptedModel(["hi"])
    await model.chat(messages, [])
    messages.append(Message(role="assistant", content="hi"))

    assert model.calls[0].messages == HI


@pytest.mark.parametrize("script", ["hello", {"text": "hello"}, LLMResponse(text="hello")], ids=repr)
def test_a_script_that_is_a_single_answer_is_refused(script: Any) -> None:
    with pytest.raises(TypeError):
        ScriptedModel(script)


async def test_a_stream_gives_words_and_then_the_whole_answer() -> None:
    model = ScriptedModel([{"text": " two  words ", "stop_reason": "end"}])

    assert await streamed(model) == [" ", "two  ", "words ", LLMResponse(text=" two  words ", stop_reason="end")]


async def test_a_stream_without_text_gives_only_the_answer() -> None:
    assert await streamed(ScriptedModel([""])) == [LLMResponse()]


async def test_a_stream_is_a_call() -> None:
    model = ScriptedModel(["hi"])
    await streamed(model)

    assert model.calls == [ModelCall(HI, [], {})]


@given(st.text())
async def test_the_pieces_of_a_stream_are_the_text(text: str) -> None:
    *pieces, answer = await streamed(ScriptedModel([text]))

    assert "".join(str(piece) for piece in pieces) == text
    assert answer == LLMResponse(text=text)
