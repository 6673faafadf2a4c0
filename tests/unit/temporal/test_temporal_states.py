"""A run's data survives activities and continue-as-new unchanged: states, progress, facts."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import (
    Agent,
    ContextCompression,
    DiminishingReturns,
    Loop,
    Question,
    RetryPolicy,
    TerminalError,
    TokenBudget,
    Tool,
    Usage,
    tool,
)
from standfast.agent_loop import AskHuman, CallModel, CallTools, Finish, LoopState, next_action
from standfast.temporal.wire.run_state import Call, Down, Progress, Reply, Turn, read_state, write_state
from standfast.temporal.wire.snapshots import GRACE, TIMEOUT, Facts, ToolFacts, tool_facts, write_facts
from standfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


# --- the loop's state, driven through whatever can happen ---

LOOPS = st.builds(
    Loop,
    max_iterations=st.integers(1, 6),
    on_stuck=st.sampled_from(["stop", "retry", "escalate"]),
    stuck_threshold=st.integers(0, 3),
    stuck_retries=st.integers(0, 2),
    on_unknown=st.sampled_from(["tell", "ask"]),
    max_tool_calls=st.integers(1, 3),
    token_budget=st.none() | st.integers(1, 500) | st.builds(TokenBudget, st.integers(1, 500)),
    diminishing_returns=st.none() | st.builds(DiminishingReturns, st.integers(1, 3), st.integers(1, 100)),
)
TEXTS = st.text(max_size=20).filter(str.isprintable)
USAGES = st.none() | st.builds(Usage, input_tokens=st.integers(0, 100), output_tokens=st.integers(0, 100))
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Returned, TEXTS),
    st.builds(Failed, TEXTS),
    st.builds(Asked, TEXTS),
    st.builds(Unknown, TEXTS),
    st.builds(Cancelled, TEXTS),
    st.builds(lambda text: Terminated(TerminalError(text)), TEXTS),
)
TOOLS = {"post": ToolFacts(), "read": ToolFacts(safe_to_retry=True, parallel=True), "pay": ToolFacts(verify=True)}


def next_state(data: st.DataObject, state: LoopState, number: int) -> LoopState | None:
    """Carry out the next action with some result, as a driver does; None at the end."""
    match next_action(state):
        case CallModel():
            if data.draw(st.integers(0, 9)) == 0:
                return state.failed("down")
            names = data.draw(st.lists(st.sampled_from([*TOOLS, "gone"]), max_size=4))
            calls = tuple(Call(f"c{number}_{place}", name, place, "{}") for place, name in enumerate(names))
            reply = Reply(data.draw(TEXTS), calls or None, data.draw(USAGES))
            return state.replied(reply)  # type: ignore[arg-type]
        case CallTools(_, settled):
            known = {call.id: outcome for call, outcome in settled}
            outcomes = [(call, known.get(call.id) or data.draw(OUTCOMES)) for call in state.open_calls]
            state = state.settled(outcomes)
            spent = data.draw(USAGES)
            return state if spent is None else state.spent(spent)
        case AskHuman(question):
            if question.tool_call_id is not None and data.draw(st.booleans()):
                state = state.asked_instead(question, Asked("Again?"))
            return state.answered()
        case Finish(status) if status == "complete" and data.draw(st.booleans()):
            return state.with_user_message()
        case Finish():
            return None


@given(st.data(), LOOPS, st.sampled_from(["message", "stop", "fail"]))
def test_every_state_of_a_run_comes_back_as_it_was(data: st.DataObject, loop: Loop, on_terminal: Any) -> None:
    facts = Facts(loop, TOOLS, on_terminal)
    state: LoopState | None = LoopState(loop=loop, tools=TOOLS, on_terminal_tool_error=on_terminal)
    for number in range(12):
        if state is None:
            return
        written = through_json(write_state(state))
        assert read_state(written, facts) == state
        assert write_state(read_state(written, facts)) == write_state(state)
        state = next_state(data, state, number)


def test_a_new_state_is_written_as_nothing() -> None:
    assert write_state(LoopState(loop=Loop(), tools={})) == {}


def test_the_keys_of_a_written_state_are_pinned() -> None:
    call = Call("c1", "post", 0, "{}")
    state = LoopState(
        loop=Loop(), tools=TOOLS, iterations=3, response="r", finished=True, open_calls=(call,),  # type: ignore[arg-type]
        refused={"c2": "why"}, recovering=True, questions=(Question(question="?", tool_call_id="c1"),),
        verdicts=(Question(question="may?", tool_call_id="c1", gate={"name": "c1"}),),
        progressed=True, idle_turns=1, usage=Usage(input_tokens=1, output_tokens=2), warning=7, warned=True,
        nudge="n", nudges=1, short_calls=2, ended=Finish("error", "e", raises=True),
    )  # fmt: skip
    assert through_json(write_state(state)) == {
        "iterations": 3, "response": "r", "finished": True, "recovering": True, "progressed": True, "idle_turns": 1,
        "warning": 7, "warned": True, "nudge": "n", "nudges": 1, "short_calls": 2,
        "open_calls": [["c1", "post", 0, "{}"]], "refused": {"c2": "why"},
        "questions": [{"question": "?", "tool_call_id": "c1"}], "usage": [1, 2],
        "verdicts": [{"question": "may?", "tool_call_id": "c1", "gate": {"name": "c1"}}],
        "ended": {"status": "error", "response": "e", "raises": True},
    }  # fmt: skip


# --- progress ---


def progress() -> Progress:
    calls = {call.id: call for call in (Call("c1", "post", 0, "{}"), Call("c2", "pay", 1, "{}"))}
    return Progress(
        run="r", opened={"session": "s", "facts": {}, "created": "2026-01-01T00:00:00+00:00", "agent_state": "{}"},
        seq=7, turn=Turn(3, 6, calls, 1, {0: {"returned": "x"}, 1: {"dispatch": 2}}, {1: 2}),
        say=["one"], notices=[[5, "warning", 85]], view=2, last={"text": "t", "seq": 7}, model="spare",
        down=Down("overloaded", datetime(2026, 1, 1, 13, tzinfo=UTC)),
        since=datetime(2026, 1, 1, 12, tzinfo=UTC), resolved=[{"tool_call_id": "c1", "decision": "leave"}],
        unknown={"c2": calls["c2"]},
    )  # fmt: skip


def test_progress_comes_back_as_it_was() -> None:
    before, state = progress(), LoopState(loop=Loop(), tools={}, iterations=3)
    carried = through_json(before.carried(state))
    assert Progress.read(carried) == before
    assert read_state(carried.get("state", {}), Facts(Loop(), {})) == state


def test_progress_that_has_just_begun_comes_back_as_it_was() -> None:
    before = Progress(run="r", opened={"session": "s"})
    assert Progress.read(through_json(before.carried(LoopState(loop=Loop(), tools={})))) == before


def test_what_agents_have_spent_is_not_lost_while_a_run_continues() -> None:
    before = Progress(run="r", opened={"session": "s"}, turn=Turn(1, 2, spent=Usage(input_tokens=5)))
    after = Progress.read(through_json(before.carried(LoopState(loop=Loop(), tools={}))))
    assert after.turn.spent in (None, Usage(input_tokens=5))  # it is counted with its turn, before a run continues


def test_the_keys_of_what_is_carried_are_pinned() -> None:
    carried = progress().carried(LoopState(loop=Loop(), tools={}, iterations=3))
    assert sorted(carried) == [
        "calls", "dispatches", "down", "last", "model", "notices", "opened", "resolved", "run", "say", "seq", "since",
        "sources", "state", "turn", "unknown", "view",
    ]  # fmt: skip
    assert carried["turn"] == [3, 6, 1]
    assert carried["sources"] == [[0, {"returned": "x"}], [1, {"dispatch": 2}]]
    assert carried["dispatches"] == [[1, 2]]
    assert carried["unknown"] == ["c2"]
    assert carried["since"] == "2026-01-01T12:00:00+00:00"


# --- facts ---


@tool(safe_to_retry=True, parallel=True, timeout="2m", retry=RetryPolicy(
    initial_interval=0.5, backoff_coefficient=3.0, maximum_interval="1m", maximum_attempts=7
))  # fmt: skip
async def look() -> str:
    """Look."""
    return "seen"


@tool(verify=lambda: None)
async def pay() -> str:
    """Pay."""
    return "paid"


def full() -> Agent:
    loop = Loop(
        max_iterations=7, on_stuck="escalate", stuck_threshold=2, stuck_retries=3, on_unknown="ask",
        answer_timeout="1h", checkpoint_interval=9, max_tool_concurrency=3, max_tool_calls=11,
        max_message_bytes=2_000, token_budget=TokenBudget(100, stop_threshold=0.7, warning_threshold=0.5,
                                                          warning_message=lambda percent, used, limit: "hurry"),
        diminishing_returns=DiminishingReturns(2, 30),
        context_compression=ContextCompression(lambda messages: messages, max_messages=5),
    )  # fmt: skip
    return Agent(
        "full", model="x:y", instructions=lambda context: "x", tools=[look, pay, Agent("child")], output=dict,
        loop=loop, on_start=print, on_complete=print, on_stuck=print, on_terminal_tool_error="fail",
        settings={"max_tokens": 5}, access={"start": callable, "approve": callable},
    )  # fmt: skip


def facts_of(agent: Agent, **limits: Any) -> Facts:
    return Facts.read(through_json(write_facts(agent, agent.tool_map, {"search": True})), **limits)


def test_the_facts_of_an_agent_with_every_option_come_back() -> None:
    agent = full()
    facts = facts_of(agent)
    for name in Loop.__dataclass_fields__:
        if name not in ("token_budget", "context_compression"):
            assert getattr(facts.loop, name) == getattr(agent.loop, name), name
    assert facts.loop.budget == TokenBudget(100, stop_threshold=0.7, warning_threshold=0.5)
    assert facts.loop.context_compression is None  # it is the user's code, and runs in the activity
    assert facts.tools == {
        "look": ToolFacts(
            parallel=True, safe_to_retry=True, timeout=120 + GRACE, attempts=7, initial=0.5, factor=3.0, longest=60.0
        ),
        "pay": ToolFacts(verify=True),
        "child": ToolFacts(agent=True, verify=True),
    }
    assert (facts.on_terminal_tool_error, facts.model, facts.search) == ("fail", "x:y", True)
    assert facts.hooks == ("on_start", "on_complete", "on_stuck", "output", "approve")


def test_an_agent_as_usual_has_hardly_any_facts() -> None:
    agent = Agent("a", tools=[pay])
    facts = write_facts(agent, agent.tool_map, {"search": False})
    assert facts == {"loop": {"output_retries": 1}, "tools": {"pay": {"verify": True}}, "outlasts": True}


def test_the_keys_of_facts_are_pinned() -> None:
    agent = full()
    written = through_json(write_facts(agent, agent.tool_map, {"search": True}))
    assert sorted(written) == ["hooks", "loop", "model", "on_terminal_tool_error", "outlasts", "search", "tools"]
    assert sorted(written["loop"]) == [
        "answer_timeout", "checkpoint_interval", "diminishing_returns", "max_iterations", "max_message_bytes",
        "max_tool_calls", "max_tool_concurrency", "on_stuck", "on_unknown", "output_retries", "stuck_retries",
        "stuck_threshold", "token_budget",
    ]  # fmt: skip
    assert written["loop"]["answer_timeout"] == 3_600
    assert written["loop"]["token_budget"] == {"max": 100, "stop_threshold": 0.7, "warning_threshold": 0.5}
    assert written["tools"]["look"] == {
        "parallel": True, "safe_to_retry": True, "timeout": 125.0, "attempts": 7, "initial": 0.5, "factor": 3.0,
        "longest": 60.0,
    }  # fmt: skip


@given(LOOPS)
def test_the_loop_of_any_agent_comes_back(loop: Loop) -> None:
    assert facts_of(Agent("a", output=int, loop=loop)).loop == loop


@pytest.mark.parametrize("timeout", [None, "1s", "30d"])
def test_the_time_that_an_answer_has_comes_back_even_if_it_has_for_ever(timeout: Any) -> None:
    loop = Loop(answer_timeout=timeout)
    assert facts_of(Agent("a", loop=loop)).loop.answer_timeout == loop.answer_timeout


def test_limits_of_the_run_take_the_place_of_those_of_the_agent() -> None:
    assert facts_of(full(), max_iterations=2).loop.max_iterations == 2
    for given_tokens, expected in ((50, 50), (500, 100)):
        budget = facts_of(full(), max_tokens=given_tokens).loop.budget
        assert budget is not None
        assert (budget.max, budget.stop_threshold) == (expected, 0.7)
    alone = facts_of(Agent("a"), max_tokens=5).loop.budget
    assert alone == TokenBudget(5)


def test_facts_that_nobody_recorded_are_those_of_the_first_version() -> None:
    assert Facts.read({}) == Facts(Loop(output_retries=0, on_model_outage="pause"), {})


def test_the_retries_of_an_output_are_recorded_whatever_their_default_is() -> None:
    for retries in (1, 3):
        agent = Agent("a", output=int, loop=Loop(output_retries=retries))
        assert write_facts(agent, {}, {"search": False})["loop"] == {"output_retries": retries}


def test_a_tool_with_effects_has_one_attempt_whatever_is_declared() -> None:
    assert tool_facts(Tool("post", description="Post.")).attempts == 1
    assert tool_facts(Tool("post", description="Post.")).timeout == TIMEOUT
    assert tool_facts(look).attempts == 7
