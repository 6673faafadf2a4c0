"""Transcripts: what may enter one, what is unanswered in one, and how answers and outcomes are written into one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InputError, LLMResponse, Message, TerminalError, ToolCall, ToolDurabilityError, Usage
from holdfast.agent_loop import (
    answer_message,
    in_call_order,
    last_answer,
    mended,
    not_found,
    read_transcript,
    result_message,
    unanswered,
    with_notices,
)
from holdfast.tools import TOOL_NAME, Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

KIB = 1_024


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def calls(*ids: str, text: str = "") -> Message:
    return Message(
        role="assistant", content=text, tool_calls=tuple(ToolCall(id=call_id, name="look") for call_id in ids)
    )


def said(text: str = "done") -> Message:
    return Message(role="assistant", content=text)


def result(call_id: str, content: str = "seen") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id, tool_name="look", status="completed")


def system(text: str) -> Message:
    return Message(role="system", content=text)


# --- reading what a caller brings ---


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [said()],
        [user(), said()],
        [user(), user()],
        [user(), calls("a", "b")],
        [user(), calls("a", "b"), result("a")],
        [user(), calls("a", "b"), result("a"), result("b")],
        [user(), calls("a"), result("a"), said(), user()],
        [user(), calls("a"), result("a"), calls("a"), result("a")],
    ],
)
def test_a_transcript_that_can_stand_is_read_as_it_is(messages: list[Message]) -> None:
    assert read_transcript(messages) == messages


def test_messages_may_be_dicts() -> None:
    messages = [user(), calls("a"), result("a"), said()]

    assert read_transcript([message.model_dump() for message in messages]) == messages


def test_older_transcripts_that_say_is_error_are_read() -> None:
    given_result = {"role": "tool", "content": "seen", "tool_call_id": "a", "is_error": True}

    assert read_transcript([calls("a"), given_result])[-1].status == "failed"


def test_the_list_of_the_caller_is_not_changed() -> None:
    messages = [system("prompt"), calls("a", "b"), result("b"), result("a")]
    before = list(messages)
    read_transcript(messages)

    assert messages == before


def test_a_transcript_may_be_any_iterable() -> None:
    assert read_transcript(iter([user()])) == [user()]


def test_system_messages_are_left_out() -> None:
    messages = [system("prompt"), user(), calls("a", "b"), result("b"), system("warning"), result("a")]

    assert read_transcript(messages) == [user(), calls("a", "b"), result("a"), result("b")]


def test_results_come_back_in_call_order() -> None:
    messages = [user(), calls("a", "b", "c"), result("c"), result("a"), result("b"), said()]

    assert read_transcript(messages) == [user(), calls("a", "b", "c"), result("a"), result("b"), result("c"), said()]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "messages: empty; give at least one message"),
        ([system("prompt")], "messages: empty; give at least one message"),
        ([result("a")], "messages[0]: Expected an assistant message before tool results"),
        ([user(), result("a")], "messages[1]: Expected an assistant message before tool results"),
        ([calls("a"), result("b")], "messages[1]: no unanswered tool call has the id 'b'"),
        ([calls("a"), result("a"), result("a")], "messages[2]: no unanswered tool call has the id 'a'"),
        ([calls("a"), result("a"), user(), result("a")], "messages[3]: no unanswered tool call has the id 'a'"),
        ([said(), result("a")], "messages[1]: no unanswered tool call has the id 'a'"),
        (
            [calls("a"), {"role": "tool", "content": "seen"}],
            "messages[1]: no unanswered tool call has the id None",
        ),
        (
            [calls("a", "b", "c"), result("b"), user()],
            "messages[2]: the tool calls a, c before it have no results. Run the transcript up to there first, or",
        ),
        ([calls("a"), said()], "messages[1]: the tool calls a before it have no results."),
        ([calls("a"), calls("a")], "messages[1]: the tool calls a before it have no results."),
        ([user(), calls("a", "a")], "messages[1]: tool call ids must be there and differ, got 'a'"),
        ([user(), calls("")], "messages[1]: tool call ids must be there and differ, got ''"),
        ([{"role": "robot"}], "messages[0] is no message: role: Input should be 'system', 'user', 'assistant' or"),
        ([user(), 5], "messages[1] is no message: value: Input should be a valid dictionary or instance of Message"),
        ([None], "messages[0] is no message: value: Input should be a valid dictionary or instance of Message"),
        ("hello", "messages[0] is no message: value: Input should be a valid dictionary or instance of Message"),
        ({"role": "user"}, "messages[0] is no message: value: Input should be a valid dictionary or instance of"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_message_that_cannot_stand_where_it_stands_is_named(messages: Any, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        read_transcript(messages)
    assert str(caught.value).startswith(fault)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_only_an_assistant_message_may_carry_calls(role: Any) -> None:
    message = Message(role=role, content="x", tool_call_id="a", tool_calls=(ToolCall(id="b", name="look"),))

    with pytest.raises(InputError, match=r"messages\[1\]"):
        read_transcript([calls("a") if role == "tool" else said(), message])


@pytest.mark.parametrize("text", ["\ud800", "a\0"], ids=ascii)
def test_a_transcript_has_nothing_that_no_store_takes(text: str) -> None:
    messages = [user(text), calls("a", text=text), result("a", text)]
    read = read_transcript(messages)

    assert [message.content for message in read] == [text.replace("\ud800", "\ufffd").replace("\0", "\ufffd")] * 3


@given(st.lists(st.one_of(st.builds(user), st.builds(said), st.builds(result, st.sampled_from("abc")),
                          st.lists(st.sampled_from("abc"), max_size=3).map(lambda ids: calls(*ids)))))  # fmt: skip
def test_what_is_read_has_one_result_for_every_call_but_those_at_its_end(messages: list[Message]) -> None:
    try:
        read = read_transcript(messages)
    except InputError:
        return
    asked = [call.id for message in read for call in message.tool_calls or ()]
    answered = [message.tool_call_id for message in read if message.role == "tool"]

    assert sorted([*answered, *(call.id for call in unanswered(read))]) == sorted(asked)  # type: ignore[type-var]


# --- what is open ---


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([], None),
        ([user()], None),
        ([user(), said()], 1),
        ([user(), calls("a"), result("a")], 1),
        ([user(), calls("a"), result("a"), user()], None),
        ([result("a")], None),
    ],
)
def test_the_last_answer_is_what_ends_the_transcript(messages: list[Message], index: int | None) -> None:
    assert last_answer(messages) == index


@pytest.mark.parametrize(
    ("messages", "ids"),
    [
        ([], []),
        ([user()], []),
        ([user(), said()], []),
        ([user(), calls("a", "b")], ["a", "b"]),
        ([user(), calls("a", "b"), result("a")], ["b"]),
        ([user(), calls("a", "b"), result("b")], ["a"]),
        ([user(), calls("a", "b"), result("b"), result("a")], []),
        ([user(), calls("a"), result("a"), calls("a")], ["a"]),
        ([user(), calls("a"), result("a"), user()], []),
    ],
)
def test_unanswered_calls_are_those_of_the_last_answer_without_a_result(
    messages: list[Message], ids: list[str]
) -> None:
    assert [call.id for call in unanswered(messages)] == ids


# --- order ---


@pytest.mark.parametrize(
    ("messages", "ordered"),
    [
        ([], []),
        ([user(), said()], [user(), said()]),
        (
            [calls("a", "b", "c"), result("c"), result("b"), result("a")],
            [calls("a", "b", "c"), result("a"), result("b"), result("c")],
        ),
        (
            [calls("a", "b"), result("b"), result("a"), calls("b", "a"), result("a"), result("b")],
            [calls("a", "b"), result("a"), result("b"), calls("b", "a"), result("b"), result("a")],
        ),
        ([calls("a", "b"), result("b")], [calls("a", "b"), result("b")]),
        ([calls("a"), result("x"), result("a")], [calls("a"), result("x"), result("a")]),
        ([calls("a"), result("a"), result("x")], [calls("a"), result("a"), result("x")]),
        ([result("b"), result("a")], [result("b"), result("a")]),
    ],
)
def test_results_stand_in_the_order_of_their_calls(messages: list[Message], ordered: list[Message]) -> None:
    assert in_call_order(messages) == ordered


_MESSAGES = st.lists(
    st.one_of(
        st.sampled_from([user(), said(), system("x")]),
        st.lists(st.sampled_from("abcd"), max_size=4, unique=True).map(lambda ids: calls(*ids)),
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xy")).map(lambda pair: result(*pair)),
    ),
    max_size=12,
)


@given(_MESSAGES)
def test_ordering_loses_and_adds_nothing(messages: list[Message]) -> None:
    assert sorted(map(repr, in_call_order(messages))) == sorted(map(repr, messages))


@given(_MESSAGES)
def test_ordering_moves_results_only_within_their_turn(messages: list[Message]) -> None:
    assert [message.role for message in in_call_order(messages)] == [message.role for message in messages]


@given(_MESSAGES)
def test_what_is_ordered_stays_as_it_is(messages: list[Message]) -> None:
    assert in_call_order(in_call_order(messages)) == in_call_order(messages)


@given(st.permutations("abcdef"))
def test_results_of_one_turn_are_ordered_whatever_finished_first(ids: list[str]) -> None:
    ordered = in_call_order([calls(*"abcdef"), *(result(call_id) for call_id in ids)])

    assert [message.tool_call_id for message in ordered[1:]] == list("abcdef")


# --- gaps ---


def lost(call_id: str) -> Message:
    message = result_message(ToolCall(id=call_id, name="look"), Unknown(), KIB)
    assert message is not None
    return message


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ([user(), calls("a"), result("a"), said()], [user(), calls("a"), result("a"), said()]),
        ([user(), calls("a", "b")], [user(), calls("a", "b")]),
        ([user(), calls("a", "b"), result("b")], [user(), calls("a", "b"), result("b")]),
        ([user(), calls("a"), user("and?")], [user(), calls("a"), lost("a"), user("and?")]),
        (
            [user(), calls("a", "b", "c"), result("c"), said()],
            [user(), calls("a", "b", "c"), lost("a"), lost("b"), result("c"), said()],
        ),
        ([user(), calls("a"), calls("b")], [user(), calls("a"), lost("a"), calls("b")]),
        ([user(), result("x"), said()], [user(), said()]),
        ([calls("a"), result("a"), result("a", "again")], [calls("a"), result("a")]),
        ([calls("a", "b"), result("b"), result("a")], [calls("a", "b"), result("a"), result("b")]),
        ([], []),
    ],
)
def test_gaps_of_a_stored_transcript_are_mended_for_the_model(messages: list[Message], seen: list[Message]) -> None:
    assert mended(messages) == seen


@given(_MESSAGES.map(lambda messages: [message for message in messages if message.role != "system"]))
def test_a_mended_transcript_is_one_that_may_be_read(messages: list[Message]) -> None:
    seen = mended(messages)

    assert read_transcript(seen or [user()]) == (seen or [user()])


# --- notices ---


@pytest.mark.parametrize(
    ("view", "seen"),
    [
        ([system("p"), user()], [system("p"), user(), system("W")]),
        ([system("p"), user(), said()], [system("p"), user(), said(), system("W")]),
        (
            [system("p"), user(), calls("a"), result("a")],
            [system("p"), user(), system("W"), calls("a"), result("a")],
        ),
        (
            [user(), calls("a"), result("a"), calls("b", "c"), result("b"), result("c")],
            [user(), calls("a"), result("a"), system("W"), calls("b", "c"), result("b"), result("c")],
        ),
        (
            [user(), calls("a"), result("a"), user("and?")],
            [user(), calls("a"), result("a"), user("and?"), system("W")],
        ),
    ],
)
def test_a_warning_never_stands_between_a_call_and_its_result(view: list[Message], seen: list[Message]) -> None:
    assert with_notices(view, "W", None) == seen


def test_a_nudge_stands_at_the_end() -> None:
    view = [user(), calls("a"), result("a")]

    assert with_notices(view, "W", "N") == [user(), system("W"), calls("a"), result("a"), system("N")]


def test_without_notices_the_view_is_the_same() -> None:
    assert with_notices([user(), calls("a")], None, None) == [user(), calls("a")]


def test_notices_leave_the_given_view_alone() -> None:
    view = [user(), calls("a"), result("a")]
    with_notices(view, "W", "N")

    assert view == [user(), calls("a"), result("a")]


def test_a_warning_is_cleaned() -> None:
    assert with_notices([], "a\0", None) == [system("a\ufffd")]


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
        usage=Usage(input_tokens=1),
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


def test_a_repeated_id_is_made_anew() -> None:
    message = answered({"id": "a", "name": "look"}, {"id": "a", "name": "look"}, {"id": "a", "name": "look"})

    assert ids_of(message) == ["a", "call_3_1", "call_3_2"]


def test_an_id_of_an_earlier_turn_is_made_anew() -> None:
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


def test_arguments_that_are_no_object_are_cut_like_text() -> None:
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
