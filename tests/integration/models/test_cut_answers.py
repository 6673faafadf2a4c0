"""Truncated or unstorable answers: partial calls do not run, and paid work is not lost."""

from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.transcripts import asks_for, call, result_of, says

from integration.models.test_providers import adapter
from standfast import Agent, Approval, LLMResponse, Loop, Message, ToolCall, Usage, tool
from standfast.llm import Price
from standfast.messages import Reasoning
from standfast.stores import Session
from standfast.testing import ModelServer, ScriptedModel

wiped: list[str] = []


@tool
async def wipe(path: str = "/", dry_run: bool = False) -> str:
    wiped.append(path)
    return f"wiped {path}"


def cut_off(*calls: ToolCall, why: str = "length") -> LLMResponse:
    return LLMResponse(tool_calls=calls, stop_reason=why)


@pytest.fixture(autouse=True)
def nothing_wiped() -> None:
    wiped.clear()


@pytest.mark.parametrize("why", ["length", "max_tokens", "max_output_tokens", "content_filter"])
async def test_a_call_that_was_cut_off_is_not_run_and_the_model_is_told(driver: Driver, why: str) -> None:
    """What is there of its arguments may be valid ones: all of them, in this case."""
    model = ScriptedModel([cut_off(call("wipe", "c1", path="/tmp"), call("wipe", "c2"), why=why), "I am sorry"])
    ended = await driver.run(Agent("a", tools=[wipe]), model)
    assert (ended.status, ended.response) == ("complete", "I am sorry")
    assert wiped == ["/tmp"]
    assert "your answer was cut off" in result_of(ended.messages, "c2")


async def test_nobody_is_asked_to_approve_half_a_call(driver: Driver) -> None:
    gated = tool(approval=Approval(message="Wipe it?"))(wipe.handler)  # type: ignore[arg-type]
    model = ScriptedModel([cut_off(call("wipe", "c1", path="/old")), "I am sorry"])
    ended = await driver.run(Agent("a", tools=[gated]), model)
    assert (ended.status, wiped) == ("complete", [])


@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-compatible"])
async def test_a_cut_call_of_a_provider_is_not_run(driver: Driver, provider: str) -> None:
    why = {"openai": "max_output_tokens", "anthropic": "max_tokens"}.get(provider, "length")
    async with ModelServer(cut_off(call("wipe", "c1", path="/old"), why=why), "I am sorry") as server:
        ended = await driver.run(Agent("a", tools=[wipe]), adapter(provider, server))
    assert (ended.response, wiped) == ("I am sorry", [])


@pytest.mark.parametrize("on_unknown", ["tell", "ask"])
async def test_half_a_call_that_a_crash_left_is_not_run_and_nobody_is_asked_about_it(
    driver: Driver, on_unknown: Any
) -> None:
    """It cannot have run, whatever died."""
    store, session = driver.temporal.store, driver.temporal.session()
    asked = Message(role="assistant", tool_calls=(call("wipe", "c1"),), stop_reason="max-tokens")
    left = Session(id=session, agent_name="a")
    await store.append_messages_atomic(session, [Message(role="user", content="go"), asked], left)
    agent = Agent("a", tools=[wipe], loop=Loop(on_unknown=on_unknown))
    ended = await driver.run(agent, ScriptedModel(["I am sorry"]), message=None)
    assert (ended.status, ended.response, wiped) == ("complete", "I am sorry", [])
    assert "your answer was cut off" in result_of(ended.messages, "c1")


# --- what is reported ---


async def test_a_server_that_counts_its_cache_apart_costs_no_less_than_nothing(driver: Driver) -> None:
    used = Usage(input_tokens=10, cached_tokens=100, output_tokens=1)
    async with ModelServer(*[LLMResponse(text="hi", usage=used)] * 2) as server:
        model = adapter("openai-compatible", server, price=Price(input=1, output=1, cached=0.1))
        for _ in range(2):
            ended = await driver.run(Agent("a"), model)
            assert ended.status == "complete"
            assert ended.usage is not None
            assert (ended.usage.cost or 0) > 0


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), 1e300, True, "1"])
async def test_a_cost_that_is_none_is_none(driver: Driver, cost: Any) -> None:
    model = ScriptedModel([{"text": "hi", "cost": cost, "usage": {"input_tokens": 1, "cost": cost}}] * 2)
    for _ in range(2):
        ended = await driver.run(Agent("a", loop=Loop(cost_budget=1, session_cost_budget=1)), model)
        assert (ended.status, ended.usage) == ("complete", Usage(input_tokens=1))


async def test_sums_of_impossible_counts_are_counts(driver: Driver) -> None:
    most = 2**63 - 1
    turns = [asks_for(call("echo", "c1", text="x"), tokens=most, output_tokens=most), says("done", most)]
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(session_cost_budget=1)), ScriptedModel(turns))
    assert ended.usage == Usage(input_tokens=most, output_tokens=most)
    assert (await driver.run(Agent("a", tools=[echo]), ScriptedModel(["again"]))).status == "complete"


async def test_a_wrong_detail_does_not_take_the_counts_along(driver: Driver) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 1, "cached_tokens": -1, "reasoning_tokens": "many"}
    turns = [{"tool_calls": [{"id": f"c{n}", "name": "echo", "arguments": {"text": "x"}}], "usage": usage}
             for n in range(2)]  # fmt: skip
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(token_budget=1_000)), ScriptedModel(turns))
    assert (ended.status, ended.usage) == ("token-budget-exhausted", Usage(input_tokens=1_000, output_tokens=1))


def _deep(levels: int) -> Any:
    return {"a": _deep(levels - 1)} if levels else 1


@pytest.mark.parametrize(
    "block", [{"thinking": "hm \ud83d"}, {"thinking": "x" * 20_000}, _deep(300)], ids=["half an emoji", "long", "deep"]
)
async def test_thoughts_that_cannot_be_kept_are_left_out_and_the_answer_is_not(driver: Driver, block: Any) -> None:
    thought = Reasoning(provider="anthropic", blocks=({"type": "thinking", **block},))
    turns = [asks_for(call("echo", "c1", text="x")).model_copy(update={"reasoning": thought}), "done"]
    model = ScriptedModel(turns)
    ended = await driver.run(Agent("a", tools=[echo], loop=Loop(max_message_bytes=10_000)), model)
    assert (ended.status, len(model.calls)) == ("complete", 2)
    assert all(message.reasoning is None for message in ended.messages)
