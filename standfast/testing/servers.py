"""Real Temporal servers for tests: one in real time, and one in which a week passes in a second."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from standfast.temporal.client.connections import exit_cleanly
from standfast.temporal.client.servers import ONE_PARTITION, SERVER_FLAGS, DevServer, dev_server, temporal_binary

__all__ = ["DevServer", "dev_server", "time_skipping_server"]


@contextlib.asynccontextmanager
async def time_skipping_server(
    *, data_converter: DataConverter | None = None, **options: Any
) -> AsyncIterator[WorkflowEnvironment]:
    """Start a Temporal server that skips the time for which workflows only wait for timers.

    Workflows started by the environment's `client` skip time, each on a clock of its own, and their children with
    them; inside `with environment.with_time_skipping_disabled()` they are started without, to be moved by
    `await environment.fast_forward(handle, timedelta(days=3))`.

    The SDK calls this experimental, which is why it is behind one function. A test process that is killed leaves this
    server behind, unlike `dev_server`: the SDK starts it.

    Args:
        data_converter: reads and writes pydantic models if None.
        options: further arguments of `WorkflowEnvironment.start_time_skipping_v2`, such as `plugins`.

    Raises:
        StandfastError: there is no `temporal` binary.
    """
    exit_cleanly()
    flags = [
        *SERVER_FLAGS,
        *ONE_PARTITION,
        "--dynamic-config-value=frontend.WorkflowTimeSkippingEnabled=true",
        '--dynamic-config-value=history.timerProcessorMaxTimeShift="0s"',  # a short timer ends on time, not within 1 s
        *options.pop("dev_server_extra_args", ()),
    ]
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=temporal_binary(),
        dev_server_extra_args=flags,
        data_converter=data_converter or pydantic_data_converter,
        **{"dev_server_log_level": "never", **options},  # it writes to our output, also errors of its beginning
    ) as environment:
        yield environment
