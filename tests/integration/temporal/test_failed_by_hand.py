"""An operator fails an activity by hand, or completes it with unreadable bytes: no run hangs or is lost."""

import asyncio
import threading
from typing import Any

import pytest
from support.doubles import echo
from support.temporal_runs import Run, Temporal, check_healthy, pending, raw_payload, result, until, waiting
from support.transcripts import asks_for, call
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import (
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskFailedByIdRequest,
)
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from integration.temporal.test_completed_by_hand import activity_id, payer
from standfast import Agent, pipeline
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

UNREADABLE = {
    "broken": raw_payload(b'{"a":'),
    "too-large": raw_payload(b'"' + b"x" * 3_000_000 + b'"'),
}
DETAILS = {
    "none": [],
    "broken": [raw_payload(b'{"a":')],
    "others": [raw_payload(b'{"name": 5, "model": 3, "step": 7, "failed_step": 5, "search": "x", "other_store": [1]}')],
}
# The types by which our activities tell a run why they have failed, with details.
OURS = ["NotOnThisWorker", "ModelChanged", "StoreAway", "StoreBehindError"]


async def complete(temporal: Temporal, run: Run, name: str, payload: Payload) -> None:
    await temporal.client.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace="default",
            workflow_id=run.id,
            activity_id=await activity_id(run, name),
            result=Payloads(payloads=[payload]),
        )
    )


async def fail(temporal: Temporal, run: Run, name: str, kind: str, details: list[Payload]) -> None:
    info = ApplicationFailureInfo(type=kind, non_retryable=True, details=Payloads(payloads=details))
    await temporal.client.workflow_service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace="default",
            workflow_id=run.id,
            activity_id=await activity_id(run, name),
            failure=Failure(message="by hand", application_failure_info=info),
        )
    )


class Payer:
    """An agent that pays; its model or its tool waits until it may go on."""

    def __init__(self, waits_in: str) -> None:
        self.inside, self.go_on, self.paid = threading.Event(), threading.Event(), list[str]()
        self._model_waits, at_once = waits_in == "model", threading.Event()
        at_once.set()
        events = (threading.Event(), at_once) if self._model_waits else (self.inside, self.go_on)
        self.agent, self.model = Agent("payer", tools=[payer(*events, self.paid)]), ScriptedModel(self._answer)

    async def _answer(self, messages: Any, tools: Any) -> Any:
        if self._model_waits:
            self.inside.set()
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
        return "done" if any(one.role == "tool" for one in messages) else asks_for(call("pay", "c1"))

    async def ends(self, run: Run) -> None:
        """Go on, let people resume what has paused, and check that the run completes with one payment."""
        self.go_on.set()

        async def has_ended() -> bool:
            if any(item["kind"] == "pause" for item in await waiting(run)):
                await run.signal("resume", {"action": "retry"})
            return (await run.describe()).status != WorkflowExecutionStatus.RUNNING

        await until(has_ended)
        assert (await result(run))["status"] == "complete"
        assert self.paid == ["ended"]
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("details", DETAILS)
@pytest.mark.parametrize("kind", OURS)
async def test_a_model_call_that_is_failed_with_an_error_of_ours_and_any_details_is_made_again(
    temporal: Temporal, kind: str, details: str
) -> None:
    one = Payer("model")
    async with temporal.worker(one.agent, llm=one.model):
        run = await temporal.start(one.agent)
        await until(one.inside.is_set)
        await fail(temporal, run, "call_model", kind, DETAILS[details])
        await one.ends(run)


@pytest.mark.parametrize("details", DETAILS)
async def test_a_step_that_is_failed_with_an_error_of_ours_and_any_details_fails_the_run_in_words(
    temporal: Temporal, details: str
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def make(ctx: Any) -> dict[str, Any]:
        inside.set()
        go_on.wait()
        return {"text": "x"}

    flow = pipeline("notes", input=str).step("note", run=echo, input=make).build()
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, input="x", run_key=temporal.name, task_queue=temporal.name)
        try:
            await until(inside.is_set)
            await fail(temporal, run, "standfast.step", "StepError", DETAILS[details])
            with pytest.raises(WorkflowFailureError) as failed:
                await result(run)
        finally:
            go_on.set()
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.message == "by hand"
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("put_in", [*UNREADABLE, "a failure"])
async def test_a_look_at_the_outcome_of_a_call_that_somebody_ends_by_hand_waits_for_a_person_and_is_taken_again(
    temporal: Temporal, put_in: str
) -> None:
    one = Payer("tool")
    async with temporal.worker(one.agent, llm=one.model):
        run = await temporal.start(one.agent)
        await until(one.inside.is_set)
        await fail(temporal, run, "pay", "ActivityReset", [])  # so that the run looks for the attempt that continues
        if put_in in UNREADABLE:
            await complete(temporal, run, "standfast.settle", UNREADABLE[put_in])
        else:
            await fail(temporal, run, "standfast.settle", "any", [])
        (item,) = await pending(run)
        assert (item["kind"], item["name"]) == ("pause", "standfast.settle")
        await one.ends(run)
    read = [message.content for message in await temporal.messages() if message.role == "tool"]
    assert read == ["paid by card"]


async def test_a_run_ends_in_words_if_nobody_wants_the_outcome_of_a_call_looked_up_again(temporal: Temporal) -> None:
    one = Payer("tool")
    async with temporal.worker(one.agent, llm=one.model):
        run = await temporal.start(one.agent)
        await until(one.inside.is_set)
        await fail(temporal, run, "pay", "ActivityReset", [])
        await fail(temporal, run, "standfast.settle", "any", [])
        await pending(run)
        await run.signal("resume", {"action": "abort"})
        with pytest.raises(WorkflowFailureError) as failed:
            await result(run)
        one.go_on.set()
        assert isinstance(failed.value.cause, ApplicationError)
        assert (failed.value.cause.message, failed.value.cause.type) == ("by hand", "any")
        await until(lambda: one.paid)
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("put_in", UNREADABLE)
@pytest.mark.parametrize("activity", ["call_model", "pay"])
async def test_what_nobody_can_read_instead_of_a_result_does_not_stop_a_run(
    temporal: Temporal, activity: str, put_in: str
) -> None:
    one = Payer("model" if activity == "call_model" else "tool")
    async with temporal.worker(one.agent, llm=one.model):
        run = await temporal.start(one.agent)
        await until(one.inside.is_set)
        await complete(temporal, run, activity, UNREADABLE[put_in])
        await one.ends(run)
