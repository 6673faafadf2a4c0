"""An activity that does its work and is then retried, to test the guards' keys in an activity."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from standfast.testing import DevServer


@workflow.defn(sandboxed=False)
class Tried:
    @workflow.run
    async def run(self) -> Any:
        return await workflow.execute_activity(
            "attempt",
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
        )


async def tried_twice(server: DevServer, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do some work in two attempts at one activity, and return what the second one returns."""

    @activity.defn(name="attempt")
    async def attempt() -> Any:
        found = await work()
        if activity.info().attempt == 1:
            raise RuntimeError("its worker dies before it has reported")
        return found

    client, queue = await Client.connect(server.address), uuid4().hex
    async with Worker(client, task_queue=queue, workflows=[Tried], activities=[attempt]):
        return await client.execute_workflow(Tried.run, id=queue, task_queue=queue)
