"""Which failed calls are retried, how often, and the model's view of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.doubles import SOON, ask
from support.transcripts import call, contents, error, results

from standfast import Agent, RetryableError, RetryPolicy, TerminalError, Tool, ToolContext, tool


def flaky(failures: int, raised: Callable[[], Exception], seen: list[int], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) <= failures:
            raise raised()
        return "done"

    return work


async def test_a_retryable_error_of_a_safe_tool_is_retried_before_the_model_sees_it() -> None:
    seen: list[int] = []
    work = flaky(2, lambda: RetryableError("busy", retry_after=0.001), seen, safe_to_retry=True)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, contents(result), result.iterations) == ([1, 2, 3], ["done"], 2)


async def test_any_error_of_a_safe_tool_with_a_retry_policy_is_retried() -> None:
    seen: list[int] = []
    work = flaky(2, lambda: ValueError("no"), seen, safe_to_retry=True, retry=SOON)
    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


async def test_a_plain_function_is_retried_like_an_async_one() -> None:
    seen: list[int] = []

    @tool(safe_to_retry=True, retry=SOON)
    def work(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise ValueError("no")
        return "done"

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


async def test_maximum_attempts_counts_the_first_one() -> None:
    seen: list[int] = []
    work = flaky(99, lambda: ValueError("no"), seen, safe_to_retry=True, retry=SOON)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, error(result), result.status) == ([1, 2, 3], "no", "complete")


async def test_one_attempt_means_no_retry() -> None:
    seen: list[int] = []
    once = RetryPolicy(maximum_attempts=1)
    work = flaky(99, lambda: RetryableError("busy", retry_after=0.001), seen, safe_to_retry=True, retry=once)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, error(result)) == ([1], "busy")


async def test_an_ordinary_error_of_a_safe_tool_without_a_policy_is_not_retried() -> None:
    seen: list[int] = []
    work = flaky(1, lambda: ValueError("no"), seen, safe_to_retry=True)
    assert error(await ask(Agent("a", tools=[work]), call("work", "c1"))) == "no"
    assert seen == [1]


@pytest.mark.parametrize("raised", [RetryableError("busy", retry_after=0.001), ValueError("busy")], ids=repr)
async def test_a_tool_with_effects_is_never_retried(raised: Exception) -> None:
    seen: list[int] = []
    work = flaky(99, lambda: raised, seen)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, json.loads(contents(result)[0])) == ([1], {"error": "busy"})


async def test_a_terminal_error_is_never_retried() -> None:
    seen: list[int] = []
    work = flaky(99, lambda: TerminalError("gone"), seen, safe_to_retry=True, retry=SOON)
    assert error(await ask(Agent("a", tools=[work]), call("work", "c1"))) == "gone"
    assert seen == [1]


async def test_arguments_that_miss_the_schema_are_not_retried() -> None:
    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval="1d"))
    async def work(number: int) -> int:
        return number

    assert error(await ask(Agent("a", tools=[work]), call("work", "c1", number="x"))).startswith("Invalid input")


async def test_a_handler_that_changes_its_arguments_gets_the_same_ones_again() -> None:
    seen: list[str] = []

    @tool(safe_to_retry=True, retry=SOON)
    async def work(order: dict[str, Any]) -> str:
        seen.append(json.dumps(order))
        order["lines"].clear()
        if len(seen) < 2:
            raise ValueError("no")
        return "done"

    result = await ask(Agent("a", tools=[work]), call("work", "c1", order={"lines": [1, 2]}))
    assert seen == ['{"lines": [1, 2]}'] * 2
    requested = result.messages[1].tool_calls
    assert requested is not None
    assert requested[0].arguments == {"order": {"lines": [1, 2]}}


async def test_a_retry_after_that_is_not_a_number_does_not_end_the_run() -> None:
    seen: list[int] = []
    work = flaky(1, lambda: RetryableError("busy", retry_after="0.001"), seen, safe_to_retry=True, retry=SOON)  # type: ignore[arg-type]
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (result.status, len(results(result))) == ("complete", 1)
