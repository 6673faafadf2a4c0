"""Calls that take too long or are cancelled from within."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.doubles import SOON, ask
from support.drivers import Driver
from support.transcripts import asks_for, call, contents, error, kind_of, results, tool_results

from standfast import Agent, Happened, NotHappened, ToolContext, tool
from standfast.testing import ScriptedModel


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


async def test_verify_is_asked_about_a_call_that_timed_out(driver: Driver) -> None:
    """The verdict of `verify` settles a handler that has ended. One that cannot be stopped may still take effect."""
    ran, release = list[str](), threading.Event()

    def found(how: str, ctx: ToolContext) -> Happened | NotHappened | None:
        return {"happened": Happened(f"receipt {ctx.tool_call_id}"), "not-happened": NotHappened()}.get(how)

    @tool(timeout=0.5, parallel=True, verify=found)
    async def pay(how: str) -> str:
        """Pay, and wait for an answer that does not come."""
        ran.append(how)
        await asyncio.Event().wait()
        return "late"

    @tool(timeout=0.5, parallel=True, verify=found)
    def block(how: str) -> str:
        """Pay in a thread that cannot be stopped."""
        ran.append(f"block {how}")
        release.wait(30)
        return "late"

    ways = ("happened", "not-happened", "cannot-tell")
    turn = asks_for(*(call(one.name, f"{one.name}-{how}", how=how) for one in (pay, block) for how in ways))
    try:
        ended = await driver.run(Agent("payer", tools=[pay, block]), ScriptedModel([turn, "ok"]))
    finally:
        release.set()
    told = {one.tool_call_id: one.content for one in tool_results(ended.messages)}
    assert {told[f"{name}-happened"] for name in ("pay", "block")} == {"receipt pay-happened", "receipt block-happened"}
    errors = {name: json.loads(text) for name, text in told.items() if text.startswith("{")}
    unknown = {name for name, error in errors.items() if error.get("kind") == "tool-durability-error"}
    assert unknown == {"pay-cannot-tell", "block-cannot-tell", "block-not-happened"}
    assert all("cut off after its timeout of 0.5 s" in error["error"] for error in errors.values())
    assert "still runs" in errors["block-not-happened"]["error"]
    assert sorted(ran) == sorted([*ways, *(f"block {how}" for how in ways)])


async def test_a_verify_that_is_cut_off_says_so(driver: Driver) -> None:
    async def found() -> None:
        await asyncio.Event().wait()

    @tool(timeout=0.05, verify=found)
    async def pay() -> str:
        """Pay, and wait for an answer that does not come."""
        await asyncio.Event().wait()
        return "late"

    ended = await driver.run(Agent("payer", tools=[pay]), ScriptedModel([asks_for(call("pay", "c1")), "ok"]))
    (told,) = tool_results(ended.messages)
    assert kind_of(ended.messages, "c1") == "tool-durability-error"
    assert "verify was cut off after 0.05 s" in told.content


@pytest.mark.parametrize("not_run", [(), (TimeoutError,)], ids=["unknown", "said not to have run"])
async def test_a_timeout_error_of_the_handler_itself_is_told_in_its_own_words(not_run: Any) -> None:
    @tool(not_run=not_run)
    async def post() -> None:
        raise TimeoutError("the printer is slow")

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    told = json.loads(contents(result)[0])
    assert "the printer is slow" in told["error"]
    assert told.get("kind") == (None if not_run else "tool-durability-error")


@pytest.mark.parametrize("is_safe", [False, True])
async def test_a_handler_that_is_cancelled_from_within_fails_its_call_only(driver: Driver, is_safe: bool) -> None:
    """With effects the outcome is unknown: the request may have been sent before."""

    @tool(safe_to_retry=is_safe)
    async def post() -> None:
        """Post."""
        raise asyncio.CancelledError

    result = await driver.run(Agent("a", tools=[post]), ScriptedModel([asks_for(call("post", "c1")), "done"]))
    (told,) = tool_results(result.messages)
    assert (result.status, told.status) == ("complete", "failed")
    assert "cancelled from within" in told.content
    assert ("tool-durability-error" in told.content) is not is_safe


async def test_verify_is_asked_about_a_call_that_is_cancelled_from_within(driver: Driver) -> None:
    def found(how: str) -> Happened | NotHappened | None:
        if how == "cancels":
            raise asyncio.CancelledError
        return {"happened": Happened("receipt"), "not-happened": NotHappened()}.get(how)

    ran = list[str]()

    @tool(verify=found)
    async def pay(how: str) -> str:
        """Pay, and be cancelled."""
        ran.append(how)
        raise asyncio.CancelledError

    ways = ("happened", "not-happened", "cannot-tell", "cancels")
    turn = asks_for(*(call("pay", how, how=how) for how in ways))
    ended = await driver.run(Agent("payer", tools=[pay]), ScriptedModel([turn, "ok"]))
    told = {one.tool_call_id: one.content for one in tool_results(ended.messages)}
    assert told["happened"] == "receipt"
    assert json.loads(told["not-happened"]) == {"error": "the tool was cancelled from within"}
    for how in ("cannot-tell", "cancels"):
        assert kind_of(ended.messages, how) == "tool-durability-error"
        assert "the tool was cancelled from within" in told[how]
    assert "verify was cancelled from within" in told["cancels"]
    assert ran == list(ways)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_group_of_cancels_fails_its_call_only(driver: Driver, is_plain: bool) -> None:
    def fail() -> None:
        raise BaseExceptionGroup("cancelled", [asyncio.CancelledError(), ValueError("late")])

    @tool
    async def post() -> None:
        """Post."""
        fail()

    @tool
    def put() -> None:
        """Put."""
        fail()

    one = put if is_plain else post
    result = await driver.run(Agent("a", tools=[one]), ScriptedModel([asks_for(call(one.name, "c1")), "done"]))
    (told,) = tool_results(result.messages)
    assert (result.status, told.status) == ("complete", "failed")
    assert "cancelled from within" in told.content


@contextmanager
def later(seconds: float) -> Iterator[None]:
    """Let the clock of the running loop be so much later."""
    loop = asyncio.get_running_loop()
    usual = loop.time
    loop.time = lambda: usual() + seconds  # type: ignore[method-assign]
    try:
        yield
    finally:
        loop.time = usual  # type: ignore[method-assign]


@pytest.mark.parametrize("safe", [True, False])
async def test_a_tool_that_names_no_timeout_has_55_seconds(driver: Driver, safe: bool) -> None:
    seen: list[int] = []

    @tool(safe_to_retry=safe)
    async def post(after: int) -> str:
        with later(after):
            await asyncio.sleep(0.05)
            seen.append(after)
        return "done"

    asked = asks_for(call("post", "c1", after=50), call("post", "c2", after=56))
    ended = await driver.run(Agent("a", tools=[post]), ScriptedModel([asked, "sent"]))
    first, second = (said.content for said in tool_results(ended.messages))
    assert (first, seen) == ("done", [50])
    assert "its timeout of 55 s" in json.loads(second)["error"]
    assert json.loads(second).get("kind") == (None if safe else "tool-durability-error")


async def test_an_agent_that_is_a_tool_takes_the_time_that_it_takes(driver: Driver) -> None:
    async def answer(messages: Any, tools: Any) -> str:
        with later(600):
            await asyncio.sleep(0.05)
        return "done"

    boss = Agent("boss", model="boss", tools=[child := Agent("child", model="child")])
    script = {
        "boss": ScriptedModel([asks_for(call("child", "c1", message="go")), "sent"]), "child": ScriptedModel(answer)
    }  # fmt: skip
    ended = await driver.run(boss, script.__getitem__, also=[child])
    assert [said.content for said in tool_results(ended.messages)] == ["done"]
