"""The scope of guardrails and the meaning of their verdicts, without a driver."""

import pytest

from standfast import Agent, Guardrail, Message, StandfastError, ToolCall, Tripped
from standfast.agent_loop import CallTools, Finish, LoopState, next_action, refusal_of, unheard_by_model, withheld
from standfast.tools import Failed

CHECK = Guardrail(lambda ctx, said: None)
TRIPPED = Tripped("no", {}, "rule")


def state(*messages: Message, recovering: bool = False) -> LoopState:
    agent = Agent("a")
    return LoopState(loop=agent.loop, tools=agent.tool_map).fold(messages, recovering=recovering)


def test_a_withheld_answer_ends_the_run_until_the_user_says_something() -> None:
    answer = withheld(Message(role="assistant", content="secret"), TRIPPED)
    said = Message(role="user", content="hi")
    assert answer.content == "[withheld by the guardrail rule: no]"
    ended = next_action(state(said, answer))
    assert ended == Finish("guardrail-tripped", answer.content, tripped=TRIPPED)
    assert not isinstance(next_action(state(said, answer, said)), Finish)


def test_a_refused_call_is_refused_whether_or_not_an_earlier_run_may_have_run_it() -> None:
    refused = (Tripped("no", {}, "rule", "c1"),)
    asks = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="x", arguments={}),), tripped=refused)
    for recovering in (False, True):
        action = next_action(state(Message(role="user"), asks, recovering=recovering))
        assert isinstance(action, CallTools)
        assert [outcome for _, outcome in action.settled] == [Failed("Not run: the guardrail rule refused it: no")]


def test_only_what_the_user_has_said_since_the_last_answer_is_checked() -> None:
    said = [Message(role="user", content=text) for text in "abc"]
    assert unheard_by_model([said[0], Message(role="assistant"), *said[1:]]) == said[1:]
    assert unheard_by_model([said[0], Message(role="assistant")]) == []


@pytest.mark.parametrize("verdict", [False, "", 0, Tripped(""), Tripped("x", {"a": object()}), Tripped("x", 5), ["no"]])
def test_a_value_that_is_not_a_verdict_lets_nothing_pass(verdict: object) -> None:
    with pytest.raises(StandfastError, match="Guardrail"):
        refusal_of(CHECK, verdict)


@pytest.mark.parametrize("verdict", [None, True])
def test_nothing_and_true_let_a_value_pass(verdict: object) -> None:
    assert refusal_of(CHECK, verdict) is None


def test_a_refusal_survives_the_json_of_a_message() -> None:
    answer = withheld(Message(role="assistant"), Tripped("no", {"a": [1]}, "rule"))
    assert Message.model_validate_json(answer.model_dump_json()) == answer
