"""How the answers of a model and the outcomes of its calls are written into a transcript."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import LLMResponse, Message, TerminalError, ToolCall, ToolDurabilityError, Usage
from standfast.agent_loop import answer_message, not_found, read_transcript, result_message
from standfast.tools import TOOL_NAME, Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

KIB = 1_024


# --- what a model answered ---


def answered(
    *given_calls: Any, text: str = "", taken: Any = (), tools: Any = ("look",), limit: int = 100 * KIB, turn: int = 3
) -> Message:
    response = LLMResponse.read({"text": text, "tool_calls": given_calls})
    return answer_message(response, turn=turn, taken=frozenset(taken), tools=frozenset(tools), limit=limit)


def ids_of(message: Message) -> list[str]:
    return [call.id for call in message.tool_calls or ()]


def test_an_answer_keeps_text_calls_usage_and_cost() -> None:
    response = LLMResponse(
        text="hi",
        tool_calls=(ToolCall(id="a", name="look", arguments={"x": 1}),),
        usage=Usage(input_tokens=1),
        stop_reason="tool_use",
        cost=0.5,
    )

    assert answer_message(response, turn=1, taken=set(), tools={"look"}, limit=KIB) == Message(
        role="assistant",
        content="hi",
        tool_calls=(ToolCall(id="a", name="look", arguments={"x": 1}),),
        usage=Usage(input_tokens=1, cost=0.5),
        cost=0.5,
    )


def test_an_answer_without_calls_has_none() -> None:
    assert answered(text="hi") == Message(role="assistant", content="hi")


def test_an_empty_answer_is_an_empty_message() -> None:
    assert answered() == Message(role="assistant", content="")


@pytest.mark.parametrize("call_id", ["toolu_01ABC", "call_a-b", "a.b:c|d", "x" * 256, "0"])
def test_an_id_of_the_provider_is_kept(call_id: str) -> None:
    assert ids_of(answered({"id": call_id, "name": "look"})) == [call_id]


@pytest.mark.parametrize("call_id", ["", None, "a b", "é", "a\n", "x" * 257, "\ud800", "a\0", "<id>"], ids=ascii)
def test_an_id_that_is_missing_or_malformed_is_made_from_turn_and_position(call_id: Any) -> None:
    message = answered({"id": "first", "name": "look"}, {"id": call_id, "name": "look"}, turn=7)

    assert ids_of(message) == ["first", "call_7_1"]


def test_a_repeated_id_is_replaced() -> None:
    message = answered({"id": "a", "name": "look"}, {"id": "a", "name": "look"}, {"id": "a", "name": "look"})

    assert ids_of(message) == ["a", "call_3_1", "call_3_2"]


def test_an_id_of_an_earlier_turn_is_replaced() -> None:
    assert ids_of(answered({"id": "a", "name": "look"}, taken={"a"})) == ["call_3_0"]


def test_a_made_id_gives_way_to_one_that_is_taken() -> None:
    message = answered({"id": "call_3_1", "name": "look"}, {"name": "look"}, {"name": "look"}, taken={"call_3_2"})

    assert ids_of(message) == ["call_3_1", "call_3_1_", "call_3_2_"]


def test_the_same_answer_read_again_has_the_same_ids() -> None:
    given_calls = [{"name": "look"}, {"id": "a b", "name": "look"}, {"id": "a", "name": "look"}]

    assert answered(*given_calls) == answered(*given_calls)


@given(
    st.lists(st.text(st.characters(), max_size=4) | st.sampled_from(["a", "call_3_0", "call_3_1", "call_3_1_"])),
    st.sets(st.sampled_from(["a", "call_3_0", "call_3_0_", "call_3_1"])),
)
def test_ids_are_always_there_and_differ_and_are_plain(ids: list[str], taken: set[str]) -> None:
    made = ids_of(answered(*({"id": call_id, "name": "look"} for call_id in ids), taken=taken))

    assert len({*made} - taken) == len(ids)
    assert all(call_id.isascii() and call_id.isprintable() and call_id for call_id in made)


def test_two_hundred_calls_are_kept_in_order() -> None:
    message = answered(*({"name": "look", "arguments": {"n": number}} for number in range(200)))

    assert [call.arguments for call in message.tool_calls or ()] == [{"n": number} for number in range(200)]
    assert len(set(ids_of(message))) == 200


@pytest.mark.parametrize("name", ["look", "unknown_tool", "A-b", "_x"])
def test_a_name_that_a_tool_could_have_is_kept(name: str) -> None:
    assert answered({"id": "a", "name": name}).tool_calls == (ToolCall(id="a", name=name),)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("", "invalid_"),
        (None, "invalid_"),
        ("look\n", "invalid_look_"),
        ("functions.look", "invalid_functions_look"),
        ("1look", "invalid_1look"),
        ("é" * 100, "invalid_" + "_" * 40),
        ("x" * 65, "invalid_" + "x" * 40),
        ("\ud800", "invalid__"),
    ],
    ids=ascii,
)
def test_a_malformed_name_becomes_a_readable_one(name: Any, kept: str) -> None:
    assert answered({"id": "a", "name": name}).tool_calls == (ToolCall(id="a", name=kept),)


def test_a_malformed_name_never_becomes_the_name_of_a_tool() -> None:
    message = answered({"id": "a", "name": "a b"}, tools={"invalid_a_b", "invalid_a_b_"})

    assert message.tool_calls == (ToolCall(id="a", name="invalid_a_b__"),)


@given(st.text(st.characters(), max_size=70))
def test_a_name_is_always_one_that_providers_take(name: str) -> None:
    (call,) = answered({"id": "a", "name": name}).tool_calls or ()

    assert TOOL_NAME.fullmatch(call.name)


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_any_answer_becomes_a_message_that_json_carries(text: str, arguments: str) -> None:
    message = answered({"id": text, "name": text, "arguments": arguments}, text=text)

    assert Message.model_validate_json(message.model_dump_json()) == message


def test_text_is_cleaned() -> None:
    assert answered(text="a\0\ud800").content == "a\ufffd\ufffd"


def test_a_megabyte_of_text_is_kept() -> None:
    assert answered(text="x" * 2**20, limit=2**20).content == "x" * 2**20


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * KIB, "x" * KIB),
        ("x" * (KIB + 1), "x" * KIB + "\n[cut: 1,024 of 1,025 bytes]"),
        ("é" * 512, "é" * 512),
        ("é" * 513, "é" * 512 + "\n[cut: 1,024 of 1,026 bytes]"),
        ("x" + "é" * 512, "x" + "é" * 511 + "\n[cut: 1,024 of 1,025 bytes]"),
        ("😀" * 257, "😀" * 256 + "\n[cut: 1,024 of 1,028 bytes]"),
    ],
    ids=lambda text: f"{len(text)} {text[0]}",
)
def test_text_over_the_limit_is_cut_and_says_so(text: str, kept: str) -> None:
    assert answered(text=text, limit=KIB).content == kept


def test_arguments_that_are_not_an_object_are_cut_like_text() -> None:
    (call,) = answered({"id": "a", "name": "look", "arguments": "x" * 2_000}, limit=KIB).tool_calls or ()

    assert call.arguments == "x" * KIB + "\n[cut: 1,024 of 2,000 bytes]"


def test_an_object_of_arguments_over_the_limit_is_cut_to_a_text_that_is_none() -> None:
    arguments = {"text": "x" * 2_000}
    (call,) = answered({"id": "a", "name": "look", "arguments": arguments}, limit=KIB).tool_calls or ()

    assert isinstance(call.arguments, str)
    assert call.arguments.endswith("bytes]")
    assert len(call.arguments) < KIB + 100


def test_an_object_of_arguments_as_long_as_the_limit_is_kept() -> None:
    arguments = {"text": "x" * (KIB - len('{"text": ""}'))}
    (call,) = answered({"id": "a", "name": "look", "arguments": arguments}, limit=KIB).tool_calls or ()

    assert call.arguments == arguments


# --- outcomes ---


CALL = ToolCall(id="c1", name="post", arguments={"x": 1})


@pytest.mark.parametrize(
    ("outcome", "content", "status"),
    [
        (Returned("seen"), "seen", "completed"),
        (Returned('{"a":1}'), '{"a":1}', "completed"),
        (Failed('not "this" é'), '{"error": "not \\"this\\" é"}', "failed"),
        (Terminated(TerminalError("gone\0", 404)), '{"error": "gone\ufffd"}', "failed"),
        (Terminated(TerminalError("")), '{"error": "TerminalError"}', "failed"),
        (Cancelled("Not run"), '{"error": "Not run"}', "cancelled"),
        (not_found("post", ["a", "b"]), '{"error": "Tool \\"post\\" not found. Available tools: a, b"}', "failed"),
        (not_found("post", []), '{"error": "Tool \\"post\\" not found. Available tools: none"}', "failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_outcome_is_written_for_the_model(outcome: Outcome, content: str, status: Any) -> None:
    assert result_message(CALL, outcome, KIB) == Message(
        role="tool", content=content, tool_call_id="c1", tool_name="post", status=status
    )


@pytest.mark.parametrize("reason", ["", "it was cut off"])
def test_an_unknown_outcome_is_a_durability_error(reason: str) -> None:
    message = result_message(CALL, Unknown(reason), KIB)

    assert message is not None
    assert (message.status, message.tool_call_id, message.tool_name) == ("failed", "c1", "post")
    assert json.loads(message.content) == ToolDurabilityError("post", "c1", reason=reason).payload()


def test_a_question_has_no_result_yet() -> None:
    assert result_message(CALL, Asked("Who?"), KIB) is None


def test_a_message_without_content_is_read_as_openai_sends_it() -> None:
    given = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "name": "look", "arguments": "{}"}]},
    ]
    assert read_transcript(given)[1] == Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look"),))
