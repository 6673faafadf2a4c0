"""Terminal errors of agents that another agent runs: their caller gets them completely, in both drivers."""

import asyncio
from typing import Any

import pytest
from support.drivers import Driver
from support.resets import reset
from support.temporal_runs import (
    Temporal,
    failure,
)
from support.transcripts import asks_for, call, error_of, result_of, tool_results

from integration.temporal.test_temporal_nested import ONE_LETTER, models
from standfast import (
    Agent,
    TerminalError,
    ToolContext,
    tool,
)
from standfast.testing import ScriptedModel


@tool
async def give_up() -> str:
    """Fail for good."""
    raise TerminalError("the account is closed", 410, {"account": 7})


failing = Agent("writer", model="writer", tools=[give_up], on_terminal_tool_error="fail")
GIVES_UP = [asks_for(call("give_up", "g1"))]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("rule", "status", "response", "metadata"),
    [
        ("message", "complete", "sent", None),
        ("stop", "error", "the account is closed", None),
        ("fail", "raised", "the account is closed", {"account": 7}),
    ],
)
async def test_a_terminal_error_that_fails_an_agent_is_its_callers_with_all_that_it_says(
    driver: Driver, rule: Any, status: str, response: str, metadata: Any
) -> None:
    caller = Agent("boss", model="boss", tools=[failing], on_terminal_tool_error=rule)
    ended = await driver.run(caller, models(boss=ONE_LETTER, writer=GIVES_UP), also=[failing])
    assert (ended.status, ended.response, ended.output) == (status, response, metadata)
    assert error_of(tool_results(ended.messages)[0]) == "the account is closed"
    if status == "raised":
        assert ended.status_code == 410


async def test_a_handler_catches_the_terminal_error_of_an_agent_that_it_invokes(driver: Driver) -> None:
    @tool
    async def delegate(ctx: ToolContext) -> Any:
        try:
            return await ctx.agents.invoke(failing, message="go")
        except TerminalError as error:
            return [str(error), error.status_code, error.metadata]

    caller = Agent("boss", model="boss", tools=[delegate])
    script = models(boss=[asks_for(call("delegate", "d1")), "ok"], writer=GIVES_UP)
    ended = await driver.run(caller, script, also=[failing])
    assert result_of(ended.messages, "d1") == '["the account is closed",410,{"account":7}]'


async def test_after_a_reset_the_terminal_error_of_an_agent_that_has_failed_is_still_its_callers(
    temporal: Temporal,
) -> None:
    caller = Agent("boss", model="boss", tools=[failing], on_terminal_tool_error="fail")
    async with temporal.worker(caller, failing, llm=models(boss=ONE_LETTER * 2, writer=GIVES_UP)):
        handle = await temporal.start(caller)
        first = await failure(handle)
        again = await failure(await reset(temporal, handle, 0))
    assert first.type == again.type == "TerminalError"
    assert (again.message, again.details) == (first.message, first.details)


async def test_of_two_terminal_errors_of_a_turn_the_first_in_call_order_is_raised(driver: Driver) -> None:
    goes = asyncio.Event()

    @tool(parallel=True)
    async def hurry() -> str:
        """Fail for good."""
        goes.set()
        raise TerminalError("first", 401, {"place": 1})

    @tool(parallel=True)
    async def wait() -> str:
        """Fail for good after the other."""
        await goes.wait()
        await asyncio.sleep(0.2)
        raise TerminalError("second", 402, {"place": 2})

    caller = Agent("boss", tools=[hurry, wait], on_terminal_tool_error="fail")
    calls = [call("hurry", "h1"), call("wait", "w1")]
    ended = await driver.run(caller, ScriptedModel([asks_for(*calls)]))
    assert (ended.status, ended.response, ended.status_code, ended.output) == ("raised", "first", 401, {"place": 1})
