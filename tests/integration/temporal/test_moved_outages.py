"""Operators and deploys act on a run that waits for an outage: it continues, with one answer per turn."""

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, events, pending, result, until
from support.transcripts import shape

from standfast import Agent, Loop, Message, ModelError, RetryPolicy
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import ScriptedModel

helper = Agent("helper", model="main")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = model_calls.model_options

    def soon(retry: RetryPolicy, asks: str) -> dict[str, Any]:
        return usual(dataclasses.replace(retry, maximum_attempts=1), asks)

    monkeypatch.setattr(model_calls, "model_options", soon)
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.1), timedelta(seconds=0.3)))


class Provider:
    """A provider that is down until someone mends it; it counts its answers, which are paid for."""

    def __init__(self) -> None:
        self.is_up, self.answers = False, 0
        self.model = ScriptedModel(self._answer)

    def _answer(self, messages: Sequence[Message], tools: object) -> str | ModelError:
        self.answers += self.is_up
        return "done" if self.is_up else ModelError("down", transient=True)


async def waits(run: Run, provider: Provider) -> None:
    """Wait until the run is in the activity that continues until the outage is over."""
    assert [item["name"] for item in await pending(run)] == ["model"]
    calls = len(provider.model.calls)
    await until(lambda: len(provider.model.calls) > calls + 1)


async def test_a_reset_run_waits_again_and_answers_once(temporal: Temporal) -> None:
    provider = Provider()
    async with temporal.worker(helper, llm=provider.model):
        run = await temporal.start(helper)
        await waits(run, provider)
        run = await reset(temporal, run, 0)
        await waits(run, provider)
        provider.is_up = True
        ended = await result(run)
        await check_healthy(run)
    assert (ended["response"], ended["iterations"], provider.answers) == ("done", 1, 1)
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


async def test_a_run_that_was_terminated_in_the_meantime_can_be_started_again(temporal: Temporal) -> None:
    provider = Provider()
    async with temporal.worker(helper, llm=provider.model):
        run = await temporal.start(helper)
        await waits(run, provider)
        await run.terminate("by an operator")
        provider.is_up = True
        run = await temporal.start(helper, message="again")
        assert (await result(run))["response"] == "done"
    assert provider.answers == 1
    assert shape(await temporal.messages())[-2:] == ["user again", "assistant done"]


async def test_what_is_said_in_the_meantime_is_heard_after_the_outage(temporal: Temporal) -> None:
    provider = Provider()
    async with temporal.worker(helper, llm=provider.model):
        run = await temporal.start(helper)
        await waits(run, provider)
        await temporal.people.message(run.id, "are you there?")
        provider.is_up = True
        await result(run)
        await check_healthy(run)
    assert shape(await temporal.messages()) == ["user go", "assistant done", "user are you there?", "assistant done"]
    assert provider.answers == 2


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "deployed",
    [Agent("helper", model="other"), Agent("helper", model="main", loop=Loop(on_model_outage="pause"))],
    ids=["another model", "pause"],
)
async def test_a_deploy_in_an_outage_does_not_lose_the_wait(temporal: Temporal, deployed: Agent) -> None:
    provider = Provider()
    async with temporal.worker(helper, llm=provider.model):
        run = await temporal.start(helper)
        await waits(run, provider)
    async with temporal.worker(deployed, llm=provider.model):
        await waits(run, provider)
        provider.is_up = True
        ended = await result(run)
        await check_healthy(run)
    assert (ended["response"], ended["iterations"], provider.answers) == ("done", 1, 1)
    asked = [one for one in await events(run) if one.HasField("activity_task_scheduled_event_attributes")]
    assert asked[-1].user_metadata.summary.data.decode() == f'"{deployed.model} · turn 1"'  # people see which
