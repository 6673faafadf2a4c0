"""Signals about items that people already see, before the run has processed them: each counts, for its own item."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.resets import reset
from support.temporal_runs import Run, Temporal, ask_models_once, events, pending, result, until
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from integration.temporal.test_boards import careful, kinds, ships_once
from standfast import Agent, InputError, ModelError, NotConfirmedError
from standfast.temporal import StandfastClient
from standfast.testing import ScriptedModel

clerk = Agent("clerk")


def down() -> ModelError:
    return ModelError("overloaded", transient=True)


def begin_again_with(worker: Worker, sent: Callable[[], Awaitable[Any]]) -> None:
    """Let the workflow task with the first end of an activity fail when something was sent: both come with the next.

    The same holds if a lone query reports the end of an activity, and no task has begun with it.
    """
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation

    async def poll_again() -> Any:
        activation = await poll()
        jobs = [job for job in activation.jobs if job.HasField("resolve_activity")]
        if activation.is_replaying or all(job.resolve_activity.is_local for job in jobs):
            return activation
        bridge.poll_workflow_activation = poll
        await sent()
        again = WorkflowActivationCompletion(run_id=activation.run_id)
        again.failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
        await bridge.complete_workflow_activation(again)
        return await poll()

    bridge.poll_workflow_activation = poll_again  # type: ignore[method-assign]


async def signals(run: Run) -> int:
    return kinds(await events(run)).count("WORKFLOW_EXECUTION_SIGNALED")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_store", [True, False])
@pytest.mark.parametrize("name", [None, "model"])
async def test_a_resume_that_comes_with_the_task_that_begins_the_pause_counts(
    temporal: Temporal, name: str | None, with_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    has_sent, doing = sends(monkeypatch), list[asyncio.Task[None]]()
    people = StandfastClient(temporal.client, store=temporal.store if with_store else None, timeout="60s")
    run_id = f"clerk/{temporal.session()}"

    async def sent() -> None:
        doing.append(asyncio.create_task(people.resume(run_id, name=name, by="bob")))
        await has_sent.wait()

    async with temporal.worker(clerk, llm=ScriptedModel([down(), "done"])) as worker:
        begin_again_with(worker, sent)
        run = await temporal.start(clerk)
        await until(lambda: doing)
        await doing[0]
        assert (await result(run))["status"] == "complete"
        assert await signals(run) == 2  # the first was refused


@pytest.mark.slow
async def test_a_resume_is_not_for_a_pause_that_began_after_it(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person tries again, another gives up at the same time: the run pauses again, and is not given up."""
    ask_models_once(monkeypatch)
    people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
    async with temporal.worker(clerk, llm=ScriptedModel([down(), down(), "done"])):
        run = await temporal.start(clerk)
        await pending(run)
    before = [asyncio.create_task(people.resume(run.id, "retry", by="ada"))]
    await until(lambda: _has_signals(run, 1))
    before.append(asyncio.create_task(people.resume(run.id, "abort", by="bob")))
    await until(lambda: _has_signals(run, 2))
    async with temporal.worker(clerk, llm=ScriptedModel([down(), "done"])):
        await before[0]
        with pytest.raises(InputError, match="the run is not paused"):
            await before[1]
        await pending(run)
        await people.resume(run.id)
        assert (await result(run))["status"] == "complete"


async def _has_signals(run: Run, count: int) -> bool:
    return await signals(run) == count


async def test_a_skip_at_a_pause_is_refused_at_once(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_models_once(monkeypatch)
    people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
    async with temporal.worker(clerk, llm=ScriptedModel([down(), "done"])):
        run = await temporal.start(clerk)
        await pending(run)
        await until(people.board)
        with pytest.raises(InputError, match="does not wait for a call or step"):
            await people.resume(run.id, "skip", name="model", reason="x")
        assert await signals(run) == 1
        await people.resume(run.id)
        await result(run)


def sends(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return what is set when someone has sent a signal."""
    has_sent, signal = asyncio.Event(), WorkflowHandle.signal

    async def sending(self: Any, *given: Any, **options: Any) -> None:
        await signal(self, *given, **options)
        has_sent.set()

    monkeypatch.setattr(WorkflowHandle, "signal", sending)
    return has_sent


class Slow:
    """A store that records a decision, and says so when it may."""

    def __init__(self, store: Any) -> None:
        self.has_recorded, self.may_say_so = asyncio.Event(), asyncio.Event()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def record_decision(self, record: Any) -> None:
        await self._store.record_decision(record)
        self.has_recorded.set()
        await self.may_say_so.wait()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_messages", [True, False])
async def test_nobody_is_told_that_a_decision_does_not_count_that_was_recorded_before_a_reset(
    temporal: Temporal, with_messages: bool
) -> None:
    store = Slow(temporal.store)
    people = StandfastClient(temporal.client, timeout="8s")
    async with temporal.worker(careful, llm=ScriptedModel(ships_once), store=store):
        run = await temporal.start(careful)
        (item,) = await pending(run)
        deciding = asyncio.create_task(people.decide(run.id, "c1", "reject", by="ada", digest=item["digest"]))
        await store.has_recorded.wait()
        again = await reset(temporal, run, 0, with_messages=with_messages)
        store.may_say_so.set()
        with pytest.raises(NotConfirmedError):
            await deciding
        assert (await result(again))["status"] == "complete"
    rows = await temporal.store.load_decisions(str(run.result_run_id))
    assert [(row.by, row.decision) for row in rows if row.refused is None] == [("ada", "reject")]
