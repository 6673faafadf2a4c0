"""User functions that fail in unusual ways; the same with both drivers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from support.drivers import Driver, OnTemporal
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, tool_results

from standfast import (
    Agent,
    AgentContext,
    Guardrail,
    LLMResponse,
    Message,
    NotHappened,
    RetryPolicy,
    ToolContext,
    run,
    tool,
)
from standfast.agents import Loop
from standfast.testing import ScriptedModel


async def breaks_off(ctx: AgentContext, value: Message | None = None) -> None:
    raise asyncio.CancelledError("nobody asked for it")


class BreaksOff:
    async def __aenter__(self) -> None:
        raise asyncio.CancelledError("nobody asked for it")

    async def __aexit__(self, *error: object) -> None:
        pass


FAULTS: dict[str, dict[str, Any]] = {
    "an input guardrail": {"input_guardrails": [breaks_off]},
    "a guardrail beside the model": {"input_guardrails": [Guardrail(breaks_off, beside=True)]},
    "an output guardrail": {"output_guardrails": [breaks_off]},
    "deps": {"deps": breaks_off},
    "what deps makes": {"deps": lambda ctx: BreaksOff()},
    "on_start": {"on_start": breaks_off},
    "instructions": {"instructions": breaks_off},
}


async def test_a_cancel_that_nobody_asked_for_is_an_error_like_any_other(driver: Driver) -> None:
    """Temporal would try the activity again, unseen; in process the run would seem to have been cancelled."""
    agents = {what: Agent(f"agent-{at}", model="m", **options) for at, (what, options) in enumerate(FAULTS.items())}
    if not isinstance(driver, OnTemporal):
        for what, agent in agents.items():
            with pytest.raises(RuntimeError, match="it was cancelled from within"):
                await driver.run(agent, ScriptedModel(["Hello"]), session=what.replace(" ", "-"))
        return
    async with driver.temporal.worker(*agents.values(), llm=ScriptedModel(["Hello"] * 10)):
        runs = {what: await driver.temporal.start(agent, session=agent.name) for what, agent in agents.items()}
        for what, handle in runs.items():
            (paused,) = await pending(handle)
            assert (paused["kind"], "it was cancelled from within" in paused["message"]) == ("pause", True), what


async def test_an_adapter_that_breaks_off_is_a_model_that_cannot_be_called(driver: Driver) -> None:
    class Broken(ScriptedModel):
        async def chat(self, *given: Any, **options: Any) -> LLMResponse:
            raise asyncio.CancelledError("nobody asked for it")

    agent = Agent("host", model="m", fallback_models=["n"], loop=Loop(model_retry=RetryPolicy(maximum_attempts=1)))
    models = {"m": Broken([]), "n": ScriptedModel(["Hello"])}
    ended = await driver.run(agent, models.__getitem__)
    assert (ended.status, ended.messages[-1].model) == ("complete", "n")


@pytest.mark.parametrize("action", ["retry", "abort"])
async def test_a_guardrail_that_raises_is_not_a_reason_to_call_another_model(temporal: Temporal, action: str) -> None:
    mended: list[bool] = []

    def fragile(ctx: AgentContext, said: Message) -> None:
        if not mended:
            raise OSError("no connection")

    agent = Agent("guarded", model="m", fallback_models=["n"], input_guardrails=[fragile])
    model = ScriptedModel(["Hello"])
    async with temporal.worker(agent, llm=lambda name: model):
        handle = await temporal.start(agent)
        (paused,) = await pending(handle)
        assert "fragile raised OSError: no connection" in paused["message"]
        mended.append(True)
        await temporal.people.resume(handle.id, action)
        ended = await result(handle)
    assert ended["status"] == {"retry": "complete", "abort": "error"}[action]
    assert [message.model for message in await temporal.messages()][1:] == [None][: action == "retry"]


async def test_a_plain_guardrail_that_blocks_keeps_nobody_waiting(driver: Driver) -> None:
    called = threading.Event()

    def waits(ctx: AgentContext, said: Message) -> str | None:
        return None if called.wait(20) else "the model waits for the guardrail beside it"

    class Calls(ScriptedModel):
        async def chat(self, *given: Any, **options: Any) -> LLMResponse:
            await asyncio.sleep(0)  # as any request lets others run
            await asyncio.sleep(0)
            called.set()
            return await super().chat(*given, **options)

    agent = Agent("guarded", model="m", input_guardrails=[Guardrail(waits, beside=True)])
    assert (await driver.run(agent, Calls(["Hello"]))).status == "complete"


@pytest.mark.parametrize("blocks", [False, True], ids=["waits", "blocks the loop"])
async def test_a_call_does_not_begin_after_its_time_because_its_dependencies_came_late(
    temporal: Temporal, blocks: bool
) -> None:
    """Its outcome was settled by then: it may have been verified, and have run again."""
    ran: list[str] = []
    opened: list[str | None] = []

    @asynccontextmanager
    async def slow(ctx: AgentContext) -> AsyncIterator[None]:
        opened.append(ctx.session_id)
        if len(opened) == 2:  # for the tool, after the model
            if blocks:
                time.sleep(0.3)  # noqa: ASYNC251
            else:
                await asyncio.sleep(20)
        yield

    async def verify(ctx: ToolContext) -> NotHappened:
        return NotHappened()

    @tool(timeout=0.2, verify=verify)
    async def pay(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        return "paid"

    agent = Agent("payer", deps=slow, tools=[pay])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1")), "done"])):
        assert (await temporal.run(agent))["status"] == "complete"
    (said,) = tool_results(await temporal.messages())
    assert "Not run: the dependencies of 'payer' could not be made: that took more than 0.2 s" in said.content
    assert ran == []


async def test_the_time_of_a_call_includes_that_of_its_dependencies(temporal: Temporal) -> None:
    async def slow(ctx: AgentContext) -> None:
        await asyncio.sleep(0.6)

    @tool(timeout=1)
    async def pay(ctx: ToolContext) -> str:
        await asyncio.sleep(0.6)
        return "paid"

    agent = Agent("payer", deps=slow, tools=[pay])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1")), "done"])):
        assert (await temporal.run(agent))["status"] == "complete"
    assert "it was cut off after its timeout" in tool_results(await temporal.messages())[0].content


@pytest.mark.parametrize("is_caught", [False, True])
async def test_a_task_group_that_fails_in_a_handler_cancels_no_run(driver: Driver, is_caught: bool) -> None:
    """Until Python 3.12, such a group leaves a cancel counted in the task that it runs in."""

    async def fail() -> None:
        raise ValueError("no such city")

    @tool
    async def look() -> str:
        """Look."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except* ValueError:
            if not is_caught:
                raise
        return "sunny"

    result = await driver.run(Agent("a", tools=[look]), ScriptedModel([asks_for(call("look", "c1")), "done"]))
    told = tool_results(result.messages)[0].content
    assert (result.status, told == "sunny", "no such city" in told) == ("complete", is_caught, not is_caught)


async def test_context_variables_that_a_handler_sets_last_until_the_end_of_a_run_in_process() -> None:
    city = ContextVar("city", default="")

    @tool
    async def go() -> str:
        """Go."""
        city.set(city.get() + "Rome ")
        return city.get()

    model = ScriptedModel([asks_for(call("go", "c1")), asks_for(call("go", "c2")), "done"])
    ended = await run(Agent("a", tools=[go]), message="go", llm=model)
    assert [one.content for one in tool_results(ended.messages)] == ["Rome ", "Rome Rome "]
    assert city.get() == "Rome Rome "
