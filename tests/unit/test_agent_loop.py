"""The loop as a table: what has happened in, what is to be done out. Nothing is called and nothing is waited for."""

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import DiminishingReturns, Loop, Message, Question, TerminalError, TokenBudget, ToolCall, Usage
from holdfast.agent_loop import (
    Action,
    AskHuman,
    CallModel,
    CallTools,
    Finish,
    LoopState,
    cancelled,
    cut_off,
    next_action,
)
from holdfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown


@dataclass(frozen=True)
class Facts:
    parallel: bool = False
    safe_to_retry: bool = False
    verify: object | None = None


TOOLS = {
    "post": Facts(),
    "read": Facts(safe_to_retry=True),
    "fetch": Facts(safe_to_retry=True, parallel=True),
    "pay": Facts(verify=print),
}
OK = Returned("ok")
BAD = Failed("no")


def call(call_id: str, name: str = "post") -> ToolCall:
    return ToolCall(id=call_id, name=name)


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def text(content: str = "done", tokens: int | None = None) -> Message:
    usage = None if tokens is None else Usage(input_tokens=tokens)
    return Message(role="assistant", content=content, usage=usage)


def calls(*asked: ToolCall, content: str = "", tokens: int | None = None) -> Message:
    return text(content, tokens).model_copy(update={"tool_calls": asked})


def result(call_id: str) -> Message:
    return Message(role="tool", content="ok", tool_call_id=call_id, tool_name="post", status="completed")


def started(on_terminal_tool_error: Any = "message", **limits: Any) -> LoopState:
    state = LoopState(loop=Loop(**limits), tools=TOOLS, on_terminal_tool_error=on_terminal_tool_error)
    return state.fold([user()], recovering=False)


def after_turn(state: LoopState, *outcomes: Outcome, content: str = "", tokens: int | None = None) -> LoopState:
    """Return the state after a model call that asked for one tool call per outcome, and after these outcomes."""
    asked = [call(f"c{state.iterations}_{number}") for number in range(len(outcomes))]
    replied = state.replied(calls(*asked, content=content, tokens=tokens))
    return replied.settled(tuple(zip(asked, outcomes, strict=True)))


def after_turns(state: LoopState, outcomes: Iterable[Outcome]) -> LoopState:
    for outcome in outcomes:
        state = after_turn(state, outcome)
    return state


def batches(action: Action) -> list[str]:
    assert isinstance(action, CallTools)
    return ["".join(asked.id for asked in batch) for batch in action.batches]


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


def test_a_new_message_goes_on_after_the_end() -> None:
    state = started().replied(text("hello")).told()

    assert next_action(state) == CallModel()


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


def test_a_run_that_goes_on_counts_on() -> None:
    state = dataclasses.replace(started(max_iterations=3), iterations=3)

    assert next_action(state) == Finish("max-iterations", "")


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
def test_every_outcome_but_a_result_is_no_success(outcome: Outcome) -> None:
    assert next_action(after_turn(started(stuck_threshold=1), outcome)) == Finish("stuck", "")


def test_one_success_among_failures_is_progress() -> None:
    assert next_action(after_turn(started(stuck_threshold=1), BAD, OK, BAD)) == CallModel()


def test_a_stuck_run_that_may_retry_is_nudged_once() -> None:
    nudge = "No tool call of your last 2 turns succeeded. Try another way, or say what hinders you."
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


def test_an_escalation_that_is_answered_goes_on_with_the_model() -> None:
    state = after_turns(started(stuck_threshold=2, on_stuck="escalate"), [BAD, BAD]).answered()

    assert next_action(state) == CallModel()
    assert next_action(after_turn(state, BAD)) == CallModel()
    assert isinstance(next_action(after_turns(state, [BAD, BAD])), AskHuman)


def test_a_new_message_starts_counting_anew() -> None:
    state = after_turn(started(stuck_threshold=2), BAD).told()

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


# --- terminal errors ---

GONE = TerminalError("gone", 404)


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        ("message", CallModel()),
        ("stop", Finish("error", "gone")),
        ("fail", Finish("error", "gone", GONE)),
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
        "error", "gone", GONE
    )


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        ("message", AskHuman(Question(question="Who?", tool_call_id="c0_0"))),
        ("stop", Finish("error", "gone")),
        ("fail", Finish("error", "gone", GONE)),
    ],
)
def test_a_question_beside_a_terminal_error_is_asked_only_if_the_run_goes_on(mode: str, action: Action) -> None:
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


def test_a_terminal_error_without_a_text_is_named_by_its_class() -> None:
    assert next_action(after_turn(started("stop"), Terminated(TerminalError("")))) == Finish("error", "TerminalError")


def test_the_text_of_a_terminal_error_is_cleaned() -> None:
    assert next_action(after_turn(started("stop"), Terminated(TerminalError("a\0\ud800")))) == Finish(
        "error", "a\ufffd\ufffd"
    )


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


# --- fold: what a transcript leaves ---


@pytest.mark.parametrize(
    ("messages", "action"),
    [
        ([user()], CallModel()),
        ([user(), text("hello")], Finish("complete", "hello")),
        ([user(), text("")], Finish("complete", "")),
        ([user(), text("hello"), user("and?")], CallModel()),
        ([user(), calls(call("a"), content="wait"), result("a")], CallModel()),
        ([user(), calls(call("a"))], CallTools(((call("a"),),))),
        ([user(), calls(call("a"), call("b")), result("a")], CallTools(((call("b"),),))),
        ([user(), calls(call("a"), call("b")), result("b")], CallTools(((call("a"),),))),
        ([user(), calls(call("a")), result("a"), calls(call("a"))], CallTools(((call("a"),),))),
        ([], CallModel()),
    ],
)
def test_a_transcript_says_what_is_next(messages: list[Message], action: Action) -> None:
    state = LoopState(loop=Loop(), tools=TOOLS).fold(messages, recovering=False)

    assert next_action(state) == action


