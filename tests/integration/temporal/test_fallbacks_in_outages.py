"""All models of an agent are down: the first to recover answers, and abandoned calls stay abandoned."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call, result_of, shape

from standfast import Agent, LLMResponse, Loop, Message, ModelError, RetryPolicy, Usage, tool
from standfast.temporal.activities.worker import activity_guards
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import ScriptedModel

waits_for_people = Loop(on_model_outage="pause")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each model be called twice before the run pauses, and often after that."""
    usual = model_calls.model_options

    def soon(retry: RetryPolicy, asks: str) -> dict[str, Any]:
        return usual(dataclasses.replace(retry, maximum_attempts=2, initial_interval=0.05), asks)

    monkeypatch.setattr(model_calls, "model_options", soon)
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.1), timedelta(seconds=0.3)))
    monkeypatch.setattr(activity_guards, "HEARTBEAT_EVERY", 0.2)  # a cancel comes with one


class Providers:
    """Models of several providers, each of which is up or down.

    Args:
        answers: of the turns, whichever model is called.
    """

    def __init__(self, *answers: LLMResponse | str, up: Sequence[str] = ()) -> None:
        self.up = set(up)
        self.answers, self.asked = list(answers), Counter[str]()

    def __call__(self, name: str) -> ScriptedModel:
        def ask(messages: Sequence[Message], tools: object) -> Any:
            self.asked[name] += 1
            if name not in self.up:
                return ModelError(f"{name} is down", transient=True)
            turn = sum(message.role == "assistant" for message in messages)
            return self.answers[turn]

        return ScriptedModel(ask)


class Till:
    """A tool with effects, in which the world can change."""

    def __init__(self, then: set[str], providers: Providers) -> None:
        self.paid = 0
        self._then, self._providers = then, providers

    def tool(self) -> Any:
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid += 1
            self._providers.up = set(self._then)
            return "paid"

        return pay


PAYS = asks_for(call("pay", "c1", amount=5), tokens=10)


async def is_paused(run: Run) -> None:
    assert [item["name"] for item in await pending(run)] == ["model"]


async def answering(temporal: Temporal) -> list[str | None]:
    return [message.model for message in await temporal.messages() if message.role == "assistant"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("back", "marks"), [("main", [None, None]), ("spare", [None, "spare"])])
@pytest.mark.parametrize("outage", ["retry", "pause"])
async def test_the_model_that_is_back_first_continues(
    temporal: Temporal, back: str, marks: list[str | None], outage: Literal["retry", "pause"]
) -> None:
    done = LLMResponse(text="done", usage=Usage(input_tokens=3, output_tokens=4))
    providers = Providers(PAYS, done, up=["main"])
    till = Till(set(), providers)
    agent = Agent(
        "clerk", model="main", fallback_models=["spare"], tools=[till.tool()], loop=Loop(on_model_outage=outage)
    )
    async with temporal.worker(agent, llm=providers):
        run = await temporal.start(agent)
        await is_paused(run)
        providers.up = {back}
        if outage == "pause":
            await temporal.people.resume(run.id)
        ended = await result(run)
        await check_healthy(run)
    assert (ended["status"], ended["response"], ended["usage"]["input_tokens"]) == ("complete", "done", 13)
    assert (till.paid, ended["iterations"], await answering(temporal)) == (1, 2, marks)


async def test_a_run_stays_with_the_model_that_is_back_until_that_is_down_again(temporal: Temporal) -> None:
    providers = Providers(PAYS, "done")
    till = Till({"spare"}, providers)  # the main one is down again when the tool has run
    agent = Agent("clerk", model="main", fallback_models=["spare"], tools=[till.tool()])
    async with temporal.worker(agent, llm=providers):
        run = await temporal.start(agent)
        await is_paused(run)
        before = providers.asked["main"]
        providers.up = {"main"}
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert (till.paid, await answering(temporal)) == (1, [None, "spare"])
    assert providers.asked["main"] >= before + 3  # it was also called for the second turn


async def test_a_fallback_that_a_person_did_not_choose_continues_instead_of_one_that_is_down(
    temporal: Temporal,
) -> None:
    providers = Providers("done")
    agent = Agent("clerk", model="main", fallback_models=["spare"])
    async with temporal.worker(agent, llm=providers):
        run = await temporal.start(agent)
        await is_paused(run)
        await temporal.people.resume(run.id, model="chosen")
        await until(lambda: providers.asked["chosen"] > 2)  # it is one of those called in turn now
        providers.up = {"spare"}
        assert (await result(run))["response"] == "done"
    assert await answering(temporal) == ["spare"]


async def test_people_see_all_models_that_are_called_in_an_outage(temporal: Temporal) -> None:
    providers = Providers("done")
    agent = Agent("clerk", model="main", fallback_models=["spare"])
    async with temporal.worker(agent, llm=providers):
        run = await temporal.start(agent)
        await is_paused(run)
        await until(lambda: providers.asked["spare"] > 3)
        history = await run.fetch_history()
        providers.up = {"main"}
        await result(run)
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    assert scheduled[-1].user_metadata.summary.data == b'"main, spare \xc2\xb7 turn 1"'


async def test_after_a_handoff_the_models_of_the_agent_that_answers_are_called(temporal: Temporal) -> None:
    providers = Providers(asks_for(call("transfer_to_billing", "h1")), "billed", up=["main"])
    billing = Agent("billing", model="theirs", fallback_models=["their-spare"])
    desk = Agent("desk", model="main", fallback_models=["spare"], handoffs=[billing])
    async with temporal.worker(desk, billing, llm=providers):
        run = await temporal.start(desk)
        await is_paused(run)
        providers.up = {"theirs"}
        assert (await result(run))["response"] == "billed"
    assert await answering(temporal) == [None, None]
    assert (providers.asked["main"], providers.asked["spare"]) == (1, 0)


