"""Starts processes that do not outlive this one: they are asked to end, and killed if that does not help.

On Linux they are also killed when this process is, however that happens. Elsewhere they outlive a parent that is
killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import IO, Any

# A process asks to be killed when its parent dies (1 is PR_SET_PDEATHSIG, 9 SIGKILL), then becomes the command. A
# `preexec_fn` would run Python in a fork of a process with threads, which may lock up and warns from 3.12 on.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("The process that started this one is gone.")
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command, given by its full path, in a process that dies with this one."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


@contextlib.asynccontextmanager
async def child_process(
    *command: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    patience: float = 10.0,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command, given by its full path, and end it with the block: by SIGTERM, later by SIGKILL.

    A Ctrl-C in the terminal does not reach it, so that the block decides what ends first. On Linux it is killed when
    the thread that entered the block ends, or the whole process, however it dies.

    Args:
        environment: its environment variables; by default those of this process.
        output: receives the command's output; by default our own output. `asyncio.subprocess.PIPE` receives all but its
            errors.
        patience: seconds for it to end after it was asked to. A cancel during that time kills it.
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


async def _end(process: asyncio.subprocess.Process, patience: float) -> None:
    try:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), patience)
    finally:  # even if this is cancelled
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes, which it can no longer end
            await process.wait()


async def until_stopped(work: Coroutine[Any, Any, Any], on_stop: Callable[[], object] = lambda: None) -> bool:
    """Do `work` until it ends or Ctrl-C, SIGTERM or SIGHUP stops this process; True if it was stopped.

    The work is cancelled, and cancelled again by each further signal: it may end gracefully at the first one, and at
    once at the second. Not on Windows.

    Args:
        on_stop: called at the first signal.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    loop, running, told = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def stop() -> None:
        nonlocal told
        running.cancel()
        if not told:
            told = True
            on_stop()  # last, since it may fail if a terminal was closed

    for name in signals:
        loop.add_signal_handler(name, stop)
    try:
        await asyncio.wait({running})
    finally:
        for name in signals:
            loop.remove_signal_handler(name)
    if running.cancelled():
        return True
    running.result()
    return told
