"""Starts processes that do not outlive this one: they are told to end, and killed if that does not help.

On Linux they are also killed when we are, however that happens. Elsewhere they outlive a parent that is killed.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import IO, Any

from standfast.runtime.parent_death import dying_with_parent

Process = asyncio.subprocess.Process

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.asynccontextmanager
async def child(
    *command: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    patience: float = 10.0,
) -> AsyncIterator[Process]:
    """Run a command, given by its full path, and end it with the block: by SIGTERM, later by SIGKILL.

    A Ctrl-C in the terminal does not reach it, so that the block decides what ends first.

    Args:
        output: takes what the command writes; our own output if None.
        patience: seconds in which it must end after it was told to. A cancel during that time kills it.
    """
    process = await asyncio.create_subprocess_exec(
        *dying_with_parent([os.fspath(word) for word in command]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=None if output == asyncio.subprocess.PIPE else output,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        await _end(process, patience)


async def _end(process: Process, patience: float) -> None:
    try:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), patience)
    finally:  # also if this is cancelled
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its own processes, which it could not end any more
            await process.wait()


async def until_stopped(work: Coroutine[Any, Any, Any], on_stop: Callable[[], object] = lambda: None) -> bool:
    """Do `work` until it ends or somebody stops this process by Ctrl-C, SIGTERM or SIGHUP; True if it was stopped.

    The work is cancelled, and cancelled again by each further signal: it may end in order at the first one, and at
    once at the second.

    Args:
        on_stop: called at the first signal.
    """
    loop, running, told = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def stop() -> None:
        nonlocal told
        running.cancel()
        if not told:
            told = True
            on_stop()  # last, since it may fail if a terminal was closed

    for name in _STOPS:
        loop.add_signal_handler(name, stop)
    try:
        await asyncio.wait({running})
    finally:
        for name in _STOPS:
            loop.remove_signal_handler(name)
    if running.cancelled():
        return True
    running.result()
    return told


def local_environment(address: str, namespace: str) -> dict[str, str]:
    """Return our environment for a process that must find this server and no other.

    An API key or TLS for a server elsewhere, in the environment or in a profile, would keep it from this one.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return ours | {
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
