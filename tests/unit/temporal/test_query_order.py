"""The runs that a worker drops after a query, and the tasks that it begins again."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    ResolveActivity,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

from standfast.temporal.workflows.sdk.query_order import keep_order_beside_queries

BEGUN = WorkflowActivationJob(initialize_workflow=InitializeWorkflow())
SENT = WorkflowActivationJob(signal_workflow=SignalWorkflow())
ASKED = WorkflowActivationJob(query_workflow=QueryWorkflow(query_id="legacy_query"))
ASKED_WITH_TASK = WorkflowActivationJob(query_workflow=QueryWorkflow(query_id="q1"))
LOCAL = WorkflowActivationJob(resolve_activity=ResolveActivity(is_local=True))
USUAL = WorkflowActivationJob(resolve_activity=ResolveActivity())
DROPPED = WorkflowActivationJob(remove_from_cache=RemoveFromCache())


def taken_in(
    *jobs: WorkflowActivationJob, task: int = 1, length: int | None = None, replaying: bool = False, run: str = "r1"
) -> WorkflowActivation:
    """Return what a worker is given with a task, or with a query: then more of the history than the task had."""
    return WorkflowActivation(
        run_id=run,
        is_replaying=replaying,
        jobs=jobs,
        timestamp=Timestamp(seconds=task),
        history_length=10 * task if length is None else length,
    )


def asked(run: str = "r1") -> WorkflowActivation:
    return taken_in(ASKED, replaying=True, run=run)


READ = taken_in(BEGUN, replaying=True)


@pytest.mark.parametrize(
    ("activations", "forgotten"),
    [
        ([READ, asked()], []),
        ([READ, taken_in(SENT, length=11), asked()], ["r1"]),
        ([READ, taken_in(SENT, task=2), asked()], ["r1"]),
        ([READ, taken_in(SENT, task=2), taken_in(LOCAL, task=2), asked()], ["r1"]),
        ([READ, taken_in(SENT, task=2), taken_in(SENT, task=3), asked(), asked()], []),
        ([READ, taken_in(SENT, task=2), taken_in(SENT, task=3), taken_in(SENT, task=3, length=31), asked()], ["r1"]),
        ([READ, asked(), taken_in(SENT, task=2), asked()], ["r1"]),
        ([taken_in(BEGUN), asked()], ["r1"]),
        ([READ, taken_in(SENT, task=2), taken_in(ASKED_WITH_TASK, task=2)], []),
        ([taken_in(BEGUN), taken_in(DROPPED), READ, asked()], []),
        ([taken_in(BEGUN), taken_in(BEGUN, replaying=True, run="r2"), asked("r2")], []),
        ([taken_in(BEGUN), taken_in(BEGUN, run="r2"), asked("r2")], ["r2"]),
    ],
    ids=[
        "nothing is new since the last task: kept",
        "a signal came for which no task has begun: forgotten",
        "a task has begun, here or elsewhere: forgotten",
        "in which a local activity has ended: forgotten",
        "the first of two tasks can only have been begun here: kept",
        "but then a signal came for which no task has begun: forgotten",
        "it was asked before, and a task has begun: forgotten",
        "its first task: forgotten",
        "the query came with the task that brings what is new: kept",
        "forgotten already, and read again: kept",
        "something is new in another run: kept",
        "new in both, one waits for people: that is forgotten",
    ],
)
def test_a_run_is_forgotten_if_a_query_may_have_taken_it_further_than_its_tasks(
    activations: list[WorkflowActivation], forgotten: list[str]
) -> None:
    taken, requests, _ = take_in(activations)
    assert taken == activations
    assert requests == forgotten


@pytest.mark.parametrize(
    ("activation", "is_begun_again"),
    [
        (taken_in(LOCAL, SENT), True),
        (taken_in(LOCAL), False),
        (taken_in(USUAL, SENT), False),
        (taken_in(LOCAL, SENT, replaying=True), False),
    ],
    ids=["a local activity's end with a signal", "alone", "another activity's end", "in a replay, which has its order"],
)
def test_a_task_that_brings_a_late_end_of_a_local_activity_is_begun_again(
    activation: WorkflowActivation, is_begun_again: bool
) -> None:
    taken, _, failed = take_in([activation, taken_in(SENT, run="r2")])
    assert [one.run_id for one in taken] == (["r2"] if is_begun_again else ["r1", "r2"])
    assert failed == (["r1"] if is_begun_again else [])


def take_in(activations: list[WorkflowActivation]) -> tuple[list[WorkflowActivation], list[str], list[str]]:
    """Return what a worker is given of these, which runs it is to forget, and whose task it fails."""
    forgotten: list[str] = []
    failed: list[str] = []
    coming = [*activations]

    async def poll() -> WorkflowActivation:
        return coming.pop(0)

    async def complete(completion: WorkflowActivationCompletion) -> None:
        failed.extend([completion.run_id] * completion.HasField("failed"))

    bridge: Any = SimpleNamespace(
        poll_workflow_activation=poll,
        complete_workflow_activation=complete,
        request_workflow_eviction=forgotten.append,
    )
    keep_order_beside_queries(cast(Worker, SimpleNamespace(_bridge_worker=bridge)))

    async def take_all() -> list[WorkflowActivation]:
        taken = []
        while coming:
            taken.append(await bridge.poll_workflow_activation())
        return taken

    return asyncio.run(take_all()), forgotten, failed
