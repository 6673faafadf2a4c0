"""The rules of the loop hold in both drivers: the end of a run, the outcomes of its calls, and their order."""

from typing import Any

import pytest
from support.doubles import echo, fail
from support.drivers import Driver
from support.transcripts import (
    asks_for,
    call,
    error_of,
    result_of,
    says,
    shape,
    tool_results,
)

from standfast import (
    Agent,
    DiminishingReturns,
    Loop,
    Message,
    TokenBudget,
    Tool,
    ToolCall,
    Usage,
    tool,
)
from standfast.testing import ScriptedModel

# --- how a run ends ---


@pytest.mark.parametrize("text", ["Hello", "ünïcode 😀", "two\nlines"])
async def test_a_text_answer_completes_the_run(driver: Driver, text: str) -> None:
    ended = await driver.run(Agent("a"), ScriptedModel([{"text": text}]))
    assert (ended.status, ended.response, ended.iterations) == ("complete", text, 1)
    assert [(message.role, message.content) for message in ended.messages] == [("user", "go"), ("assistant", text)]


async def test_the_model_sees_the_result_of_its_call(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="ping")), "done"])
    ended = await driver.run(Agent("a", tools=[echo]), model)
    assert (ended.status, ended.iterations) == ("complete", 2)
    expected = Message(role="tool", content="ping", tool_call_id="c1", tool_name="echo", status="completed")
    assert model.calls[1].messages[-1] == expected == ended.messages[2]


async def test_a_model_that_never_stops_is_ended_at_max_iterations(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text=f"step {n}") for n in range(9)])
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(max_iterations=3)), model)
    assert (ended.status, ended.iterations, ended.response) == ("max-iterations", 3, "step 2")
    assert len(model.calls) == 3
    assert len(tool_results(ended.messages)) == 3


async def test_a_model_that_cannot_be_called_ends_the_run_and_nothing_is_written(driver: Driver) -> None:
    ended = await driver.run(Agent("a"), ScriptedModel([RuntimeError("no quota")]))
    assert (ended.status, ended.response, ended.error, ended.iterations) == ("error", "no quota", "no quota", 1)
    assert await driver.temporal.store.load_session(driver.temporal.session()) is None


async def test_a_second_model_call_that_fails_keeps_what_was_stored(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), RuntimeError("down")])
    ended = await driver.run(Agent("a", tools=[echo]), model)
    assert (ended.status, ended.response, ended.iterations) == ("error", "down", 2)
    assert shape(ended.messages) == ["user go", "calls c1", "result c1"]


# --- what a call can come to ---


@tool
async def wrong_result() -> int:
    """Return what the annotation does not allow."""
    return "many"  # type: ignore[return-value]


@tool
async def silent() -> str:
    """Raise without a word."""
    raise KeyError


FAILURES: list[tuple[ToolCall, str]] = [
    (call("nope", "c1"), 'Tool "nope" not found. Available tools: echo, wrong_result, fail, silent'),
    (call("echo", "c1"), 'Invalid input for tool "echo": text: Field required'),
    (call("echo", "c1", text=[1]), 'Invalid input for tool "echo": text: Input should be a valid string'),
    (call("wrong_result", "c1"), 'Tool "wrong_result" returned invalid output'),
    (call("fail", "c1"), "out of paper"),
    (call("silent", "c1"), "KeyError"),
]


@pytest.mark.parametrize(("failing", "text"), FAILURES, ids=[text[:30] for _, text in FAILURES])
async def test_a_failed_call_is_read_by_the_model_and_is_not_progress(
    driver: Driver, failing: ToolCall, text: str
) -> None:
    agent = Agent("a", tools=[echo, wrong_result, fail, silent], loop=Loop(stuck_threshold=1))
    ended = await driver.run(agent, ScriptedModel([asks_for(failing)]))
    assert (ended.status, ended.response, ended.iterations) == ("stuck", "", 1)
    (failed,) = tool_results(ended.messages)
    assert failed.status == "failed"
    assert error_of(failed).startswith(text)


