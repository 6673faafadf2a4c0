"""Starts processes that end with the block that needs them, and lets work end in order when somebody stops it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

Process = asyncio.subprocess.Process

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.asynccontextmanager
async def child(
    *command: str | os.PathLike[str], environment: Mapping[str, str], output: Any, patience: float = 10.0
) -> AsyncIterator[Process]:
    """Run a command, and end it with the block: by SIGTERM, and by SIGKILL if it has not ended in time.

    A Ctrl-C in the terminal does not reach it, so that what runs inside the block decides what ends first.

    Args:
        output: takes what the command writes: a file, or `asyncio.subprocess.PIPE`, then without its errors.
        patience: seconds that it has to end after it was told to. A cancel during that time kills it.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=None if output == asyncio.subprocess.PIPE else output,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), patience)
        finally:  # also if this is cancelled
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` until it ends, or somebody stops this process by Ctrl-C, SIGTERM or SIGHUP; True if it was stopped.

    The work is cancelled, and cancelled again by each further signal: it may end in order at the first one, and at
    once at the second.
    """
    loop, running, is_stopped = asyncio.get_running_loop(), asyncio.ensure_future(work), asyncio.Event()

    def stop() -> None:
        running.cancel()
        is_stopped.set()

    for name in _STOPS:
        loop.add_signal_handler(name, stop)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        for name in _STOPS:
            loop.remove_signal_handler(name)
    return is_stopped.is_set()
