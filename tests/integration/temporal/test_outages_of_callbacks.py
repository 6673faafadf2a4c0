"""Guardrails, instructions and compression also call models: their outages end like the agent's own."""

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from support.transcripts import shape

from standfast import Agent, AgentContext, ContextCompression, Guardrail, Loop, Message, ModelError, RetryPolicy
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import ScriptedModel


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = model_calls.model_options

    def soon(retry: RetryPolicy, asks: str) -> dict[str, Any]:
        return usual(dataclasses.replace(retry, maximum_attempts=1), asks)

    monkeypatch.setattr(model_calls, "model_options", soon)
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.1), timedelta(seconds=0.3)))


class Fragile:
    """A guardrail, or instructions, of which something is down a number of times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.asked, self._error = times, 0, error

    async def check(self, ctx: AgentContext, said: Message) -> None:
        self._ask()

    async def instruct(self, ctx: AgentContext) -> str:
        self._ask()
        return "Be brief."

    def _ask(self) -> None:
        self.asked += 1
        if self.asked <= self.left:
            raise self._error


PASSING = ModelError("overloaded", transient=True)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("what", ["input_guardrails", "instructions"])
async def test_what_is_asked_before_the_model_is_asked_again_until_it_answers(temporal: Temporal, what: str) -> None:
    fragile, model, spare = Fragile(4, PASSING), ScriptedModel(["done"]), ScriptedModel([])
    given: Any = {"instructions": fragile.instruct} if what == "instructions" else {what: [fragile.check]}
    agent = Agent("clerk", model="main", fallback_models=["spare"], **given)
    async with temporal.worker(agent, llm={"main": model, "spare": spare}.__getitem__):
        run = await temporal.start(agent)
        (pause,) = await pending(run)
        assert (pause["name"], "retry_at" in pause) == ("model", True)
        assert pause["message"].endswith("raised ModelError: overloaded")
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert (fragile.asked, len(model.calls), len(spare.calls)) == (5, 1, 0)
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


async def test_a_mistake_in_the_meantime_waits_for_people(temporal: Temporal) -> None:
    fragile = Fragile(2, PASSING)
    agent = Agent("clerk", input_guardrails=[fragile.check])
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        fragile._error = PASSING
        run = await temporal.start(agent)
        await pending(run)
        fragile.left, fragile._error = 99, ValueError("my bug")

        async def waits_for_people() -> bool:
            return ["retry_at" in item for item in await run.query("pending")] == [False]

        await until(waits_for_people)
        fragile.left = 0
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)


async def test_a_guardrail_beside_the_model_does_not_have_it_paid_again_and_again(temporal: Temporal) -> None:
    fragile, model = Fragile(1, PASSING), ScriptedModel(["lost", "done"])
    agent = Agent("clerk", input_guardrails=[Guardrail(fragile.check, beside=True)])
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        (pause,) = await pending(run)
        assert "retry_at" not in pause
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
    assert len(model.calls) == 2


async def test_a_context_is_compressed_once_for_all_attempts_of_an_outage(temporal: Temporal) -> None:
    """A summary is paid for: its model is another one, which is up."""
    compressed: list[int] = []

    async def summarised(messages: Sequence[Message]) -> list[Message]:
        compressed.append(len(messages))
        return [Message(role="user", content="So far: tea."), messages[-1]]

    loop = Loop(context_compression=ContextCompression(summarised, max_messages=2))
    model = ScriptedModel(["one", PASSING, *[PASSING] * 4, "two", "three"])
    agent = Agent("clerk", loop=loop)
    async with temporal.worker(agent, llm=model):
        for message, answer in (("first", "one"), ("second", "two")):
            assert (await temporal.run(agent, message))["response"] == answer
        assert (compressed, len(model.calls)) == ([3], 7)
        assert (await temporal.run(agent, "third"))["response"] == "three"
    assert compressed == [3, 5]


async def test_a_correction_of_an_output_outlasts_an_outage(temporal: Temporal) -> None:
    model = ScriptedModel([PASSING, "no JSON", *[PASSING] * 3, "5"])
    agent = Agent("clerk", output=int)
    async with temporal.worker(agent, llm=model):
        ended = await temporal.run(agent)
    assert (ended["status"], ended["output"], ended["iterations"], len(model.calls)) == ("complete", 5, 2, 6)
    assert [message.role for message in await temporal.messages()] == ["user", "assistant"] * 2
