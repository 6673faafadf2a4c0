"""Programs of the frameworks' tests: their tool charges a card, and its process dies behind the charge.

A program is started again until it ends, as a supervisor would do it.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.testing import child_process

TESTS = Path(__file__).parents[1]


def charge_and_die(folder: str, deaths: int, cents: int) -> dict[str, int]:
    """Charge a card; the process is killed behind the first `deaths` charges."""
    with Path(folder, "charges").open("a") as file:
        print(cents, file=file)
    if len(charges(Path(folder))) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"charged": cents}


def charges(folder: Path) -> list[int]:
    path = folder / "charges"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Completed:
    """What a program printed at its end, as JSON; how often it was killed before that; what was charged."""

    said: Any
    deaths: int
    charges: list[int]


async def bare_and_guarded(folder: Path, run: Callable[[Path, str], Awaitable[Completed]]) -> tuple[Any, Any]:
    """Run a program without the guard, as the control, and the same with it; return what each has printed.

    Its tool is killed twice: without the guard it charges at each death and once more, and with it once.
    """
    (folder / "bare").mkdir()
    (folder / "guarded").mkdir()
    bare, told = await asyncio.gather(run(folder / "bare", "bare"), run(folder / "guarded", "guarded"))
    assert (bare.deaths, bare.charges) == (2, [5] * 3)
    assert (told.deaths, told.charges) == (1, [5])
    return bare.said, told.said


async def run_until_complete(module: str, folder: Path, *words: str) -> Completed:
    """Start `python -m module FOLDER words…` until it ends."""
    path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    for deaths in range(10):
        command = (sys.executable, "-m", module, str(folder), *words)
        async with child_process(*command, environment=environment, output=asyncio.subprocess.PIPE) as process:
            assert process.stdout is not None
            said = await process.stdout.read()
            code = await process.wait()
        if code != -signal.SIGKILL:
            assert code == 0, f"{module} ended with {code}: {said.decode()}"
            return Completed(json.loads(said.splitlines()[-1]), deaths, charges(folder))
    raise AssertionError(f"{module} was killed ten times")
