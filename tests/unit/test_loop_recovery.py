"""The loop's view of a stored transcript: where it continues, and the fate of lost calls."""

import dataclasses
from typing import Any

import pytest
from support.loops import OK, TOOLS, Facts, batches, call, calls, started, text, user

from standfast import Loop, Message, Question, ToolCall
from standfast.agent_loop import (
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
from standfast.tools import Cancelled, Failed, Outcome, Unknown


def result(call_id: str) -> Message:
    return Message(role="tool", content="ok", tool_call_id=call_id, tool_name="post", status="completed")


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


def test_a_transcript_keeps_the_response_for_a_run_that_may_not_continue() -> None:
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


def test_calls_of_a_later_answer_are_not_orphans() -> None:
    state = recovering(call("a")).settled([(call("a"), Unknown())]).replied(calls(call("b")))

    assert next_action(state) == CallTools(((call("b"),),))


def test_the_result_of_a_lost_call_is_a_durability_error() -> None:
    (message,) = recovering(call("a")).results([(call("a"), Unknown())])

    assert '"kind": "tool-durability-error"' in message.content


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
