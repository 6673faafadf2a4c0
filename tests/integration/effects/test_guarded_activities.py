"""A guarded function with effects runs once in a user's activity, even if its worker dies after it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError

from standfast.testing import DevServer, child_process


@dataclass
class Shop:
    """Workers that die behind a charge, and are started again."""

    client: Client
    address: str
    folder: Path
    queue: str
    deaths: int = 0

    @property
    def charges(self) -> list[str]:
        path = self.folder / "charges"
        return path.read_text().splitlines() if path.exists() else []

    async def sell(self, kind: str, deaths: int) -> WorkflowHandle[Any, Any]:
        """Begin a purchase, and keep a worker alive until it has ended."""
        run = await self.client.start_workflow("Purchase", "card", id=self.queue, task_queue=self.queue)
        await self.serve(kind, deaths, run)
        return run

    async def serve(self, kind: str, deaths: int, run: WorkflowHandle[Any, Any]) -> None:
        async def has_ended() -> bool:
            return (await run.describe()).status != 1

        while not await has_ended():
            async with self.worker(kind, deaths) as process:
                died = asyncio.ensure_future(process.wait())
                while not died.done() and not await has_ended():
                    await asyncio.wait({died}, timeout=0.1)
                self.deaths += died.done()
                died.cancel()

    @asynccontextmanager
    async def worker(self, kind: str, deaths: int) -> AsyncIterator[asyncio.subprocess.Process]:
        words = (self.address, self.queue, str(self.folder / "store.db"), str(self.folder / "charges"), kind)
        command = (sys.executable, "-m", "support.guarded_worker", *words, str(deaths))
        tests = str(Path(__file__).parents[2])
        async with child_process(*command, environment={**os.environ, "PYTHONPATH": tests}) as process:
            yield process


@pytest.fixture
def shop(temporal: Any, temporal_server: DevServer, tmp_path: Path) -> Shop:
    return Shop(temporal.client, temporal_server.address, tmp_path, temporal.name)


async def failure(run: WorkflowHandle[Any, Any]) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, ApplicationError)
    return failed.value.cause.cause


@pytest.mark.slow
async def test_without_a_guard_each_death_of_its_worker_is_another_charge(shop: Shop) -> None:
    run = await shop.sell("bare", deaths=2)
    assert await run.result() == {"charged": 5}
    assert shop.charges == ["card 5"] * 3
    assert shop.deaths == 2


async def test_with_a_guard_it_is_one_charge_and_the_workflow_is_told(shop: Shop) -> None:
    run = await shop.sell("guarded", deaths=2)
    told = await failure(run)
    assert shop.charges == ["card 5"]
    assert shop.deaths == 1
    assert (told.type, told.non_retryable) == ("ToolDurabilityError", True)
    assert told.details[0]["kind"] == "tool-durability-error"
    assert told.details[0]["toolName"] == "charge"


@pytest.mark.slow
async def test_what_is_safe_to_retry_runs_again(shop: Shop) -> None:
    run = await shop.sell("safe", deaths=1)
    assert await run.result() == {"charged": 5}
    assert shop.charges == ["card 5"] * 2


@pytest.mark.slow
async def test_what_can_be_looked_up_is_one_charge_and_continues(shop: Shop) -> None:
    run = await shop.sell("verified", deaths=2)
    assert await run.result() == {"charged": 5}
    assert shop.charges == ["card 5"]


async def test_after_a_reset_the_result_is_found_and_nothing_is_charged(shop: Shop) -> None:
    run = await shop.sell("guarded", deaths=0)
    assert await run.result() == {"charged": 5}
    again = await reset(shop.client, run)
    await shop.serve("guarded", 0, again)
    assert await again.result() == {"charged": 5}
    assert again.run_id != run.first_execution_run_id
    assert shop.charges == ["card 5"]


async def reset(client: Client, run: WorkflowHandle[Any, Any]) -> WorkflowHandle[Any, Any]:
    """Reset a run to its first workflow task."""
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

    tasks = [event.event_id async for event in run.fetch_history_events() if event.event_type == 7]
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.result_run_id or ""),
            workflow_task_finish_event_id=tasks[0],
            request_id="again",
        )
    )
    return client.get_workflow_handle(run.id, run_id=answer.run_id)
