"""A process that is killed in a window of a guarded charge: `python -m support.dying_effects STORE FOLDER WINDOW`.

Windows are "before claim", "after claim", "in it", "behind it", "before finish" and "after finish"; with "forked" it
leaves a child behind that outlives it, and with "none" it lives. Each charge is a line in FOLDER/charges.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from standfast.effects import effect
from standfast.stores import open_store


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork(folder: Path) -> None:
    """Fork a child that lives until it is told to end."""
    if (child := os.fork()) == 0:
        while not (folder / "told").exists():
            time.sleep(0.05)
        os._exit(0)
    (folder / "child").write_text(str(child))


class DyingStore:
    """A store whose process is killed before or after a write."""

    durable = True

    def __init__(self, store: Any, window: str) -> None:
        self._store, self._window = store, window

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not self._window.endswith(f" {name}"):
            return found

        async def write(*arguments: Any, **options: Any) -> Any:
            if self._window.startswith("before"):
                die()
            await found(*arguments, **options)
            die()

        return write


async def main(address: str, folder: Path, window: str) -> None:
    opened = open_store(address)

    @effect(opened, "warm", key=lambda order: order)
    async def warm(order: str) -> int:
        return 1

    @effect(DyingStore(opened, window), "charge", key=lambda order: order)
    async def charge(order: str) -> int:
        if window == "in it":
            die()
        with (folder / "charges").open("a") as file:
            print(order, file=file)
        if window == "forked":
            fork(folder)
        if window in ("behind it", "forked"):
            die()
        return 5

    await warm("a")  # so that it has a name in the store, and a fork finds it open
    await charge("a")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
