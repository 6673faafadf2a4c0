"""The loop as a table: events in, actions out. Nothing is called and nothing is waited for."""

import dataclasses
import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loops import BAD, OK, TOOLS, after_turn, batches, call, calls, started, text

from standfast import Question, TerminalError, ToolCall
from standfast.agent_loop import (
    Action,
    AskHuman,
    CallModel,
    CallTools,
    Correct,
    Finish,
    next_action,
    nobody_answered,
    outcome_of,
)
from standfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

# --- model, tools, end ---


def test_a_run_starts_with_a_model_call() -> None:
    assert next_action(started()) == CallModel()


def test_a_text_ends_the_run() -> None:
    state = started().replied(text("hello"))

    assert (next_action(state), state.iterations) == (Finish("complete", "hello"), 1)


def test_an_empty_answer_ends_the_run_too() -> None:
    assert next_action(started().replied(text(""))) == Finish("complete", "")


def test_a_finished_run_finishes_again() -> None:
    state = started().replied(text("hello"))

    assert [next_action(state), next_action(state)] == [Finish("complete", "hello")] * 2


def test_calls_are_run() -> None:
    state = started().replied(calls(call("a")))

    assert next_action(state) == CallTools(((call("a"),),))


def test_after_the_calls_the_model_is_called_again() -> None:
    state = after_turn(started(), OK, BAD)

    assert (next_action(state), state.iterations, state.open_calls) == (CallModel(), 1, ())


def test_a_model_that_cannot_be_called_ends_the_run_and_counts() -> None:
    state = started().failed("no connection")

    assert (next_action(state), state.iterations) == (Finish("error", "no connection"), 1)


def test_a_state_is_never_changed() -> None:
    state = started()
    state.replied(calls(call("a"))).settled([(call("a"), OK)])

    assert state == started()


def test_a_state_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        started().iterations = 5  # type: ignore[misc]


def test_a_new_message_continues_after_the_end() -> None:
    state = started().replied(text("hello")).with_user_message()

    assert next_action(state) == CallModel()


# --- batches ---


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("f", ["1"]),
        ("ff", ["12"]),
        ("pp", ["1", "2"]),
        ("fpff", ["1", "2", "34"]),
        ("pfp", ["1", "2", "3"]),
        ("ffpff", ["12", "3", "45"]),
        ("fuf", ["1", "2", "3"]),
        ("uu", ["1", "2"]),
    ],
)
def test_parallel_calls_that_stand_next_to_each_other_share_a_batch(asked: str, expected: list[str]) -> None:
    names = {"f": "fetch", "p": "post", "u": "undeclared"}
    state = started().replied(calls(*(call(str(place), names[kind]) for place, kind in enumerate(asked, 1))))

    assert batches(next_action(state)) == expected


@given(st.lists(st.sampled_from([*TOOLS, "undeclared"]), min_size=1, max_size=20))
def test_batches_hold_every_call_once_and_in_order(names: list[str]) -> None:
    asked = tuple(call(str(place), name) for place, name in enumerate(names))
    action = next_action(started().replied(calls(*asked)))

    assert isinstance(action, CallTools)
    assert tuple(itertools.chain(*action.batches)) == asked


def test_calls_over_max_tool_calls_are_refused_to_the_model() -> None:
    asked = [call(str(number), "fetch") for number in range(4)]
    refusal = Failed("Not run: at most 2 tool calls per turn (max_tool_calls); ask again for the others")

    assert next_action(started(max_tool_calls=2).replied(calls(*asked))) == CallTools(
        ((asked[0], asked[1]),), ((asked[2], refusal), (asked[3], refusal))
    )


def test_64_calls_per_turn_are_run_unless_told_otherwise() -> None:
    action = next_action(started().replied(calls(*(call(str(number)) for number in range(65)))))

    assert isinstance(action, CallTools)
    assert (len(action.batches), len(action.settled)) == (64, 1)


# --- questions ---


def test_a_question_waits_for_a_person() -> None:
    state = after_turn(started(), OK, Asked("Who?"))

    assert next_action(state) == AskHuman(Question(question="Who?", tool_call_id="c0_1"))


def test_two_questions_of_one_turn_are_asked_one_after_the_other_in_call_order() -> None:
    state = after_turn(started(), Asked("Who?"), OK, Asked("How?"))
    actions = [next_action(state), next_action(state.answered()), next_action(state.answered().answered())]

    assert actions == [
        AskHuman(Question(question="Who?", tool_call_id="c0_0")),
        AskHuman(Question(question="How?", tool_call_id="c0_2")),
        CallModel(),
    ]


def test_a_question_has_no_result_yet() -> None:
    messages = started().results([(call("a"), OK), (call("b"), Asked("Who?"))])

    assert [message.tool_call_id for message in messages] == ["a"]


def test_an_answer_is_progress() -> None:
    state = after_turn(started(stuck_threshold=1), BAD, Asked("Who?")).answered()

    assert next_action(state) == CallModel()


def test_a_question_in_the_last_iteration_is_still_asked() -> None:
    state = after_turn(started(max_iterations=1), Asked("Who?"))

    assert isinstance(next_action(state), AskHuman)
    assert next_action(state.answered()) == Finish("max-iterations", "")


# --- answers that do not fit the agent's output ---


def test_an_answer_that_fits_ends_the_run() -> None:
    finish = Finish("complete", "{}")

    assert started(output_retries=1).judged(finish, None) is finish


def test_the_model_is_asked_again_as_often_as_the_loop_says_and_then_the_run_ends_with_an_error() -> None:
    state, finish = started(output_retries=1), Finish("complete", "no")
    action = state.judged(finish, "it is not JSON")

    assert isinstance(action, Correct)
    assert "it is not JSON" in action.message
    assert next_action(state.replied(text("no")).corrected()) == CallModel()
    assert state.corrected().judged(finish, "it is not JSON") == Finish("error", "no")


