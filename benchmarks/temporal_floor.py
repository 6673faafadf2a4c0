"""A minimal equivalent on Temporal: a hand-written workflow with plain dicts, and without a store or guarantees.

It runs the same activities as an agent's run, in the same order, but empty.
"""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

QUEUE = "floor"


@activity.defn(name="call_model")
async def call_model(reference: dict[str, Any]) -> dict[str, Any]:
    turn = reference["turn"]
    if turn == reference["steps"]:
        return {"text": "done"}
    return {"calls": [[f"call_{turn}_{place}", "note", place] for place in range(reference["tools"])]}


@activity.defn(name="note")
async def note(reference: dict[str, Any]) -> dict[str, Any]:
    return {"returned": "ok"}


OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=15),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}


@workflow.defn(name="floor", sandboxed=False)
class Floor:
    """One run: a model activity and its tool activities per step, then the model's final answer."""

    @workflow.run
    async def run(self, plan: dict[str, Any]) -> dict[str, Any]:
        for turn in itertools.count():
            reference = {"turn": turn, "steps": plan["steps"], "tools": plan.get("tools", 1)}
            reply = await workflow.execute_activity("call_model", reference, **OPTIONS)
            if "calls" not in reply:
                return {"status": "complete"}
            await asyncio.gather(
                *(
                    workflow.execute_activity("note", {"turn": turn, "position": place}, **OPTIONS)
                    for _, _, place in reply["calls"]
                )
            )
        raise AssertionError


async def floor_worker(address: str) -> Worker:
    """Return a worker with the plugin's settings."""
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Floor],
        activities=[call_model, note],
        graceful_shutdown_timeout=timedelta(seconds=30),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=3),
        max_eager_activity_reservations_per_workflow_task=16,
    )