async def test_an_agent_without_tools_says_that_there_are_none(driver: Driver) -> None:
    ended = await driver.run(Agent("a"), ScriptedModel([asks_for(call("nope", "c1")), "ok"]))
    assert error_of(ended.messages[2]) == 'Tool "nope" not found. Available tools: none'


async def test_every_call_of_a_turn_gets_one_result_in_call_order(driver: Driver) -> None:
    calls = [call("echo", "c1", text="one"), call("nope", "c2"), call("fail", "c3"), call("echo", "c4", text="four")]
    ended = await driver.run(Agent("a", tools=[echo, fail]), ScriptedModel([asks_for(*calls), "ok"]))
    assert [message.tool_call_id for message in tool_results(ended.messages)] == ["c1", "c2", "c3", "c4"]
    assert [message.status for message in tool_results(ended.messages)] == [
        "completed", "failed", "failed", "completed",
    ]  # fmt: skip


async def test_a_handler_gets_converted_arguments_without_extra_keys(driver: Driver) -> None:
    got: list[Any] = []

    @tool
    async def order(count: int, note: str = "none") -> dict[str, Any]:
        """Order."""
        got.append((count, note))
        return {"count": count}

    model = ScriptedModel([asks_for(call("order", "c1", count="3", extra=1)), "ok"])
    ended = await driver.run(Agent("a", tools=[order]), model)
    assert got == [(3, "none")]
    assert result_of(ended.messages, "c1") == '{"count":3}'


async def test_an_injected_handler_takes_the_place_of_the_declared_one(driver: Driver) -> None:
    looked: Tool[..., Any] = Tool("look", description="Look.")
    model = ScriptedModel([asks_for(call("look", "c1")), "ok"])
    ended = await driver.run(Agent("a", tools=[looked]), model, tools={"look": lambda: "seen"})
    assert result_of(ended.messages, "c1") == "seen"


# --- stuck ---


async def test_as_many_idle_turns_as_the_threshold_are_stuck(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}"), text="trying") for n in range(9)])
    ended = await driver.run(Agent("a", tools=[fail], loop=Loop(stuck_threshold=2)), model)
    assert (ended.status, ended.response, ended.iterations) == ("stuck", "", 2)


async def test_a_success_starts_the_count_again(driver: Driver) -> None:
    model = ScriptedModel(
        [asks_for(call("fail", "c1")), asks_for(call("echo", "c2", text="x")), asks_for(call("fail", "c3")), "done"]
    )
    ended = await driver.run(Agent("a", tools=[echo, fail], loop=Loop(stuck_threshold=2)), model)
    assert (ended.status, ended.iterations) == ("complete", 4)


async def test_one_success_beside_a_failure_is_progress(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("fail", "c1"), call("echo", "c2", text="x")), "done"])
    ended = await driver.run(Agent("a", tools=[echo, fail], loop=Loop(stuck_threshold=1)), model)
    assert ended.status == "complete"


@pytest.mark.parametrize(("threshold", "status"), [(3, "stuck"), (0, "max-iterations")])
async def test_stuck_wins_over_max_iterations_unless_it_is_off(driver: Driver, threshold: int, status: str) -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}")) for n in range(3)])
    ended = await driver.run(Agent("a", tools=[fail], loop=Loop(stuck_threshold=threshold, max_iterations=3)), model)
    assert ended.status == status


async def test_a_nudge_is_shown_once_per_allowed_retry_and_not_stored(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}")) for n in range(4)])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=2, on_stuck="retry", stuck_retries=1))
    ended = await driver.run(agent, model)
    assert (ended.status, ended.iterations) == ("stuck", 4)
    nudge = "No tool call of your last 2 turns succeeded. Try another way, or explain the obstacle."
    seen = [[m.content for m in asked.messages[1:] if m.role == "system"] for asked in model.calls]
    assert seen == [[], [], [nudge], [nudge]]
    assert [message.role for message in model.calls[2].messages][-2:] == ["tool", "system"]
    assert [message.role for message in model.calls[3].messages][-3:] == ["system", "assistant", "tool"]
    assert "system" not in {message.role for message in ended.messages}


