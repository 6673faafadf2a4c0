"""A message is a frozen value that JSON carries unchanged, whatever an adapter returns."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from standfast import LLMResponse, Message, ModelError, Reasoning, ToolCall, Usage
from standfast.messages.records import _NOT_WHOLE

# --- messages ---


def test_json_leaves_out_absent_fields() -> None:
    assert Message(role="user", content="hi").model_dump_json() == '{"role":"user","content":"hi"}'


def test_json_keeps_nulls_inside_arguments() -> None:
    assert ToolCall(arguments={"a": None}).model_dump()["arguments"] == {"a": None}


def test_repr_leaves_out_absent_fields() -> None:
    assert repr(Message(role="user", content="hi")) == "Message(role='user', content='hi')"


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", content="hi"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look", arguments={"a": [None, 1.5, "é"]}),)),
        Message(role="assistant", content="done", usage=Usage(input_tokens=3, output_tokens=4), cost=0.25),
        Message(role="tool", content="[]", tool_call_id="c1", tool_name="look", status="cancelled"),
    ],
    ids=lambda message: message.role,
)
def test_a_message_read_back_from_its_json_is_the_same_message(message: Message) -> None:
    assert Message.model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(("is_error", "status"), [(True, "failed"), (False, "completed"), (None, "completed")])
def test_is_error_of_older_transcripts_is_read_as_status(is_error: bool | None, status: str) -> None:
    message = Message.model_validate({"role": "tool", "content": "x", "tool_call_id": "c1", "is_error": is_error})

    assert message.model_dump() == {"role": "tool", "content": "x", "tool_call_id": "c1", "status": status}


def test_a_status_wins_over_is_error() -> None:
    assert Message.model_validate({"role": "tool", "is_error": True, "status": "cancelled"}).status == "cancelled"


def test_reading_is_error_leaves_the_given_dict_alone() -> None:
    given_message = {"role": "tool", "content": "x", "is_error": True}
    Message.model_validate(given_message)

    assert given_message == {"role": "tool", "content": "x", "is_error": True}


@pytest.mark.parametrize("role", ["robot", "", None, 5])
def test_a_role_that_does_not_exist_is_refused(role: Any) -> None:
    with pytest.raises(ValidationError):
        Message(role=role)


@pytest.mark.parametrize(
    "value",
    [Message(role="user"), ToolCall(), Usage(), LLMResponse()],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen(value: Any) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(value, next(iter(type(value).model_fields)), "changed")


# --- usage ---


def test_usage_adds_up() -> None:
    both = Usage(input_tokens=1, output_tokens=2) + Usage(input_tokens=10, output_tokens=20)

    assert (both, both.total_tokens) == (Usage(input_tokens=11, output_tokens=22), 33)


def test_nothing_can_be_added_to_usage() -> None:
    assert Usage(input_tokens=1) + None == Usage(input_tokens=1)


# --- what an adapter answers ---


def test_a_dict_of_the_same_keys_is_an_answer() -> None:
    answer = LLMResponse.read(
        {
            "text": "hi",
            "tool_calls": [{"id": "c1", "name": "look", "arguments": '{"a": 1}'}],
            "usage": {"input_tokens": 1, "output_tokens": 2},
            "stop_reason": "end",
            "cost": 0.5,
        }
    )

    assert answer == LLMResponse(
        text="hi",
        tool_calls=(ToolCall(id="c1", name="look", arguments={"a": 1}),),
        usage=Usage(input_tokens=1, output_tokens=2),
        stop_reason="end",
        cost=0.5,
    )


def test_an_answer_is_read_unchanged() -> None:
    answer = LLMResponse(text="hi")

    assert LLMResponse.read(answer) is answer


@pytest.mark.parametrize("answer", [{}, {"text": None}, {"text": None, "tool_calls": None}, {"tool_calls": []}])
def test_what_an_answer_leaves_out_is_empty(answer: dict[str, Any]) -> None:
    assert LLMResponse.read(answer) == LLMResponse(text="", tool_calls=())


def test_tool_calls_that_are_junk_are_still_calls() -> None:
    answer = LLMResponse.read({"tool_calls": [5, {"name": "look"}]})

    assert answer.tool_calls == (ToolCall(arguments="5"), ToolCall(name="look"))


@pytest.mark.parametrize(
    "junk",
    [None, 5, "text", [], object, {"text": 5}, {"tool_calls": "x"}, {"tool_calls": {}}, {1: 2}, {"stop_reason": 5}],
    ids=repr,
)
def test_an_answer_that_is_none_is_a_model_error(junk: Any) -> None:
    with pytest.raises(ModelError, match="neither an LLMResponse"):
        LLMResponse.read(junk)


def test_an_unknown_key_of_an_answer_is_named() -> None:
    with pytest.raises(ModelError, match=r"content: Extra inputs are not permitted"):
        LLMResponse.read({"content": "hi"})


def test_a_model_error_of_a_wrong_answer_is_not_transient() -> None:
    with pytest.raises(ModelError) as caught:
        LLMResponse.read(None)

    assert not caught.value.transient


@pytest.mark.parametrize(
    "usage",
    [
        None,
        5,
        "many",
        {"input_tokens": "many", "output_tokens": 1},
        {"input_tokens": 1, "output_tokens": None},
        {"input_tokens": 1.5, "output_tokens": 1},
        {"input_tokens": float("nan"), "output_tokens": 1},
        {"input_tokens": float("inf"), "output_tokens": 1},
        {"input_tokens": -1, "output_tokens": 1},
    ],
    ids=repr,
)
def test_usage_that_is_not_a_count_is_ignored(usage: Any) -> None:
    assert LLMResponse.read({"text": "hi", "usage": usage}) == LLMResponse(text="hi")


def test_empty_usage_is_ignored() -> None:
    assert LLMResponse.read({"text": "hi", "usage": {}}).usage is None


def test_usage_of_another_format_is_refused_so_that_a_budget_acts() -> None:
    with pytest.raises(ModelError, match="unknown key 'completion_tokens'; usage has input_tokens, output_tokens"):
        LLMResponse.read({"text": "hi", "usage": {"prompt_tokens": 3, "completion_tokens": 4}})


@pytest.mark.parametrize(
    "call", [{"name": "refund", "args": {"amount": 5}}, {"type": "function", "function": {"name": "refund"}}], ids=repr
)
def test_a_call_of_another_format_is_not_taken_for_one_without_arguments(call: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="a tool call has id, name, arguments"):
        LLMResponse.read({"tool_calls": [call]})


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), "nan"])
def test_a_cost_that_is_not_a_number_is_ignored(cost: Any) -> None:
    assert LLMResponse.read({"text": "hi", "cost": cost}).cost is None


def test_usage_in_words_names_what_it_cost_if_that_is_known() -> None:
    assert Usage(input_tokens=1_200).in_words == "1,200 tokens in, 0 out"
    assert Usage(input_tokens=1, output_tokens=2, cost=0.5).in_words == "1 tokens in, 2 out, 0.5000 US dollars"


def test_the_table_of_the_documents_has_every_word_for_an_answer_that_is_not_whole() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `") and line.count("|") == 4]
    told = {word: meaning for _, words, meaning, *_ in rows for word in re.findall(r"`([a-z_-]+)`", words)}
    for word, meaning in _NOT_WHOLE.items():
        if word != meaning:  # our own words
            assert told[word].strip("` ") == ("" if meaning == "broken" else meaning), word


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "thinking", "thinking": "a", "signature": "s"}, "a"),
        ({"type": "redacted_thinking", "data": "x"}, ""),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "x"}, "a"),
        ({"message": {"reasoning_content": "a", "extra_content": {"text": "x"}}}, "a"),
        ({"message": {"reasoning_details": [{"type": "reasoning.text", "text": "a"}]}}, "a"),
        ({"part": {"type": "thinking", "thinking": [{"type": "text", "text": "a"}, 5]}}, "a"),
        ({"part": {"part_kind": "thinking", "content": "a"}}, "a"),
        ({"reasoning": "a", "extra_content": {}, "tool_calls": []}, "a"),  # of any-llm, in older transcripts
        ({"type": "web_search_tool_result", "content": [{"text": "x"}]}, ""),
        ({"standfast": "text", "length": 3}, ""),
    ],
)
def test_thoughts_of_every_form_have_a_text_for_people(block: dict[str, Any], text: str) -> None:
    assert Reasoning(provider="p", blocks=(block,)).text == text
