"""A server that skips time: days pass in a second."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import WorkflowExecutionStatus
from temporalio.worker import Worker

from integration.temporal.test_dev_server import Wait, start
from standfast.testing.servers import time_skipping_server


async def test_time_skipping_moves_days_in_a_second() -> None:
    week = timedelta(days=7).total_seconds()
    async with time_skipping_server() as environment, Worker(environment.client, task_queue="q", workflows=[Wait]):
        async with asyncio.timeout(60):
            assert await (await start(environment.client, seconds=week)).result() == pytest.approx(week, abs=60)


async def test_a_workflow_started_without_time_skipping_is_moved_by_hand() -> None:
    async with time_skipping_server() as environment, asyncio.timeout(20):
        client = environment.client
        async with Worker(client, task_queue="q", workflows=[Wait]):
            with environment.with_time_skipping_disabled():
                handle = await start(client, seconds=timedelta(days=7).total_seconds())
            assert await environment.fast_forward(handle, timedelta(days=3))
            assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
            await environment.fast_forward(handle, timedelta(days=5))
            assert await handle.result() == pytest.approx(timedelta(days=7).total_seconds(), abs=3600)


async def test_a_time_skipping_server_has_the_search_attributes() -> None:
    async with time_skipping_server() as environment:
        service = environment.client.operator_service
        found = await service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
        assert len([name for name in found.custom_attributes if name.startswith("Standfast")]) == 6
