"""The loop ends a run that would not end otherwise: iterations, turns without progress, tokens."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from support.loops import BAD, OK, after_turn, call, calls, started, text

from standfast import DiminishingReturns, Question, TerminalError, TokenBudget, Usage
from standfast.agent_loop import Action, AskHuman, CallModel, CallTools, Finish, LoopState, next_action
from standfast.tools import Cancelled, Failed, Outcome, Terminated, Unknown


def after_turns(state: LoopState, outcomes: Iterable[Outcome]) -> LoopState:
    for outcome in outcomes:
        state = after_turn(state, outcome)
    return state


# --- max-iterations ---


def test_max_iterations_end_a_run_that_never_stops_calling() -> None:
    state = started(max_iterations=3)
    actions = []
    for _ in range(3):
        state = after_turn(state, OK, content="still busy")
        actions.append(next_action(state))

    assert actions == [CallModel(), CallModel(), Finish("max-iterations", "still busy")]


def test_the_calls_of_the_last_iteration_are_still_run() -> None:
    state = started(max_iterations=1).replied(calls(call("a")))

    assert next_action(state) == CallTools(((call("a"),),))


def test_a_text_in_the_last_iteration_is_complete() -> None:
    assert next_action(started(max_iterations=1).replied(text("just in time"))) == Finish("complete", "just in time")


def test_a_run_that_continues_counts_on() -> None:
    state = dataclasses.replace(started(max_iterations=3), iterations=3)

    assert next_action(state) == Finish("max-iterations", "")


# --- stuck ---


@pytest.mark.parametrize(
    ("limits", "outcomes", "action"),
    [
        ({"stuck_threshold": 2}, [BAD], CallModel()),
        ({"stuck_threshold": 2}, [BAD, BAD], Finish("stuck", "")),
        ({"stuck_threshold": 2}, [BAD, OK, BAD], CallModel()),
        ({"stuck_threshold": 2}, [BAD, OK, BAD, BAD], Finish("stuck", "")),
        ({"stuck_threshold": 1}, [BAD], Finish("stuck", "")),
        ({}, [BAD, BAD, BAD], Finish("stuck", "")),
        ({"stuck_threshold": 0}, [BAD] * 10, CallModel()),
        ({"stuck_threshold": 3, "max_iterations": 3}, [BAD] * 3, Finish("stuck", "")),
        ({"stuck_threshold": 4, "max_iterations": 3}, [BAD] * 3, Finish("max-iterations", "")),
    ],
)
def test_a_run_is_stuck_after_turns_without_a_success(
    limits: dict[str, Any], outcomes: list[Outcome], action: Action
) -> None:
    assert next_action(after_turns(started(**limits), outcomes)) == action


@pytest.mark.parametrize(
    "outcome",
    [BAD, Failed("x", raised=True, retryable=True), Unknown(), Cancelled("x"), Terminated(TerminalError("x"))],
    ids=lambda outcome: type(outcome).__name__,
)
def test_only_a_result_is_a_success(outcome: Outcome) -> None:
    assert next_action(after_turn(started(stuck_threshold=1), outcome)) == Finish("stuck", "")


def test_one_success_among_failures_is_progress() -> None:
    assert next_action(after_turn(started(stuck_threshold=1), BAD, OK, BAD)) == CallModel()


def test_a_stuck_run_that_may_retry_is_nudged_once() -> None:
    nudge = "No tool call of your last 2 turns succeeded. Try another way, or explain the obstacle."
    state = started(stuck_threshold=2, on_stuck="retry")
    actions = []
    for _ in range(4):
        state = after_turn(state, BAD)
        actions.append(next_action(state))

    assert actions == [CallModel(), CallModel(nudge=nudge), CallModel(), Finish("stuck", "")]


@pytest.mark.parametrize(("retries", "turns"), [(0, 1), (1, 2), (3, 4)])
def test_a_stuck_run_retries_as_often_as_allowed(retries: int, turns: int) -> None:
    state = started(stuck_threshold=1, on_stuck="retry", stuck_retries=retries)

    assert next_action(after_turns(state, [BAD] * (turns - 1))) != Finish("stuck", "")
    assert next_action(after_turns(state, [BAD] * turns)) == Finish("stuck", "")


def test_a_nudge_is_given_to_one_model_call() -> None:
    nudged = after_turn(started(stuck_threshold=1, on_stuck="retry"), BAD)

    assert next_action(after_turn(nudged, OK)) == CallModel()


def test_a_stuck_run_may_escalate_to_a_person() -> None:
    state = after_turns(started(stuck_threshold=2, on_stuck="escalate"), [BAD, BAD])

    assert next_action(state) == AskHuman(
        Question(question="No tool call of the last 2 turns succeeded. How should the agent go on?")
    )


def test_an_escalation_that_is_answered_continues_with_the_model() -> None:
    state = after_turns(started(stuck_threshold=2, on_stuck="escalate"), [BAD, BAD]).answered()

    assert next_action(state) == CallModel()
    assert next_action(after_turn(state, BAD)) == CallModel()
    assert isinstance(next_action(after_turns(state, [BAD, BAD])), AskHuman)


def test_a_new_message_starts_counting_again() -> None:
    state = after_turn(started(stuck_threshold=2), BAD).with_user_message()

    assert next_action(after_turn(state, BAD)) == CallModel()


def test_calls_that_a_limit_refused_count_as_no_success() -> None:
    state = started(stuck_threshold=1, max_tool_calls=1).replied(calls(call("a"), call("b")))
    action = next_action(state)
    assert isinstance(action, CallTools)

    assert next_action(state.settled([(call("a"), BAD), *action.settled])) == Finish("stuck", "")


# --- tokens ---


def test_a_budget_ends_the_run_before_the_next_call() -> None:
    state = started(token_budget=TokenBudget(1_000, stop_threshold=0.9))
    state = after_turn(state, OK, tokens=500)
    assert next_action(state) == CallModel()
    state = state.replied(calls(call("a"), content="more", tokens=500))

    assert next_action(state.settled([(call("a"), Cancelled("x"))])) == Finish("token-budget-exhausted", "more")
    assert state.usage == Usage(input_tokens=1_000)


def test_calls_that_a_budget_does_not_pay_for_are_cancelled() -> None:
    state = started(token_budget=1_000).replied(calls(call("a"), call("b"), tokens=900))
    reason = Cancelled("Not run: the run ended with token-budget-exhausted")

    assert next_action(state) == CallTools((), ((call("a"), reason), (call("b"), reason)))


def test_a_text_over_the_budget_is_still_complete() -> None:
    assert next_action(started(token_budget=1_000).replied(text("hi", 5_000))) == Finish("complete", "hi")


@pytest.mark.parametrize(
    ("tokens", "warnings"),
    [
        ([100, 100, 100], [False, False, False]),
        ([800, 10, 10], [True, False, False]),
        ([799, 1, 10], [False, True, False]),
        ([500, 350, 10], [False, True, False]),
    ],
)
def test_a_budget_warns_once_at_the_first_crossing(tokens: list[int], warnings: list[bool]) -> None:
    state = started(token_budget=1_000)
    given_warnings = []
    for count in tokens:
        state = after_turn(state, OK, tokens=count)
        action = next_action(state)
        given_warnings.append(isinstance(action, CallModel) and action.warning is not None)

    assert given_warnings == warnings


def test_a_warning_says_what_was_used_and_the_budget_has_the_words() -> None:
    budget = TokenBudget(1_000, warning_message=lambda percent, used, most: f"{percent}% {used}/{most}")
    state = after_turn(started(token_budget=budget), OK, tokens=850)

    assert next_action(state) == CallModel(warning=850)
    assert budget.warning(850) == "85% 850/1000"


def test_a_jump_over_both_thresholds_only_ends_the_run() -> None:
    state = after_turn(started(token_budget=1_000), OK, tokens=950)

    assert (next_action(state), state.warning) == (Finish("token-budget-exhausted", ""), None)


def test_without_usage_nothing_is_counted() -> None:
    state = after_turns(started(token_budget=1, diminishing_returns=DiminishingReturns(calls=1)), [OK, OK])

    assert (next_action(state), state.usage) == (CallModel(), None)


def test_without_a_budget_usage_is_only_counted() -> None:
    state = after_turn(after_turn(started(), OK, tokens=10**9), OK, tokens=1)

    assert (next_action(state), state.usage) == (CallModel(), Usage(input_tokens=10**9 + 1))


def test_usage_of_an_earlier_run_counts() -> None:
    state = dataclasses.replace(started(token_budget=1_000), usage=Usage(input_tokens=500, output_tokens=300))

    assert after_turn(state, OK, tokens=100).usage == Usage(input_tokens=600, output_tokens=300)
    assert next_action(after_turn(state, OK, tokens=100)) == Finish("token-budget-exhausted", "")


def test_tokens_of_an_invoked_agent_count() -> None:
    state = after_turn(started(token_budget=1_000), OK, tokens=100).spent(Usage(output_tokens=800))

    assert next_action(state) == Finish("token-budget-exhausted", "")


@pytest.mark.parametrize("on_terminal_tool_error", ["stop", "fail"])
def test_an_end_is_not_replaced_by_that_of_the_budget(on_terminal_tool_error: str) -> None:
    error = TerminalError("gone")
    state = after_turn(started(on_terminal_tool_error, token_budget=1_000), Terminated(error))

    assert next_action(state.spent(Usage(input_tokens=5_000))) == next_action(state)


def test_a_stuck_run_stays_stuck_whatever_it_spent() -> None:
    state = after_turn(started(stuck_threshold=1, token_budget=1_000), BAD).spent(Usage(input_tokens=5_000))

    assert next_action(state) == Finish("stuck", "")


@pytest.mark.parametrize(
    ("tokens", "status"),
    [
        ([100, 100], None),
        ([100, 100, 100], "diminishing-returns"),
        ([100, 100, 500, 100, 100], None),
        ([100, 100, 500, 100, 100, 100], "diminishing-returns"),
        ([499, 499, 499], "diminishing-returns"),
        ([500, 500, 500, 500], None),
    ],
)
def test_short_answers_in_a_row_end_the_run(tokens: list[int], status: str | None) -> None:
    state = started(diminishing_returns=DiminishingReturns(calls=3, min_tokens=500))
    for count in tokens:
        state = after_turn(state, OK, content="so far", tokens=count)

    assert next_action(state) == (CallModel() if status is None else Finish("diminishing-returns", "so far"))


def test_a_short_last_answer_is_complete() -> None:
    state = started(diminishing_returns=DiminishingReturns(calls=1))

    assert next_action(state.replied(text("hi", 10))) == Finish("complete", "hi")


def test_the_calls_of_a_run_that_ended_by_its_length_are_cancelled() -> None:
    state = started(diminishing_returns=DiminishingReturns(calls=1)).replied(calls(call("a"), tokens=10))

    assert next_action(state) == CallTools(
        (), ((call("a"), Cancelled("Not run: the run ended with diminishing-returns")),)
    )