async def test_an_escalation_becomes_a_user_message(driver: Driver) -> None:
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    ended = await driver.run(agent, ScriptedModel([asks_for(call("fail", "c1")), "done"]), answers=["leave it"])
    assert (ended.status, ended.iterations) == ("complete", 2)
    assert shape(ended.messages) == ["user go", "calls c1", "result c1", "user leave it", "assistant done"]
    assert ended.questions == ("No tool call of the last 1 turns succeeded. How should the agent go on?",)


# --- budgets ---


async def test_a_spent_budget_ends_the_run_before_the_next_model_call(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text="part", tokens=500) for n in range(3)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000, stop_threshold=0.9)))
    ended = await driver.run(agent, model)
    assert (ended.status, ended.response, len(model.calls)) == ("token-budget-exhausted", "part", 2)
    assert ended.usage == Usage(input_tokens=1_000)
    assert [message.status for message in tool_results(ended.messages)] == ["completed", "cancelled"]


async def test_a_final_answer_completes_the_run_whatever_it_cost(driver: Driver) -> None:
    ended = await driver.run(Agent("a", loop=Loop(token_budget=100)), ScriptedModel([says("done", 300, 200)]))
    assert (ended.status, ended.usage) == ("complete", Usage(input_tokens=300, output_tokens=200))


async def test_the_warning_stands_before_the_answer_that_it_is_about_from_then_on(driver: Driver) -> None:
    answers = [asks_for(call("echo", f"c{n}", text="x"), tokens=tokens) for n, tokens in enumerate([700, 150, 10])]
    model = ScriptedModel([*answers, says("done", 10)])
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000))), model)
    text = "Warning: You have used 85% of your token budget (850/1000 tokens). Please wrap up your current task."
    seen = [[m.content for m in asked.messages[1:] if m.role == "system"] for asked in model.calls]
    assert seen == [[], [], [text], [text]]
    roles = [message.role for message in model.calls[3].messages]
    assert roles == ["system", "user", "assistant", "tool", "system", "assistant", "tool", "assistant", "tool"]
    assert "system" not in {message.role for message in ended.messages}


@pytest.mark.parametrize(
    ("warning", "expected"),
    [("Hurry up.", "Hurry up."), (lambda percent, used, limit: f"{percent}% {used}/{limit}", "85% 85/100")],
)
async def test_the_text_of_the_warning_may_be_given_or_made(driver: Driver, warning: Any, expected: str) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=85), says("done", 1)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(100, warning_message=warning)))
    await driver.run(agent, model)
    assert [m.content for m in model.calls[1].messages[1:] if m.role == "system"] == [expected]


async def test_without_reported_usage_budgets_are_skipped(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "done"])
    loop = Loop(token_budget=1, diminishing_returns=DiminishingReturns(1, 500))
    ended = await driver.run(Agent("a", tools=[echo], loop=loop), model)
    assert (ended.status, ended.usage) == ("complete", None)


@pytest.mark.parametrize(
    ("sizes", "status", "iterations"),
    [([100, 100, 100], "diminishing-returns", 3), ([100, 100, 500, 100, 100], "complete", 6)],
)
async def test_short_answers_in_a_row_are_diminishing_returns(
    driver: Driver, sizes: list[int], status: str, iterations: int
) -> None:
    answers = [asks_for(call("echo", f"c{n}", text="x"), text="bit", tokens=size) for n, size in enumerate(sizes)]
    agent = Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(3, 500)))
    ended = await driver.run(agent, ScriptedModel([*answers, says("done", 1)]))
    assert (ended.status, ended.iterations) == (status, iterations)
