"""Truncated or unstorable answers: partial calls do not run, and paid work is not lost."""

import asyncio
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver, InProcess
from support.temporal_runs import until
from support.transcripts import asks_for, call, result_of, says
from temporalio.client import WorkflowFailureError

from integration.models.test_providers import adapter, ask
from standfast import Agent, Approval, LLMResponse, Loop, Message, ModelError, RetryPolicy, ToolCall, Usage, tool
from standfast.llm import Price
from standfast.messages import Reasoning
from standfast.stores import Session
from standfast.testing import Fault, ModelServer, ScriptedModel
from standfast.testing.model_server import Reply

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


# --- what an answer that is cut off has used ---

SOON = RetryPolicy(maximum_attempts=2, initial_interval=0.05)
HALF = Fault(status=200, answer=LLMResponse(text="hello there", usage=Usage(input_tokens=100)), end="cut")
AT_ITS_START = Usage(input_tokens=100, output_tokens=1, cost=102e-6)  # as this provider reports it
PRICE = Price(input=1, output=2)


async def test_what_an_answer_had_used_when_it_was_cut_off_counts_with_the_next(driver: Driver) -> None:
    done = LLMResponse(text="done", usage=Usage(input_tokens=10, output_tokens=5))
    async with ModelServer(HALF, done) as server:
        agent = Agent("a", loop=Loop(model_retry=SOON))
        ended = await driver.run(agent, adapter("anthropic", server, price=PRICE))
    whole = AT_ITS_START + Usage(input_tokens=10, output_tokens=5, cost=20e-6)
    assert ended.usage is not None
    assert ended.usage.plain() == pytest.approx(whole.plain())
    assert (await _session_usage(driver)).plain() == pytest.approx(whole.plain())


async def test_it_counts_if_no_answer_follows(driver: Driver) -> None:
    async with ModelServer(LLMResponse(text="hi", usage=Usage(input_tokens=7)), HALF, HALF) as server:
        model = adapter("anthropic", server, price=PRICE)
        agent = Agent("a", loop=Loop(model_retry=SOON))
        assert (await driver.run(agent, model)).status == "complete"
        ended = await driver.run(agent, model)
    twice = (AT_ITS_START + AT_ITS_START).plain()
    assert ended.status == "error"
    assert ended.usage is not None
    assert ended.usage.plain() == pytest.approx(twice)
    in_session = Usage(input_tokens=7, cost=7e-6) + AT_ITS_START + AT_ITS_START
    assert (await _session_usage(driver)).plain() == pytest.approx(in_session.plain())


async def test_it_counts_if_another_model_answers(driver: Driver) -> None:
    agent = Agent("a", model="first", fallback_models=["second"], loop=Loop(model_retry=SOON))
    async with ModelServer(HALF, HALF) as server:
        first, second = adapter("anthropic", server, price=PRICE), ScriptedModel([says("done", 3)])
        ended = await driver.run(agent, lambda model: second if model == "second" else first)
    assert (ended.status, len(second.calls)) == ("complete", 1)
    whole = AT_ITS_START + AT_ITS_START + Usage(input_tokens=3)
    assert ended.usage is not None
    assert ended.usage.plain() == pytest.approx(whole.plain())


async def test_it_counts_in_the_budget(driver: Driver) -> None:
    asks = LLMResponse(tool_calls=(call("echo", "c1", text="x"),), usage=Usage(input_tokens=10))
    async with ModelServer(HALF, asks, "never asked") as server:
        agent = Agent("a", tools=[echo], loop=Loop(model_retry=SOON, token_budget=105))
        ended = await driver.run(agent, adapter("anthropic", server))
    assert (ended.status, len(server.requests)) == ("token-budget-exhausted", 2)


@pytest.mark.parametrize("first", ["broken", "empty"])
async def test_an_answer_that_was_paid_for_and_is_of_no_use_counts(driver: Driver, first: str) -> None:
    """The provider aborts it, or the next attempt at an empty one is cut off."""
    used = Usage(input_tokens=20, output_tokens=2, cost=0.5)
    failing: dict[str, list[Any]] = {
        "broken": [LLMResponse(text="hel", stop_reason="error", usage=used)],
        "empty": [LLMResponse(usage=used), ModelError("cut off", transient=True)],
    }
    model = ScriptedModel([*failing[first], says("done", 3)])
    ended = await driver.run(Agent("a", loop=Loop(model_retry=SOON)), model)
    assert (ended.response, ended.usage) == ("done", used + Usage(input_tokens=3))


async def test_an_adapter_of_a_user_reports_it_with_its_error(driver: Driver) -> None:
    cut = ModelError("cut off", transient=True, usage=Usage(input_tokens=20))
    model = ScriptedModel([cut, says("done", 3)])
    ended = await driver.run(Agent("a", loop=Loop(model_retry=SOON)), model)
    assert ended.usage == Usage(input_tokens=23)


class Watched:
    """Tells when the first words of an answer have arrived."""

    def __init__(self, model: Any) -> None:
        self._model, self.began = model, asyncio.Event()

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
        async for part in self._model.stream(messages, tools, **settings):
            self.began.set()
            last = part
        return last


async def test_it_counts_if_a_cancel_cuts_the_answer_off(driver: Driver) -> None:
    slow = Fault(status=200, answer=LLMResponse(text="word " * 600, usage=Usage(input_tokens=100)), delay=0.1)
    async with ModelServer(LLMResponse(text="hi", usage=Usage(input_tokens=7)), slow) as server:
        model, agent = adapter("anthropic", server, price=PRICE), Agent("a")
        assert (await driver.run(agent, model)).status == "complete"
        await _run_and_cancel(driver, agent, Watched(model))
    whole = Usage(input_tokens=7, cost=7e-6) + AT_ITS_START
    assert (await _session_usage(driver)).plain() == pytest.approx(whole.plain())


async def _run_and_cancel(driver: Driver, agent: Agent, model: Watched) -> None:
    if isinstance(driver, InProcess):
        running = asyncio.ensure_future(driver.run(agent, model))
        await model.began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return
    async with driver.temporal.worker(agent, llm=model):
        handle = await driver.temporal.start(agent)
        await until(model.began.is_set)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()


async def _session_usage(driver: Driver) -> Usage:
    session = await driver.temporal.store.load_session(driver.temporal.session())
    assert session is not None
    return session.usage or Usage()


PIECE = {"choices": [{"index": 0, "delta": {"content": "hel"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
FAILED = {
    "status": "failed",
    "error": {"code": "server_error", "message": "no"},
    "output": [],
    "usage": {"input_tokens": 9, "output_tokens": 1},
}


@pytest.mark.parametrize(
    ("provider", "way", "body"),
    [
        ("openai-compatible", "stream", [PIECE]),
        ("openai", "stream", [{"type": "response.failed", "response": FAILED}]),
        ("openai", "chat", FAILED),
    ],
)
async def test_what_other_providers_report_with_a_broken_answer_is_with_the_error(
    provider: str, way: str, body: Any
) -> None:
    async with ModelServer(Reply(body)) as server:
        with pytest.raises(ModelError) as raised:
            await ask(adapter(provider, server, price=PRICE), way)
    assert raised.value.usage == Usage(input_tokens=9, output_tokens=1, cost=11e-6)
