"""A sender to a run that is ending learns that the message counts, does not count, or may count."""

import asyncio
import threading
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from temporalio.client import WorkflowFailureError

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_temporal_tool_approvals import TEAM
from standfast import Agent, Approval, Step, pipeline, tool
from standfast.errors import NotConfirmedError
from standfast.stores import SQLiteStore
from standfast.temporal import start_pipeline


class Slow(SQLiteStore):
    """A store that records decisions when it is let."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.recording, self.may_record = asyncio.Event(), asyncio.Event()

    async def record_decision(self, record: Any) -> None:
        self.recording.set()
        await self.may_record.wait()
        await super().record_decision(record)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_decision_that_is_recorded_while_its_run_ends_is_told_to_its_sender(
    temporal: Temporal, tmp_path: Any, how: str
) -> None:
    broken = threading.Event()

    @tool
    def wait() -> str:
        """Wait."""
        broken.wait()
        return "ok"

    def read(ctx: Any) -> Any:
        raise ValueError("it is broken")

    waits = pipeline("inner").step("wait", run=wait, input=lambda ctx: {}).step("read", run=wait, input=read).build()
    steps = [Step("ok", approval=Approval(quorum=2, approvers=["ada", "bob"])), Step("waits", pipeline=waits)]
    built = pipeline("p").parallel("both", *steps).build()
    async with Slow(tmp_path / "slow.db") as store, temporal.worker(pipelines=[built], store=store):
        handle = await start_pipeline(temporal.client, built, run_key=temporal.name, task_queue=temporal.name)
        (item,) = await pending(handle)
        deciding = asyncio.ensure_future(temporal.people.decide(handle.id, item["name"], "approve", by="ada"))
        await store.recording.wait()
        if how == "cancelled":
            await handle.cancel()
        broken.set()
        if how == "failed":
            await pending(handle, 2)  # what is broken pauses the run
            await temporal.people.resume(handle.id, "abort")
            await until(lambda: _is_ending(temporal, handle.id))
        store.may_record.set()
        await deciding
        run_id = (await handle.describe()).run_id
        rows = await until(lambda: store.load_decisions(run_id))
        assert [(row.by, row.refused) for row in rows] == [("ada", None)]
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        await check_healthy(handle)


async def _is_ending(temporal: Temporal, workflow_id: str) -> bool:
    return bool((await temporal.people.status(workflow_id))["status"] == "error")


async def test_a_person_who_decides_while_the_run_is_terminated_is_told_that_nobody_knows(
    temporal: Temporal, tmp_path: Any
) -> None:
    _, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with Slow(tmp_path / "slow.db") as store, temporal.worker(agent, llm=posts("hi"), store=store):
        handle = await temporal.start("a")
        await pending(handle)
        deciding = asyncio.ensure_future(temporal.people.decide(handle.id, "c1", "approve", by="ada"))
        await store.recording.wait()
        await handle.terminate()
        with pytest.raises(NotConfirmedError, match="ended before it reported the outcome of `decide`"):
            await deciding
        store.may_record.set()
