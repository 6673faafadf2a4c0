"""Budgets: the warning, the end of the run, and the results of unpaid calls."""

from typing import Any

import pytest
from support.doubles import echo
from support.transcripts import asks_for, call, says, tool_results

from standfast import Agent, DiminishingReturns, Loop, TokenBudget, Usage, assert_complete, run, tool
from standfast.testing import ScriptedModel


async def test_a_spent_token_budget_ends_the_run_before_the_next_model_call() -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text="part", tokens=500) for n in range(3)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000, stop_threshold=0.9)))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, len(model.calls)) == ("token-budget-exhausted", "part", 2)
    assert (result.usage, result.budget_percent) == (Usage(input_tokens=1_000), 100.0)


async def test_calls_of_the_answer_that_spent_the_budget_are_cancelled_and_not_run() -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> str:
        ran.append(text)
        return text

    agent = Agent("a", tools=[post], loop=Loop(token_budget=100))
    model = ScriptedModel([asks_for(call("post", "c1", text="x"), tokens=100)])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert ran == []
    assert [message.status for message in tool_results(result.messages)] == ["cancelled"]


async def test_an_answer_that_is_final_completes_the_run_whatever_it_cost() -> None:
    agent = Agent("a", loop=Loop(token_budget=100))
    assert assert_complete(await run(agent, message="go", llm=ScriptedModel([says("done", 500)]))).status == "complete"


async def test_the_model_is_warned_once_when_its_budget_runs_low() -> None:
    answers = [asks_for(call("echo", f"c{n}", text="x"), tokens=tokens) for n, tokens in enumerate([700, 150, 10])]
    model = ScriptedModel([*answers, says("done", 10)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000)))
    await run(agent, message="go", llm=model)
    warnings = [[m.content for m in asked.messages[1:] if m.role == "system"] for asked in model.calls]
    text = "Warning: You have used 85% of your token budget (850/1000 tokens). Please wrap up your current task."
    assert warnings == [[], [], [text], [text]]


async def test_the_warning_stands_before_the_answer_and_never_between_call_and_result() -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=85), says("done", 1)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(100)))
    result = assert_complete(await run(agent, message="go", llm=model))
    roles = [message.role for message in model.calls[1].messages]
    assert roles == ["system", "user", "system", "assistant", "tool"]
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("warning", "expected"),
    [("Hurry up.", "Hurry up."), (lambda percent, used, limit: f"{percent}% {used}/{limit}", "85% 85/100")],
)
async def test_the_text_of_the_warning_may_be_given_or_made(warning: Any, expected: str) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=85), says("done", 1)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(100, warning_message=warning)))
    await run(agent, message="go", llm=model)
    assert [m.content for m in model.calls[1].messages[1:] if m.role == "system"] == [expected]


async def test_without_reported_usage_budgets_are_skipped_and_usage_is_none() -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "done"])
    loop = Loop(token_budget=1, diminishing_returns=DiminishingReturns(1, 500))
    result = assert_complete(await run(Agent("a", tools=[echo], loop=loop), message="go", llm=model))
    assert (result.status, result.usage, result.budget_percent) == ("complete", None, None)


async def test_short_answers_in_a_row_are_diminishing_returns() -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text="bit", tokens=100) for n in range(9)])
    agent = Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(3, 500)))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.iterations, result.response) == ("diminishing-returns", 3, "bit")


async def test_one_long_answer_starts_the_count_of_short_ones_again() -> None:
    sizes = [100, 100, 500, 100, 100]
    answers = [asks_for(call("echo", f"c{n}", text="x"), tokens=size) for n, size in enumerate(sizes)]
    agent = Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(3, 500)))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([*answers, says("done", 1)])))
    assert (result.status, result.iterations) == ("complete", 6)
