"""A guarded function called by a workflow itself, or in a local activity, is refused without a single key."""

from datetime import timedelta
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, failure, result
from temporalio import activity, workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from standfast.effects import ToolDurabilityError, effect

RUNS: list[str] = []
BY_KIND: dict[str, Any] = {}


@workflow.defn(sandboxed=False)
class Purchase:
    @workflow.run
    async def run(self, kind: str) -> Any:
        found = BY_KIND[kind]()
        return found if kind == "plain" else await found


@pytest.mark.parametrize("kind", ["async", "plain", "block"])
async def test_a_guarded_function_in_a_workflow_fails_the_run_and_says_what_to_do(
    temporal: Temporal, kind: str
) -> None:
    guard = effect(temporal.store, "charge", key=lambda: "order-7")

    async def charge() -> None:
        RUNS.append(kind)

    def charge_plainly() -> None:
        RUNS.append(kind)

    async def block() -> None:
        async with effect(temporal.store, "charge", key="order-7"):
            RUNS.append(kind)

    BY_KIND[kind] = {"async": guard(charge), "plain": guard(charge_plainly), "block": block}[kind]
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Purchase]):
        run: Any = await temporal.client.start_workflow(
            Purchase.run, kind, id=temporal.session(), task_queue=temporal.name
        )
        error = await failure(run)
    assert (error.type, error.non_retryable, RUNS) == ("InputError", True, [])
    assert "'charge' was called in a workflow, which reaches no store, and nothing was run" in str(error)


@workflow.defn(sandboxed=False)
class Unsure:
    @workflow.run
    async def run(self, queue: str) -> Any:
        return await workflow.execute_activity(BY_KIND[queue], start_to_close_timeout=timedelta(seconds=9))


async def test_an_unknown_outcome_that_is_returned_reaches_a_workflow_whatever_type_its_activity_returns(
    temporal: Temporal,
) -> None:
    @activity.defn
    @effect(temporal.store, on_unknown="return")
    async def charge() -> int:
        raise ToolDurabilityError("charge", "order-7", reason="the bank was silent")

    BY_KIND[temporal.name] = charge
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Unsure], activities=[charge]):
        run: Any = await temporal.client.start_workflow(
            Unsure.run, temporal.name, id=temporal.session(), task_queue=temporal.name
        )
        assert (await result(run))["kind"] == "tool-durability-error"
        await check_healthy(run)


@workflow.defn(sandboxed=False)
class LocalPurchase:
    @workflow.run
    async def run(self, activity_id: str | None) -> Any:
        soon = timedelta(milliseconds=50)
        return await workflow.execute_local_activity(
            "order",
            activity_id=activity_id,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(initial_interval=soon),
            local_retry_threshold=soon / 2,  # so that each attempt but the first comes after a timer, with another id
        )


@pytest.mark.parametrize("known_by", ["nothing", "a key", "an activity id"])
async def test_what_a_local_activity_calls_is_found_at_each_attempt_by_its_key_or_is_unknown(
    temporal: Temporal, known_by: str
) -> None:
    charged: list[str] = []

    @effect(temporal.store, "charge", key=(lambda: "order-7") if known_by == "a key" else None)
    async def charge() -> str:
        charged.append(known_by)
        return "charged"

    @activity.defn
    async def order() -> str:
        found = await charge()
        if activity.info().attempt == 1:
            raise RuntimeError("what comes behind the charge has failed")
        return found

    async with Worker(temporal.client, task_queue=temporal.name, workflows=[LocalPurchase], activities=[order]):
        run = await temporal.client.start_workflow(
            LocalPurchase.run,
            "order-7" if known_by == "an activity id" else None,
            id=temporal.session(),
            task_queue=temporal.name,
        )
        if known_by == "nothing":
            with pytest.raises(WorkflowFailureError) as failed:
                await run.result()
            told = failed.value.cause.__cause__ or failed.value.cause  # a local one that fails at once is told itself
            assert isinstance(told, ApplicationError)
            assert (told.type, told.non_retryable, charged) == ("ToolDurabilityError", True, [known_by])
            assert "an earlier attempt at this local activity may have run it" in str(told)
        else:
            assert await run.result() == "charged"
            assert charged == [known_by]