def test_folding_gives_the_state_that_the_run_had() -> None:
    asked = (call("a"), call("b", "read"))
    live = started().replied(calls(*asked, content="wait"))
    folded = started().fold([user(), calls(*asked, content="wait")], recovering=False)

    assert dataclasses.replace(folded, iterations=live.iterations) == live


def test_a_transcript_keeps_the_response_for_a_run_that_may_not_go_on() -> None:
    messages = [user(), calls(call("a"), content="so far"), result("a")]
    state = dataclasses.replace(started(max_iterations=1), iterations=1).fold(messages, recovering=False)

    assert next_action(state) == Finish("max-iterations", "so far")


def test_a_call_that_waits_for_a_person_is_not_run() -> None:
    question = Question(question="Who?", tool_call_id="a")
    state = started().fold([user(), calls(call("a"))], recovering=True, questions=(question,))

    assert next_action(state) == AskHuman(question)


def test_an_orphan_beside_a_question_is_settled_first() -> None:
    question = Question(question="Who?", tool_call_id="a")
    state = started().fold([user(), calls(call("a"), call("b", "read"))], recovering=True, questions=(question,))

    assert next_action(state) == CallTools(((call("b", "read"),),), recovering=True)
    assert next_action(state.settled([(call("b", "read"), OK)])) == AskHuman(question)


def test_an_escalation_that_waits_is_asked_again() -> None:
    question = Question(question="How should the agent go on?")
    state = started().fold([user(), calls(call("a")), result("a")], recovering=True, questions=(question,))

    assert (next_action(state), next_action(state.answered())) == (AskHuman(question), CallModel())


# --- recovery ---


def recovering(*asked: ToolCall, results: int = 0, **limits: Any) -> LoopState:
    messages = [user(), calls(*asked), *(result(answered.id) for answered in asked[:results])]
    return LoopState(loop=Loop(**limits), tools=TOOLS).fold(messages, recovering=True)


@pytest.mark.parametrize(
    ("name", "settled"),
    [("post", [Unknown()]), ("gone", [Unknown()]), ("read", []), ("fetch", []), ("pay", [])],
)
def test_an_orphan_is_run_only_if_that_is_harmless_or_can_be_verified(name: str, settled: list[Outcome]) -> None:
    action = next_action(recovering(call("a", name)))

    assert isinstance(action, CallTools)
    assert ([outcome for _, outcome in action.settled], bool(action.batches)) == (settled, not settled)
    assert action.recovering


def test_only_unanswered_calls_are_recovered() -> None:
    assert next_action(recovering(call("a", "read"), call("b", "read"), results=1)) == CallTools(
        ((call("b", "read"),),), recovering=True
    )


def test_nothing_is_recovered_when_everything_is_answered() -> None:
    assert next_action(recovering(call("a"), results=1)) == CallModel()


def test_orphans_are_settled_together_with_those_that_run_again() -> None:
    asked = (call("1", "fetch"), call("2", "post"), call("3", "fetch"), call("4", "read"))

    assert next_action(recovering(*asked)) == CallTools(
        ((asked[0], asked[2]), (asked[3],)), ((asked[1], Unknown()),), recovering=True
    )


def test_calls_that_the_limit_had_refused_are_refused_again() -> None:
    asked = [call(str(number), "read") for number in range(3)]
    action = next_action(recovering(*asked, max_tool_calls=2))

    assert isinstance(action, CallTools)
    assert batches(action) == ["0", "1"]
    assert [(settled.id, type(outcome)) for settled, outcome in action.settled] == [("2", Failed)]


def test_after_recovery_the_model_is_called() -> None:
    state = recovering(call("a")).settled([(call("a"), Unknown())])

    assert (next_action(state), state.recovering) == (CallModel(), False)


def test_calls_that_a_crash_took_do_not_make_an_agent_stuck() -> None:
    state = recovering(call("a"), stuck_threshold=1).settled([(call("a"), Unknown())])

    assert next_action(state) == CallModel()


def test_calls_of_a_later_answer_are_no_orphans() -> None:
    state = recovering(call("a")).settled([(call("a"), Unknown())]).replied(calls(call("b")))

    assert next_action(state) == CallTools(((call("b"),),))


def test_the_result_of_a_lost_call_is_a_durability_error() -> None:
    (message,) = recovering(call("a")).results([(call("a"), Unknown())])

    assert '"kind": "tool-durability-error"' in message.content


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
    ("safe", "after_timeout", "after_cancel"), [(True, Failed, Cancelled), (False, Unknown, Unknown)]
)
def test_a_call_that_was_stopped_is_unknown_if_it_has_effects(
    safe: bool, after_timeout: type, after_cancel: type
) -> None:
    facts = Facts(safe_to_retry=safe)

    assert (type(cut_off(facts, "look", 5)), type(cancelled(facts))) == (after_timeout, after_cancel)


def test_a_tool_that_does_not_exist_was_cancelled_without_effects() -> None:
    assert isinstance(cancelled(None), Cancelled)
