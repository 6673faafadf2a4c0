"""A run whose model or hook cannot be called retries, pauses, and continues on request."""

import asyncio
import dataclasses
import threading
import time
from typing import Any

import pytest
from support.doubles import echo
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    failure,
    has_ended,
    pending,
    result,
    scheduled,
    status,
    until,
    waiting,
)
from support.transcripts import asks_for, call, says, shape
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import CancelledError

from standfast import Agent, AgentContext, InputError, Loop, Message, ModelError, RetryPolicy, StoreError, tool
from standfast.temporal.activities.worker import activity_guards
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import ScriptedModel


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model be asked twice, soon one after the other."""
    usual = model_calls.model_options

    def soon(retry: RetryPolicy, asks: str) -> dict[str, Any]:
        return usual(dataclasses.replace(retry, maximum_attempts=2, initial_interval=0.05), asks)

    monkeypatch.setattr(model_calls, "model_options", soon)


class Refusal(Exception):  # noqa: N818  # what an SDK raises
    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code


def down() -> ModelError:
    return ModelError("overloaded", transient=True)


helper = Agent("helper", tools=[echo], model="main")


async def paused(run: Run) -> dict[str, Any]:
    (pause,) = await pending(run)
    assert pause["kind"] == "pause"
    return pause


# --- pauses ---


async def test_a_model_that_stays_away_pauses_the_run(temporal: Temporal) -> None:
    model = ScriptedModel([down(), down(), "done"])
    async with temporal.worker(helper, llm=model):
        run = await temporal.start(helper)
        pause = await paused(run)
        assert (pause["name"], pause["message"]) == ("model", "overloaded")
        assert "deadline" in pause
        described = await status(run)
        assert (described["status"], described["iterations"]) == ("paused", 0)
        assert await run.execute_update("resume", {"action": "retry", "by": "eve"}) == {"accepted": True}
        ended = await result(run)
        assert (ended["status"], ended["response"], ended["iterations"]) == ("complete", "done", 1)
        await check_healthy(run)
    assert len(model.calls) == 3
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


async def test_a_paused_run_is_found_by_its_pause(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(helper)
        await paused(run)
        query = (
            f"StandfastSession = '{temporal.session()}' AND StandfastWaiting = 'pause' AND StandfastStatus = 'paused'"
        )

        async def found() -> list[str]:
            return [item.id async for item in temporal.client.list_workflows(query)]

        assert await until(found) == [run.id]
        await temporal.people.resume(run.id)
        await result(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("error", [Refusal(408), Refusal(409), Refusal(429), Refusal(500), Refusal(503), OSError("x")])
async def test_faults_that_pass_are_retried_and_the_loop_sees_one_answer(temporal: Temporal, error: Any) -> None:
    model = ScriptedModel([error, "done"])
    async with temporal.worker(helper, llm=model):
        ended = await temporal.run(helper)
    assert (ended["status"], ended["iterations"], len(model.calls)) == ("complete", 1, 2)
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("error", [Refusal(400), Refusal(401), Refusal(404), ModelError("no"), ValueError("no")])
async def test_faults_that_no_retry_mends_end_the_run_at_once(temporal: Temporal, error: Any) -> None:
    model = ScriptedModel([error])
    async with temporal.worker(helper, llm=model):
        ended = await temporal.run(helper)
    assert (ended["status"], ended["response"], ended["iterations"]) == ("error", str(error), 1)
    assert len(model.calls) == 1


async def test_an_aborted_run_ends_with_error_and_keeps_what_was_done(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([asks_for(call("echo", "c1", text="x")), down(), down()])):
        run = await temporal.start(helper)
        await paused(run)
        await temporal.people.resume(run.id, "abort", reason="no budget")
        ended = await result(run)
        assert (ended["status"], ended["iterations"]) == ("error", 2)
        assert ended["response"] == "The model could not be called: overloaded"
        await check_healthy(run)
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1"]


async def test_a_run_continues_with_another_model(temporal: Temporal) -> None:
    broken, spare = (
        ScriptedModel(lambda messages, tools: down()),
        ScriptedModel([asks_for(call("echo", "c1", text="x")), "ok"]),
    )
    async with temporal.worker(helper, llm={"main": broken, "spare": spare}.__getitem__):
        run = await temporal.start(helper)
        await paused(run)
        await temporal.people.resume(run.id, model="spare")
        assert (await result(run))["response"] == "ok"
        await check_healthy(run)
    assert (len(broken.calls), len(spare.calls)) == (2, 2)


async def test_a_model_that_does_not_exist_pauses_the_run_again(temporal: Temporal) -> None:
    models = {"main": ScriptedModel([down(), down(), "done"])}

    def choose(name: str | None) -> Any:
        if name not in models:
            raise InputError(f"no model {name}")
        return models[name or ""]

    async with temporal.worker(helper, llm=choose):
        run = await temporal.start(helper)
        await paused(run)
        await temporal.people.resume(run.id, model="typo")

        async def again() -> bool:
            return "typo" in str(await waiting(run)) or await has_ended(run)

        await until(again)
        assert (await status(run))["status"] == "paused"
        await temporal.people.resume(run.id, model="main")
        assert (await result(run))["response"] == "done"


async def test_a_pause_that_nobody_ends_in_time_ends_the_run_with_error(temporal: Temporal) -> None:
    hasty = Agent("hasty", loop=Loop(answer_timeout=0.3))
    async with temporal.worker(hasty, llm=ScriptedModel([down(), down()])):
        run = await temporal.start(hasty)
        ended = await result(run)
        assert (ended["status"], ended["iterations"]) == ("error", 1)
        assert await waiting(run) == []
        await check_healthy(run)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"action": "maybe"}, 'action must be "retry", "abort" or "skip"'),
        ({"model": 5}, "model must be text"),
        ({"retry": True}, "unknown key 'retry'"),
    ],
)
async def test_a_resume_that_makes_no_sense_is_refused(temporal: Temporal, data: dict[str, Any], reason: str) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(helper)
        await paused(run)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("resume", data)
        assert reason in str(refused.value.cause)
        await run.signal("resume")
        assert (await result(run))["status"] == "complete"


async def test_a_resume_is_refused_unless_the_run_is_paused(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(helper)
        await paused(run)
        counts = await asyncio.gather(*(temporal.people.resume(run.id) for _ in range(5)), return_exceptions=True)
        assert sum(item is None for item in counts) == 1
        assert all("not paused" in str(item) or "completed" in str(item) for item in counts if item is not None)
        await result(run)


async def test_a_message_during_a_pause_is_told_when_the_model_answers(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down(), "done", "heard"])):
        run = await temporal.start(helper)
        await paused(run)
        await temporal.people.message(run.id, "more")
        await temporal.people.resume(run.id)
        await result(run)
        await check_healthy(run)
    assert [line for line in shape(await temporal.messages()) if line.startswith("user")] == ["user go", "user more"]


async def test_a_cancel_of_a_paused_run_ends_it(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel([down(), down()])):
        run = await temporal.start(helper)
        await paused(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await result(run)
        assert isinstance(ended.value.cause, CancelledError)
        await check_healthy(run)


# --- waiting as long as the provider asks ---


async def test_a_provider_that_says_when_to_come_again_is_not_asked_before(temporal: Temporal) -> None:
    asked: list[float] = []

    def answer(messages: Any, tools: Any) -> Any:
        asked.append(time.monotonic())
        return ModelError("slow down", transient=True, retry_after=0.6) if len(asked) == 1 else "done"

    async with temporal.worker(helper, llm=ScriptedModel(answer)):
        assert (await temporal.run(helper))["status"] == "complete"
    assert asked[1] - asked[0] >= 0.6


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
async def test_a_wait_that_is_not_a_time_does_no_harm(temporal: Temporal, after: float) -> None:
    error = ModelError("slow down", transient=True)
    error.retry_after = after
    async with temporal.worker(helper, llm=ScriptedModel([error, "done"])):
        run = await temporal.start(helper)
        if after == 1e300:  # a day, at most
            (pause,) = await pending(run)
            assert pause["message"] == "slow down"
            await temporal.people.resume(run.id)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


# --- paid once ---


class Forgetful:
    """A store whose answer to the write of a reply is lost, a number of times, when the write is done."""

    def __init__(self, store: Any, method: str, times: int) -> None:
        self._store, self._method, self._times = store, method, times

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._method:
            return method

        async def lost(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            if self._times:
                self._times -= 1
                raise StoreError("the answer was lost")
            return answer

        return lost


WRITES = ["save_reply", "append_messages_atomic", "append_reply"]


@pytest.mark.parametrize("method", WRITES)
async def test_a_reply_whose_acknowledgement_was_lost_is_not_paid_twice(temporal: Temporal, method: str) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "done"])
    async with temporal.worker(helper, llm=model, store=Forgetful(temporal.store, method, 1)):
        ended = await temporal.run(helper)
    assert (ended["status"], ended["iterations"], len(model.calls)) == ("complete", 2, 2)
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


class CannotForget:
    """A store that cannot be told that a call has ended."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def end_call(self, owner: str) -> None:
        if not owner.startswith("worker_"):  # as a worker does before it takes runs
            raise StoreError("the store is away")


