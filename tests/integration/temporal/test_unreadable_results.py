"""An operator replaces a model's answer, a call or a verdict with data that no converter can read."""

import asyncio
import threading
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, raw_payload, result, until
from support.transcripts import asks_for, call

from integration.effects.test_effects_put_in_by_hand import put_in
from integration.temporal.test_completed_by_hand import payer
from standfast import Agent
from standfast.testing import ScriptedModel

UNREADABLE = {
    "not-JSON": raw_payload(b"{nope"),
    "unknown": raw_payload(b"{}", "unknown"),
    "too-large": raw_payload(b'"' + b"x" * 3_000_000 + b'"'),
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_a_call_and_a_models_answer_that_cannot_be_read_stop_no_run(temporal: Temporal, kind: str) -> None:
    inside, go_on, ends, asked = threading.Event(), threading.Event(), list[str](), list[int]()

    async def model(messages: Any, tools: Any) -> Any:
        if not any(message.role == "tool" for message in messages):
            return asks_for(call("pay", "c1"))
        asked.append(1)
        while not go_on.is_set():
            await asyncio.sleep(0.02)
        return "done"

    agent = Agent("payer", tools=[payer(inside, go_on, ends)])
    async with temporal.worker(agent, llm=ScriptedModel(model)):
        run = await temporal.start(agent)
        await until(inside.is_set)
        await put_in(temporal, run, "pay", UNREADABLE[kind])
        await until(lambda: asked)
        await put_in(temporal, run, "call_model", UNREADABLE[kind])
        (waits,) = await pending(run)
        assert (waits["kind"], waits["name"]) == ("pause", "model")
        go_on.set()
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
        await until(lambda: ends)
        await check_healthy(run)
    assert ends == ["ended"]
