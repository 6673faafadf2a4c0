"""Outages of providers end automatically: paused runs call their model again, people see when, and may act before."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    has_ended,
    pending,
    result,
    status,
    until,
    waiting,
)
from support.transcripts import shape
from temporalio.api.enums.v1 import EventType

from standfast import Agent, DefinitionError, Loop, ModelError, RetryPolicy
from standfast.llm import create_adapter
from standfast.temporal.client.runs.descriptions import looked_at
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import Fault, ModelServer, ScriptedModel

helper = Agent("helper", model="main")
waits_for_people = Agent("helper", model="main", loop=Loop(on_model_outage="pause"))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model be called twice before the run pauses, soon one after the other."""
    usual = model_calls.model_options

    def soon(retry: RetryPolicy, asks: str) -> dict[str, Any]:
        return usual(dataclasses.replace(retry, maximum_attempts=2, initial_interval=0.05), asks)

    monkeypatch.setattr(model_calls, "model_options", soon)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let outages be looked at often."""
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.2), timedelta(seconds=0.5)))


def down(*, retry_after: float | None = None) -> ModelError:
    return ModelError("overloaded", transient=True, retry_after=retry_after)


async def paused(run: Run) -> dict[str, Any]:
    (pause,) = await pending(run)
    assert pause["kind"] == "pause"
    return pause


@pytest.mark.usefixtures("_short")
async def test_a_run_outlasts_an_outage_on_its_own(temporal: Temporal) -> None:
    model = ScriptedModel([*[down()] * 6, "done"])
    async with temporal.worker(helper, llm=model):
        ended = await temporal.run(helper)
    assert (ended["status"], ended["response"], ended["iterations"]) == ("complete", "done", 1)
    assert len(model.calls) == 7
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


async def test_a_run_that_waits_for_the_end_of_an_outage_is_paused_and_says_when_it_tries(temporal: Temporal) -> None:
    began = datetime.now(UTC)
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(helper)
        pause = await paused(run)
        assert (pause["name"], pause["message"]) == ("model", "overloaded")
        assert timedelta(seconds=29) < datetime.fromisoformat(pause["retry_at"]) - began < timedelta(seconds=120)
        assert 450 <= pause["retry_every"] <= 1350
        assert (await status(run))["status"] == "paused"
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)


@pytest.mark.usefixtures("_short")
async def test_a_run_gets_no_events_from_the_attempts_of_an_outage(temporal: Temporal) -> None:
    broken = True
    model = ScriptedModel(lambda messages, tools: down() if broken else "done")
    async with temporal.worker(helper, llm=model):
        run = await temporal.start(helper)
        await paused(run)

        async def tried() -> Any:
            return len(model.calls) >= 4 and (await looked_at(temporal.client, run.id)).get("retries")

        (retry,) = await until(tried)
        assert (retry["activity"], retry["error"]) == ("call_model", "overloaded")
        before = len(await events(run))
        calls = len(model.calls)

        async def tried_on() -> bool:
            return len(model.calls) >= calls + 3

        await until(tried_on)
        assert len(await events(run)) == before
        assert (await paused(run))["name"] == "model"
        broken = False
        assert (await result(run))["response"] == "done"
        assert await waiting(run) == []
        await check_healthy(run)


@pytest.mark.usefixtures("_short")
async def test_the_next_attempt_has_a_time(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.1), timedelta(seconds=900)))
    model = ScriptedModel([*[down()] * 2, down(retry_after=300), "done"])
    async with temporal.worker(helper, llm=model):
        run = await temporal.start(helper)

        async def left() -> Any:
            if len(model.calls) == 3:
                for retry in (await looked_at(temporal.client, run.id)).get("retries", ()):
                    return "next" in retry and datetime.fromisoformat(retry["next"]) - datetime.now(UTC)
            return None

        assert timedelta(seconds=200) < await until(left) <= timedelta(seconds=300)  # as the provider has asked
        await temporal.people.resume(run.id, "abort")
        assert (await result(run))["status"] == "error"


@pytest.mark.parametrize("minutes", [7])
async def test_a_provider_that_asks_to_wait_longer_is_not_called_before(temporal: Temporal, minutes: int) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(retry_after=60.0 * minutes), "done"])):
        run = await temporal.start(helper)
        pause = await paused(run)
        wait = datetime.fromisoformat(pause["retry_at"]) - datetime.fromisoformat(pause["since"])
        assert wait == timedelta(minutes=minutes)
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("outage", ["retry", "pause"])
async def test_a_provider_that_asks_to_wait_for_a_day_is_waited_for_in_sight_of_people(
    temporal: Temporal, outage: Literal["retry", "pause"]
) -> None:
    """And not in an activity, where it would be invisible and without a deadline."""
    agent = Agent("helper", loop=Loop(answer_timeout=1.5, on_model_outage=outage))
    async with ModelServer(lambda request: Fault(503, retry_after="99999999")) as server:
        model = create_adapter(provider="openai-compatible", model="m", base_url=server.url)
        async with temporal.worker(agent, llm=model):
            run = await temporal.start(agent)
            pause = await paused(run)
            if outage == "retry":
                wait = datetime.fromisoformat(pause["retry_at"]) - datetime.fromisoformat(pause["since"])
                assert wait == timedelta(days=1)
            assert (await result(run))["status"] == "error"
    assert len(server.requests) == 1


async def test_an_agent_can_leave_outages_to_people(temporal: Temporal) -> None:
    async with temporal.worker(waits_for_people, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(waits_for_people)
        assert "retry_at" not in await paused(run)
        timers = [one for one in await events(run) if one.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
        assert len(timers) == 1  # the deadline
        await temporal.people.resume(run.id)
        await result(run)


@pytest.mark.usefixtures("_short")
async def test_an_outage_that_outlasts_the_deadline_ends_the_run(temporal: Temporal) -> None:
    hasty = Agent("hasty", loop=Loop(answer_timeout=1))
    async with temporal.worker(hasty, llm=ScriptedModel(lambda messages, tools: down())):
        run = await temporal.start(hasty)
        ended = await result(run)
        assert (ended["status"], ended["response"]) == ("error", "The model could not be called: overloaded")
        await check_healthy(run)


@pytest.mark.usefixtures("_short")
async def test_a_deploy_in_an_outage_does_not_move_the_deadline(temporal: Temporal) -> None:
    model = ScriptedModel(lambda messages, tools: down())
    async with temporal.worker(helper, llm=model):
        run = await temporal.start(helper)
        first = await paused(run)
    async with temporal.worker(dataclasses.replace(helper, model="other"), llm=model):
        second = await until(paused_after(run, first))
        assert second["deadline"] == first["deadline"]
        await temporal.people.resume(run.id)  # someone has looked at it: the next wait has its own deadline
        third = await until(paused_after(run, second))
        assert third["deadline"] > first["deadline"]
    await check_healthy(run)


def paused_after(run: Run, earlier: dict[str, Any]) -> Any:
    async def later() -> dict[str, Any] | None:
        return next((item for item in await waiting(run) if item["since"] > earlier["since"]), None)

    return later


@pytest.mark.usefixtures("_short")
async def test_a_run_is_cancelled_in_an_outage(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(lambda messages, tools: down())):
        run = await temporal.start(helper)
        await paused(run)
        await run.cancel()
        await until(lambda: has_ended(run))
        assert await waiting(run) == []


@pytest.mark.usefixtures("_short")
async def test_a_fault_that_does_not_pass_ends_the_wait(temporal: Temporal) -> None:
    model = ScriptedModel([*[down()] * 3, ModelError("bad key")])
    async with temporal.worker(helper, llm=model):
        ended = await temporal.run(helper)
    assert (ended["status"], ended["response"], len(model.calls)) == ("error", "bad key", 4)


async def test_a_person_chooses_another_model_in_an_outage(temporal: Temporal) -> None:
    models = {"main": ScriptedModel(lambda messages, tools: down()), "spare": ScriptedModel(["ok"])}
    async with temporal.worker(helper, llm=models.__getitem__):
        run = await temporal.start(helper)
        await paused(run)
        await temporal.people.resume(run.id, model="spare")
        assert (await result(run))["response"] == "ok"
        await check_healthy(run)


async def test_the_agent_of_a_run_can_change_how_outages_end_only_for_later_runs(temporal: Temporal) -> None:
    model = ScriptedModel([*[down()] * 2, "done"])
    async with temporal.worker(waits_for_people, llm=model):
        run = await temporal.start(waits_for_people)
        await paused(run)
    async with temporal.worker(helper, llm=model):
        assert "retry_at" not in await paused(run)
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"


def test_what_happens_in_an_outage_is_one_of_two_words() -> None:
    with pytest.raises(DefinitionError, match="on_model_outage must be one of retry, pause"):
        Loop(on_model_outage="wait")  # type: ignore[arg-type]
