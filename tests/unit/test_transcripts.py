"""Transcripts: valid ones, unanswered calls, and the model's view."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import user

from standfast import InputError, Message, ToolCall
from standfast.agent_loop import (
    in_call_order,
    last_answer,
    read_transcript,
    repair_transcript,
    result_message,
    unanswered,
    with_notices,
)
from standfast.tools import Unknown


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
def test_a_transcript_that_can_stand_is_read_unchanged(messages: list[Message]) -> None:
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
        ([{"role": "robot"}], "messages[0] is not a message: role: Input should be 'system', 'user', 'assistant' or"),
        ([user(), 5], "messages[1] is not a message: value: Input should be a valid dictionary or instance of Message"),
        ([None], "messages[0] is not a message: value: Input should be a valid dictionary or instance of Message"),
        ("hello", "messages[0] is not a message: value: Input should be a valid dictionary or instance of Message"),
        ({"role": "user"}, "messages[0] is not a message: value: Input should be a valid dictionary or instance of"),
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
def test_what_is_ordered_stays_unchanged(messages: list[Message]) -> None:
    assert in_call_order(in_call_order(messages)) == in_call_order(messages)


@given(st.permutations("abcdef"))
def test_results_of_one_turn_are_ordered_whatever_finished_first(ids: list[str]) -> None:
    ordered = in_call_order([calls(*"abcdef"), *(result(call_id) for call_id in ids)])

    assert [message.tool_call_id for message in ordered[1:]] == list("abcdef")


# --- gaps ---


def lost(call_id: str) -> Message:
    message = result_message(ToolCall(id=call_id, name="look"), Unknown(), 1_024)
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
    assert repair_transcript(messages) == seen


@given(_MESSAGES.map(lambda messages: [message for message in messages if message.role != "system"]))
def test_a_mended_transcript_is_one_that_may_be_read(messages: list[Message]) -> None:
    seen = repair_transcript(messages)

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