def test_what_is_not_a_final_answer_is_not_corrected() -> None:
    finish = Finish("max-iterations", "no")

    assert finish.answer is None
    assert started(output_retries=1).judged(finish, "it is not JSON") is finish


# --- terminal errors ---


GONE = TerminalError("gone", 404)


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        ("message", CallModel()),
        ("stop", Finish("error", "gone")),
        ("fail", Finish("error", "gone", raises=True)),
    ],
)
def test_what_follows_a_terminal_error(mode: str, action: Action) -> None:
    assert next_action(after_turn(started(mode), OK, Terminated(GONE), OK)) == action


@pytest.mark.parametrize(("mode", "stops"), [("message", False), ("stop", False), ("fail", True)])
def test_only_a_run_that_is_to_fail_starts_no_further_call(mode: str, stops: bool) -> None:
    assert started(mode).stops_at(Terminated(GONE)) is stops


@pytest.mark.parametrize("outcome", [OK, BAD, Unknown(), Asked("Who?"), Cancelled("x")])
def test_no_other_outcome_stops_the_turn(outcome: Outcome) -> None:
    assert not started("fail").stops_at(outcome)


def test_the_first_terminal_error_in_call_order_decides() -> None:
    assert next_action(after_turn(started("fail"), Terminated(GONE), Terminated(TerminalError("later")))) == Finish(
        "error", "gone", raises=True
    )


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        ("message", AskHuman(Question(question="Who?", tool_call_id="c0_0"))),
        ("stop", Finish("error", "gone")),
        ("fail", Finish("error", "gone", raises=True)),
    ],
)
def test_a_question_beside_a_terminal_error_is_asked_only_if_the_run_continues(mode: str, action: Action) -> None:
    assert next_action(after_turn(started(mode), Asked("Who?"), Terminated(GONE))) == action


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        ("message", [("b", "failed"), ("c", "completed")]),
        ("stop", [("a", "cancelled"), ("b", "failed"), ("c", "completed")]),
        ("fail", [("a", "cancelled"), ("b", "failed"), ("c", "completed")]),
    ],
)
def test_every_call_of_a_run_that_ended_has_a_result(mode: str, statuses: list[tuple[str, str]]) -> None:
    messages = started(mode).results(
        [(call("a"), Asked("Who?")), (call("b"), Terminated(GONE)), (call("c"), Returned("x"))]
    )

    assert [(message.tool_call_id, message.status) for message in messages] == statuses


@pytest.mark.parametrize("lost", [Unknown("the line went dead"), Asked("Tool 'pay' was cut off.", unknown=True)])
def test_a_call_of_unknown_outcome_ends_as_the_durability_error_whatever_ends_its_question(lost: Outcome) -> None:
    calls: list[Any] = [(call("a"), lost), (call("b"), Terminated(GONE))]
    (told, _) = started("stop", on_unknown="ask").results(calls)
    (question,) = started(on_unknown="ask").asked(calls[:1])
    late = nobody_answered(question, timedelta(days=30))

    assert outcome_of(told) == Unknown(str(question.unknown).removesuffix("."))
    assert late == Unknown(f"{str(question.unknown).removesuffix('.')}; it was not resolved within 30 days, 0:00:00")
    assert nobody_answered(Question(question="Who?", tool_call_id="a"), timedelta(1)) == Failed(
        "Nobody answered within 1 day, 0:00:00"
    )


def test_a_terminal_error_without_a_text_is_named_by_its_class() -> None:
    assert next_action(after_turn(started("stop"), Terminated(TerminalError("")))) == Finish("error", "TerminalError")


def test_the_text_of_a_terminal_error_is_cleaned() -> None:
    assert next_action(after_turn(started("stop"), Terminated(TerminalError("a\0\ud800")))) == Finish(
        "error", "a\ufffd\ufffd"
    )


# --- every run ends ---


@given(
    st.lists(
        st.lists(
            st.sampled_from([OK, BAD, Unknown(), Asked("Who?"), Cancelled("x"), Terminated(GONE)]),
            min_size=1,
            max_size=3,
        ),
        min_size=8,
        max_size=8,
    ),
    st.sampled_from(["message", "stop", "fail"]),
    st.sampled_from(["stop", "retry", "escalate"]),
)
def test_no_run_calls_the_model_more_often_than_allowed(turns: list[list[Outcome]], mode: str, on_stuck: str) -> None:
    state = started(mode, on_stuck=on_stuck, max_iterations=5, stuck_threshold=2)
    asked: list[ToolCall] = []
    for _ in range(100):
        match next_action(state):
            case CallModel():
                asked = [call(f"c{state.iterations}_{number}") for number in range(len(turns[state.iterations]))]
                state = state.replied(calls(*asked))
            case CallTools():
                outcomes = tuple(zip(asked, turns[state.iterations - 1], strict=True))
                state = state.settled(outcomes)
            case AskHuman():
                state = state.answered()
            case Finish(status):
                assert status in ("max-iterations", "stuck", "error")
                break
    else:
        pytest.fail("the run does not end")

    assert state.iterations <= 5


@pytest.mark.parametrize(
    ("status", "hook"),
    [
        ("complete", "on_complete"),
        ("max-iterations", "on_stuck"),
        ("stuck", "on_stuck"),
        ("token-budget-exhausted", "on_stuck"),
        ("diminishing-returns", "on_stuck"),
        ("error", None),
    ],
)
def test_an_end_is_told_to_one_hook_or_none(status: Any, hook: str | None) -> None:
    assert Finish(status, "").hook == hook
