"""Gates in user workflows: in the sandbox, with early signals, and with decisions that do not count."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from support.own_workflows import Approver, Undecided
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, refusals, result, until, until_over
from temporalio import activity, workflow
from temporalio.client import WorkflowUpdateFailedError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Replayer, Worker

from integration.temporal.test_temporal_sdk_updates import SOON, failed_replays
from standfast import Agent, Approval
from standfast.temporal import StandfastPlugin, approval
from standfast.testing import ScriptedModel, time_skipping_server


@workflow.defn
class Release:
    """A user's workflow that asks twice."""

    @workflow.run
    async def run(self, patience: float | None = None) -> list[dict[str, Any]]:
        first = await approval("test", message="Tested?", approvers=["ada", "bob"], timeout=patience)
        second = await approval("ship", requester="ada", exclude_requester=True, timeout=patience and 1)
        return [first, second]


@workflow.defn
class Overdue:
    """A user's workflow that asks somebody else after a while, in other words."""

    @workflow.run
    async def run(self) -> dict[str, Any]:
        later = Approval(message="Nobody has answered. Ship it?", approvers=["bob"])
        return {**await approval("ship", message="Ship it?", timeout=0.2, on_timeout="escalate", escalate_to=later)}


@workflow.defn
class OverdueAtLength:
    """Its escalation has fewer characters than its message, and more bytes than a gate may have."""

    @workflow.run
    async def run(self) -> dict[str, Any]:
        later = Approval(message="é" * 800_000, approvers=["bob"])
        return {**await approval("ship", message="x" * 900_000, timeout=60, on_timeout="escalate", escalate_to=later)}


@workflow.defn(sandboxed=False)  # which would load this module again for each of many runs
class Shipment:
    """A user's workflow that is busy while it asks."""

    @workflow.run
    async def run(self, queue: str) -> dict[str, Any]:
        asking = asyncio.create_task(approval("ship"))
        await workflow.execute_activity("first", task_queue=queue, start_to_close_timeout=SOON)
        await workflow.execute_activity("second", start_to_close_timeout=SOON)
        return {**await asking}


def worker(temporal: Temporal, **options: Any) -> Worker:
    plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
    return Worker(
        temporal.client,
        task_queue=temporal.name,
        workflows=[Release, Overdue, OverdueAtLength],
        plugins=[plugin],
        **options,
    )


async def start(temporal: Temporal, **options: Any) -> Run:
    started: Run = await temporal.client.start_workflow(
        "Release", id=temporal.session(), task_queue=temporal.name, **options
    )
    return started


async def test_a_workflow_of_the_users_waits_for_decisions(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, start_signal="approve", start_signal_args=[{"gate": "ship", "by": "eve"}])
        (shown,) = await pending(run)
        assert (shown["kind"], shown["name"], shown["approvers"]) == ("approval", "test", ["ada", "bob"])

        async def listed() -> bool:
            found = await temporal.people.waiting()
            return (run.id, "test") in [(item["workflow_id"], item["name"]) for item in found]

        await until(listed)
        for data in (
            {"gate": "test", "decision": "approve", "by": "mallory"},
            5,
            {"gate": "no", "decision": "approve"},
        ):
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update("decide", data)
        await run.signal("reject", 5)
        await temporal.people.decide(run.id, "test", "approve", by="bob", comment="all green")
        ended: Any = await result(run)
        assert [(gate["status"], gate["by"], gate["comment"]) for gate in ended] == [
            ("approved", ["bob"], "all green"), ("approved", ["eve"], None)
        ]  # fmt: skip
        await check_healthy(run)
    rows = await temporal.store.load_decisions((await run.describe()).run_id)
    assert [(row.gate, row.by, row.refused is None) for row in rows] == [
        ("test", "mallory", False), ("test", "bob", True), ("ship", "eve", True)
    ]  # fmt: skip
    await Replayer(workflows=[Release]).replay_workflow(await run.fetch_history())


async def test_after_a_deadline_people_read_the_message_of_the_escalation_and_decide_by_its_digest(
    temporal: Temporal,
) -> None:
    async with worker(temporal):
        run: Run = await temporal.client.start_workflow("Overdue", id=temporal.session(), task_queue=temporal.name)

        async def escalated() -> dict[str, Any] | None:
            [item] = await pending(run)
            return item if item["message"] == "Nobody has answered. Ship it?" else None

        item = await until(escalated)
        await temporal.people.decide(run.id, "ship", "approve", by="bob", digest=item["digest"])
        decided: Any = await result(run)
        assert (decided["status"], decided["by"]) == ("approved", ["bob"])
        await check_healthy(run)


