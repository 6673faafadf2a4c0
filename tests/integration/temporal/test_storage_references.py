"""References to an external storage that no worker has: anyone can send one, and no run stops."""

from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, pending, question, result
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.worker import Replayer, Worker

from standfast import Agent
from standfast.temporal import StandfastPlugin, approval
from standfast.testing import ScriptedModel

MARK = "__temporal_external_storage_reference"
REFERENCES = {
    "marked": Payload(metadata={"encoding": b"json/plain", MARK: b"true"}, data=b'{"nonsense": 1}'),
    "encoded": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b'{"nonsense": 1}'),
}


async def send(run: Run, name: str, reference: Payload) -> None:
    """Send it by signal and by update, as any program can."""
    await run.signal(name, RawValue(reference))
    with pytest.raises(WorkflowUpdateFailedError):
        await run.execute_update("decide" if name == "approve" else name, RawValue(reference))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", REFERENCES)
async def test_a_reference_that_somebody_sends_wedges_no_run(temporal: Temporal, kind: str) -> None:
    async with question(temporal) as run:
        for name in ("message", "answer", "resume"):
            await send(run, name, REFERENCES[kind])
        await check_healthy(run)
    plugin = StandfastPlugin(agents=[Agent("clerk")], store=temporal.store, llm=ScriptedModel([]))
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(await run.fetch_history())


@workflow.defn(name="own")
class Own:
    """A user's workflow, with a gate."""

    @workflow.run
    async def run(self) -> Any:
        return (await approval("ok"))["status"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", REFERENCES)
async def test_nor_a_workflow_of_a_users_own_at_its_gate(temporal: Temporal, kind: str) -> None:
    plugin = StandfastPlugin(store=temporal.store)
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], workflows=[Own]):
        run: Run = await temporal.client.start_workflow(Own.run, id=temporal.name, task_queue=temporal.name)
        await pending(run)
        await send(run, "approve", REFERENCES[kind])
        await run.signal("approve", {"gate": "ok", "by": "ada"})
        assert await result(run) == "approved"
        await check_healthy(run)


async def test_an_input_that_is_a_reference_fails_the_run(temporal: Temporal) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(["done"])):
        for reference in REFERENCES.values():
            run = await temporal.start_raw("helper", RawValue(reference))
            with pytest.raises(Exception, match="Workflow execution failed"):
                await run.result()
            await check_healthy(run)
