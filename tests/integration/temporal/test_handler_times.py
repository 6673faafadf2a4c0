"""Handlers that exceed their time and ignore cancellation."""

import asyncio
import contextlib
import json
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, result, until
from support.transcripts import asks_for, call, tool_contents
from temporalio.worker import Worker

from standfast import Agent, Happened, NotHappened, tool
from standfast.temporal import StandfastPlugin
from standfast.temporal.activities.tools import tool_activities
from standfast.temporal.wire import names, snapshots
from standfast.testing import ScriptedModel


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("blocks", [False, True])
async def test_a_handler_that_hears_no_cancel_is_not_waited_for_beyond_its_time(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    for module in (snapshots, tool_activities):
        monkeypatch.setattr(module, "GRACE", 0.5)
    ends = threading.Event()

    @tool(timeout=0.5)
    async def post(text: str) -> str:
        """Post a text."""
        while not ends.is_set():
            if blocks:  # the loop of all handlers
                time.sleep(0.01)  # noqa: ASYNC251
                continue
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return text

    model = ScriptedModel([asks_for(call("post", "p1", text="x")), "done"])
    try:
        async with temporal.worker(Agent("poster", tools=[post]), llm=model):
            run = await temporal.start("poster")
            if blocks:  # nothing of users' runs beside it
                await until(partial(settled, run))
            else:
                assert (await result(run))["response"] == "done"
            ends.set()
            assert (await result(run))["response"] == "done"
            await check_healthy(run)
    finally:
        ends.set()
    ((_, told),) = tool_contents(await temporal.messages())
    assert "tool-durability-error" in told
    assert "its timeout passed while it ran" in told


@pytest.mark.slow
async def test_a_handler_that_may_still_run_is_not_run_again_though_verify_does_not_find_its_effect(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshots, tool_activities):
        monkeypatch.setattr(module, "GRACE", 0.5)
    ends, ran = threading.Event(), list[str]()

    async def found(text: str) -> NotHappened:
        if text == "cancels":  # otherwise the server would repeat the check for ever
            raise asyncio.CancelledError
        return NotHappened()

    @tool(timeout=0.5, parallel=True, verify=found)
    async def post(text: str) -> str:
        """Post a text."""
        ran.append(text)
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return text

    model = ScriptedModel([asks_for(*(call("post", text, text=text) for text in ("x", "cancels"))), "done"])
    try:
        async with temporal.worker(Agent("poster", tools=[post]), llm=model):
            run = await temporal.start("poster")
            assert (await result(run))["response"] == "done"
            await check_healthy(run)
    finally:
        ends.set()
    told = dict(tool_contents(await temporal.messages()))
    assert all("tool-durability-error" in text for text in told.values())
    assert "still runs" in told["x"]
    assert "verify was cancelled from within" in told["cancels"]
    assert sorted(ran) == ["cancels", "x"]


async def test_verify_is_asked_about_a_call_that_the_shutdown_of_its_worker_cuts_off(temporal: Temporal) -> None:
    begun = list[str]()

    def found(how: str) -> Happened | NotHappened | None:
        return {"happened": Happened("receipt"), "not-happened": NotHappened()}.get(how)

    @tool(parallel=True, verify=found)
    async def pay(how: str) -> str:
        """Pay, and wait for an answer that does not come."""
        begun.append(how)
        await asyncio.Event().wait()
        return "late"

    ways = ("happened", "not-happened", "cannot-tell")
    model = ScriptedModel([asks_for(*(call("pay", how, how=how) for how in ways)), "done"])
    agent = Agent("payer", tools=[pay])
    plugin = StandfastPlugin(agents=[agent], store=temporal.store, llm=model)
    grace = timedelta(milliseconds=1)
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], graceful_shutdown_timeout=grace):
        run = await temporal.start(agent)
        await until(lambda: len(begun) == len(ways))
    async with temporal.worker(agent, llm=model):
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    told = dict(tool_contents(await temporal.messages()))
    assert told["happened"] == "receipt"
    assert json.loads(told["not-happened"]) == {"error": "its worker was cut off while it ran"}
    assert "tool-durability-error" in told["cannot-tell"]
    assert sorted(begun) == sorted(ways)


async def settled(run: Run) -> bool:
    """Whether anyone has looked up the outcome of a call."""
    history = await run.fetch_history()
    kinds = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    return names.SETTLE in kinds