async def test_a_gate_whose_escalation_people_could_not_see_whole_is_refused(temporal: Temporal) -> None:
    async with worker(temporal):
        run: Run = await temporal.client.start_workflow(
            "OverdueAtLength", id=temporal.session(), task_queue=temporal.name
        )
        refused = await failure(run)
        assert refused.type == "InputError"
        assert "bytes to show" in refused.message


@pytest.mark.slow
async def test_a_gate_of_a_workflow_of_the_users_has_a_deadline() -> None:
    async with (
        time_skipping_server() as environment,
        asyncio.timeout(60),
        Worker(environment.client, task_queue="q", workflows=[Release]),
    ):
        week = timedelta(days=7).total_seconds()
        run = await environment.client.start_workflow("Release", week, id="r", task_queue="q")
        ended: Any = await run.result()
        assert [gate["status"] for gate in ended] == ["timed-out", "timed-out"]


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
async def test_a_signal_counts_by_the_time_when_it_was_given_in_a_workflow_of_the_users(
    temporal: Temporal, late: bool
) -> None:
    async with worker(temporal):
        run = await start(temporal, arg=2 if late else 10)
        (item,) = await pending(run)
    if late:
        await until_over(item)
    await run.signal("approve", {"gate": "test", "by": "bob"})
    await until_over(item)
    async with worker(await temporal.elsewhere()):
        ended: Any = await result(run)
        assert [gate["status"] for gate in ended] == ["timed-out" if late else "approved", "timed-out"]
        assert await refusals(run) == (["gate test was timed out already"] if late else [])
        await check_healthy(run)
    rows = await temporal.store.load_decisions((await run.describe()).run_id)
    assert [(row.by, row.refused) for row in rows] == [("bob", "gate test was timed out already" if late else None)]


@pytest.mark.slow
async def test_a_gate_that_opens_after_a_long_look_around_has_its_whole_time_also_in_a_replay(
    temporal: Temporal,
) -> None:
    class Slow(ActivityInboundInterceptor):
        async def execute_activity(self, given: ExecuteActivityInput) -> Any:
            if activity.info().is_local:
                await asyncio.sleep(3)
            return await super().execute_activity(given)

    class Interceptors(Interceptor):
        def intercept_activity(self, inner: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            return Slow(inner)

    async with worker(temporal, interceptors=[Interceptors()]):
        run = await start(temporal, arg=2, task_timeout=timedelta(seconds=2))
        ended: Any = await result(run)
    assert [gate["status"] for gate in ended] == ["timed-out", "timed-out"]
    await Replayer(workflows=[Release]).replay_workflow(await run.fetch_history())


@pytest.mark.slow
async def test_a_decision_by_update_beside_a_query_wedges_no_workflow_of_the_users(temporal: Temporal) -> None:
    async def approve(run: Run) -> None:
        await run.execute_update("decide", {"gate": "ship", "decision": "approve", "by": "ada"}, rpc_timeout=SOON)

    plugin = StandfastPlugin(agents=[], store=temporal.store)
    assert await failed_replays(temporal, temporal.name, approve, "pending", Shipment, [plugin]) == []


@pytest.mark.slow
async def test_nothing_waits_in_a_workflow_of_the_users_before_its_first_gate(temporal: Temporal) -> None:
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Undecided]):
        run = await temporal.client.start_workflow("Undecided", id=temporal.session(), task_queue=temporal.name)
        assert await temporal.people.pending(run.id) == []
        await run.signal("ask")
        await pending(run)
        assert [item["name"] for item in await temporal.people.pending(run.id)] == ["ship"]
        await run.terminate()


@pytest.mark.slow
async def test_a_gate_does_not_take_over_a_signal_of_the_workflows_own(temporal: Temporal) -> None:
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Approver]):
        run: Run = await temporal.client.start_workflow("Approver", id=temporal.session(), task_queue=temporal.name)
        cause = await failure(run)
    assert (cause.type, "has its own handler for the signal 'approve'" in cause.message) == (
        "DefinitionError", True
    )  # fmt: skip
