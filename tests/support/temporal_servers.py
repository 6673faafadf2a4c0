"""Helpers for tests of servers: programs as separate processes, and checks whether a process is alive."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def start_program(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program in a separate session, as a terminal would."""
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "error", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a condition holds, and fail if it does not."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