async def test_an_outage_of_one_model_is_not_ended_by_the_mistake_of_another(temporal: Temporal) -> None:
    """The fallback's key expires while both are down."""
    providers, broken = Providers("done"), ScriptedModel(lambda messages, tools: ModelError("bad key"))
    models = {"spare": providers("spare")}
    agent = Agent("clerk", model="main", fallback_models=["spare"])
    async with temporal.worker(agent, llm=lambda name: models.get(name) or providers(name)):
        run = await temporal.start(agent)
        await is_paused(run)
        models["spare"] = broken
        await until(lambda: len(broken.calls) > 1)
        await is_paused(run)
        providers.up = {"main"}
        assert (await result(run))["response"] == "done"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("outage", ["retry", "pause"])
async def test_a_fallback_that_refuses_does_not_end_the_outage_of_the_agents_own_model(
    temporal: Temporal, outage: Literal["retry", "pause"]
) -> None:
    """It never had a good key, which did not matter while it was not needed."""
    providers, broken = Providers("done"), ScriptedModel(lambda messages, tools: ModelError("bad key"))
    agent = Agent("clerk", model="main", fallback_models=["spare"], loop=Loop(on_model_outage=outage))
    async with temporal.worker(agent, llm=lambda name: broken if name == "spare" else providers(name)):
        run = await temporal.start(agent)
        (pause,) = await pending(run)
        assert (pause["name"], pause["message"]) == ("model", "main is down; bad key")
        providers.up = {"main"}
        if outage == "pause":
            await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert await answering(temporal) == [None]


async def test_an_outage_is_over_when_all_models_refuse(temporal: Temporal) -> None:
    models = {
        "main": ScriptedModel([*[ModelError("down", transient=True)] * 3, ModelError("no credit")]),
        "spare": ScriptedModel(lambda messages, tools: ModelError("bad key")),
    }
    agent = Agent("clerk", model="main", fallback_models=["spare"])
    async with temporal.worker(agent, llm=models.__getitem__):
        ended = await temporal.run(agent)
    assert (ended["status"], ended["response"]) == ("error", "bad key")
    assert [len(model.calls) for model in models.values()] == [4, 3]


# --- what is given up ---


class Late:
    """A model that is down twice, and then answers after the run has been given up."""

    def __init__(self, answer: LLMResponse) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self._answers: list[LLMResponse] = [answer]
        self._calls = 0

    async def chat(self, messages: Sequence[Message], tools: object) -> LLMResponse:
        self._calls += 1
        if 1 < self._calls <= 3:
            raise ModelError("down", transient=True)
        if self._calls != 4:
            return PAYS if self._calls == 1 else LLMResponse(text="later")
        self.is_asked.set()
        while not self.may_answer.is_set():
            try:
                await self.may_answer.wait()
            except asyncio.CancelledError:  # an SDK that does not let go
                self.may_answer.set()
        return self._answers[0]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("by", ["a person", "the deadline"])
async def test_calls_that_a_model_asks_for_after_the_run_gave_up_never_run(temporal: Temporal, by: str) -> None:
    """Not even when the session continues: its next run would have found them without a result."""
    late, till = Late(asks_for(call("pay", "c2", amount=7), tokens=100)), Till(set(), Providers())
    agent = Agent("clerk", tools=[till.tool()], loop=Loop(answer_timeout=1 if by == "the deadline" else 60))
    async with temporal.worker(agent, llm=late):
        run = await temporal.start(agent)
        await late.is_asked.wait()
        await temporal.people.message(run.id, "are you there?")
        if by == "a person":
            await temporal.people.resume(run.id, "abort")
        ended = await result(run)
        assert (ended["status"], ended["usage"]["input_tokens"]) == ("error", 110)  # it was paid for
        await check_healthy(run)
        assert (await temporal.run(agent, message="again"))["response"] == "later"
    assert till.paid == 1
    assert shape(await temporal.messages()) == [
        "user go",
        "calls c1",
        "result c1",
        "calls c2",
        "result c2",
        "user are you there?",
        "user again",
        "assistant later",
    ]
    assert "Not run: the run ended with error" in result_of(await temporal.messages(), "c2")


async def test_a_text_that_comes_after_the_run_gave_up_stays_in_the_session(temporal: Temporal) -> None:
    late, agent = Late(LLMResponse(text="late", usage=Usage(input_tokens=7, output_tokens=1))), Agent("clerk")
    late._calls = 1
    async with temporal.worker(agent, llm=late):
        run = await temporal.start(agent)
        await late.is_asked.wait()
        await temporal.people.message(run.id, "are you there?")
        await temporal.people.resume(run.id, "abort")
        ended = await result(run)
        assert (ended["status"], ended["usage"]["input_tokens"]) == ("error", 7)
        assert (await temporal.run(agent, message=None))["response"] == "later"
    assert shape(await temporal.messages()) == [
        "user go",
        "assistant late",
        "user are you there?",
        "assistant later",
    ]


async def test_a_provider_that_asks_for_short_waits_is_not_called_more_often(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.05), timedelta(seconds=900)))
    model = ScriptedModel(lambda messages, tools: ModelError("down", transient=True, retry_after=0.001))
    agent = Agent("clerk")
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await is_paused(run)

        async def waits() -> Any:
            pending = (await run.describe()).raw_description.pending_activities
            attempts = [one for one in pending if one.attempt >= 5]
            return attempts and attempts[0].current_retry_interval.ToTimedelta()

        assert await until(waits) > timedelta(seconds=0.2)  # 2, 4, 8, 16 times the first
        await temporal.people.resume(run.id, "abort")
        await result(run)
