"""Calls that take too long or are cancelled from within."""

import asyncio
import json
import threading

import pytest
from support.doubles import SOON, ask
from support.transcripts import call, contents, error, results

from standfast import Agent, ToolContext, tool


async def test_a_call_with_effects_that_timed_out_has_an_unknown_outcome() -> None:
    @tool(timeout=0.01)
    async def post() -> None:
        await asyncio.Event().wait()

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    payload = json.loads(contents(result)[0])
    assert {key: payload[key] for key in ("kind", "toolName", "toolCallId")} == {
        "kind": "tool-durability-error",
        "toolName": "post",
        "toolCallId": "c1",
    }
    assert "timeout of 0.01 s" in payload["error"]
    assert result.status == "complete"


async def test_a_safe_call_that_timed_out_is_an_ordinary_error() -> None:
    @tool(timeout=0.01, safe_to_retry=True)
    async def look() -> None:
        await asyncio.Event().wait()

    result = await ask(Agent("a", tools=[look]), call("look", "c1"))
    assert list(json.loads(contents(result)[0])) == ["error"]
    assert "timeout of 0.01 s" in error(result)


async def test_a_safe_call_that_timed_out_is_retried_by_its_policy() -> None:
    seen: list[int] = []

    @tool(timeout=0.01, safe_to_retry=True, retry=SOON)
    async def look(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            await asyncio.Event().wait()
        return "done"

    assert contents(await ask(Agent("a", tools=[look]), call("look", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("safe", [True, False])
async def test_a_plain_function_that_timed_out_is_left_behind(safe: bool) -> None:
    release = threading.Event()

    @tool(timeout=0.01, safe_to_retry=safe)
    def block() -> bool:
        return release.wait(30)

    try:
        result = await ask(Agent("a", tools=[block]), call("block", "c1"))
    finally:
        release.set()
    assert json.loads(contents(result)[0]).get("kind") == (None if safe else "tool-durability-error")
    assert [message.status for message in results(result)] == ["failed"]


async def test_a_timeout_error_of_the_handler_itself_is_an_ordinary_error() -> None:
    @tool
    async def post() -> None:
        raise TimeoutError("the printer is slow")

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    assert json.loads(contents(result)[0]) == {"error": "the printer is slow"}


async def test_a_handler_that_is_cancelled_from_within_fails_its_call_only() -> None:
    @tool
    async def post() -> None:
        raise asyncio.CancelledError

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    assert (result.status, [message.status for message in results(result)]) == ("complete", ["failed"])