async def test_results_are_in_the_store_while_the_model_thinks_for_long_and_its_answer_is_paid_once(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_guards, "A_WHILE", 0.01)
    go_on = threading.Event()

    async def answer(messages: list[Message], tools: Any) -> Any:
        if messages[-1].role == "tool":
            await asyncio.to_thread(go_on.wait)
            return says("done")
        return asks_for(call("echo", "c1", text="x"))

    model = ScriptedModel(answer)
    async with temporal.worker(helper, llm=model, store=CannotForget(temporal.store)):
        run = await temporal.start(helper)

        async def written() -> bool:
            return shape(await temporal.messages()) == ["user go", "calls c1", "result c1"]

        await until(written)
        go_on.set()
        assert (await result(run))["response"] == "done"
    assert len(model.calls) == 2
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


# --- hooks and instructions that fail ---


def flaky(times: list[int], value: Any = None) -> Any:
    def hook(context: AgentContext) -> Any:
        times.append(1)
        if len(times) == 1:
            raise ValueError("not yet mended")
        return value

    return hook


@pytest.mark.parametrize("name", ["on_start", "on_complete", "instructions"])
async def test_a_hook_that_raises_pauses_the_run_until_it_is_mended(temporal: Temporal, name: str) -> None:
    times: list[int] = []
    agent = Agent("hooked", **{name: flaky(times, "Be brief." if name == "instructions" else None)})
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        run = await temporal.start(agent)
        assert "not yet mended" in (await paused(run))["message"]
        assert len(times) == 1
        await temporal.people.resume(run.id)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert len(times) == 2
    assert shape(await temporal.messages()) == ["user go", "assistant done"]


@pytest.mark.parametrize("name", ["on_start", "on_complete", "on_stuck", "instructions"])
async def test_a_run_whose_hook_is_given_up_ends(temporal: Temporal, name: str) -> None:
    def broken(context: AgentContext) -> str:
        raise ValueError("broken")

    loop = Loop(max_iterations=1) if name == "on_stuck" else Loop()
    agent = Agent("hooked", tools=[echo], loop=loop, **{name: broken})  # type: ignore[arg-type]
    script: list[Any] = [asks_for(call("echo", "c1", text="x")), "done"] if name == "on_stuck" else ["done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await paused(run)
        await temporal.people.resume(run.id, "abort")
        try:
            ended: Any = await result(run)
        except Exception:
            ended = {"status": "failed", "error": (await failure(run)).message}
        assert ended["status"] in ("error", "failed", "max-iterations", "complete")
        await check_healthy(run)


async def test_a_run_asks_for_nothing_but_its_steps(temporal: Temporal) -> None:
    @tool
    async def post() -> str:
        """Post."""
        return "posted"

    agent = Agent("plain", tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "p1"), call("post", "p2")), "done"])):
        run = await temporal.start(agent)
        await result(run)
        assert scheduled(await events(run)) == ["call_model", "post", "post", "call_model"]
