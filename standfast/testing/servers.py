"""Real Temporal servers for tests: one in real time, and one in which a week passes in a second."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from standfast.temporal.client.connections import exit_cleanly
from standfast.temporal.client.queues.servers import ONE_PARTITION, SERVER_FLAGS, DevServer, dev_server, temporal_binary

__all__ = ["DevServer", "dev_server", "time_skipping_server"]


@contextlib.asynccontextmanager
async def time_skipping_server(
    *, data_converter: DataConverter | None = None, **options: Any
) -> AsyncIterator[WorkflowEnvironment]:
    """Start a Temporal server that skips time while workflows wait only for timers.

    Workflows that the environment's `client` starts skip time, each on a separate clock, together with their children.
    Inside `with environment.with_time_skipping_disabled()` they are started without skipping, and moved by `await
    environment.fast_forward(handle, timedelta(days=3))`.

    The SDK calls this experimental, so it is behind one function. If the test process is killed, this server keeps
    running, unlike `dev_server`: the SDK starts it.

    Args:
        data_converter: if None, one that reads and writes pydantic models.
        options: further arguments of `WorkflowEnvironment.start_time_skipping_v2`, such as `plugins`.

    Raises:
        StandfastError: there is no `temporal` binary.
    """
    exit_cleanly()
    flags = [
        *SERVER_FLAGS,
        *ONE_PARTITION,
        "--dynamic-config-value=frontend.WorkflowTimeSkippingEnabled=true",
        '--dynamic-config-value=history.timerProcessorMaxTimeShift="0s"',  # short timers end on time, not within 1 s
        *options.pop("dev_server_extra_args", ()),
    ]
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=temporal_binary(),
        dev_server_extra_args=flags,
        data_converter=data_converter or pydantic_data_converter,
        **{"dev_server_log_level": "never", **options},  # it writes to our output, including its startup errors
    ) as environment:
        yield environment
