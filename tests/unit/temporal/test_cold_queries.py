"""Which runs a worker forgets after a query: those that may be further than their completed tasks."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.worker import Worker

from standfast.temporal.workflows.cold_queries import forget_runs_after_queries

BEGUN = WorkflowActivationJob(initialize_workflow=InitializeWorkflow())
SENT = WorkflowActivationJob(signal_workflow=SignalWorkflow())
ASKED = WorkflowActivationJob(query_workflow=QueryWorkflow(query_id="legacy_query"))
ASKED_WITH_TASK = WorkflowActivationJob(query_workflow=QueryWorkflow(query_id="q1"))
DROPPED = WorkflowActivationJob(remove_from_cache=RemoveFromCache())


def taken_in(*jobs: WorkflowActivationJob, replaying: bool = False, run: str = "r1") -> WorkflowActivation:
    return WorkflowActivation(run_id=run, is_replaying=replaying, jobs=jobs)


def asked(run: str = "r1") -> WorkflowActivation:
    return taken_in(ASKED, replaying=True, run=run)


@pytest.mark.parametrize(
    ("activations", "forgotten"),
    [
        ([taken_in(BEGUN, replaying=True), asked()], []),
        ([taken_in(BEGUN, replaying=True), taken_in(SENT), asked()], ["r1"]),
        ([taken_in(BEGUN), asked()], ["r1"]),
        ([taken_in(BEGUN), taken_in(ASKED_WITH_TASK)], []),
        ([taken_in(BEGUN), taken_in(DROPPED), taken_in(BEGUN, replaying=True), asked()], []),
        ([taken_in(BEGUN), taken_in(BEGUN, replaying=True, run="r2"), asked("r2")], []),
        ([taken_in(BEGUN), taken_in(BEGUN, run="r2"), asked("r2")], ["r2"]),
    ],
    ids=[
        "nothing is new since the last task: kept",
        "a signal is new: forgotten",
        "it has just begun: forgotten",
        "the query came with the task that brings what is new: kept",
        "forgotten already, and read again: kept",
        "something is new in another run: kept",
        "new in both, one is asked: that is forgotten",
    ],
)
def test_a_run_is_forgotten_if_a_query_finds_it_further_than_its_replayed_tasks(
    activations: list[WorkflowActivation], forgotten: list[str]
) -> None:
    requests: list[str] = []
    coming = iter(activations)

    async def poll() -> WorkflowActivation:
        return next(coming)

    bridge: Any = SimpleNamespace(poll_workflow_activation=poll, request_workflow_eviction=requests.append)
    forget_runs_after_queries(cast(Worker, SimpleNamespace(_bridge_worker=bridge)))

    async def poll_all() -> list[WorkflowActivation]:
        return [await bridge.poll_workflow_activation() for _ in activations]

    assert asyncio.run(poll_all()) == activations
    assert requests == forgotten
