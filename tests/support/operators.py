"""What an operator does to guarded activities and their workers, with the `temporal` command and with signals."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle

from standfast.temporal.client.servers import temporal_binary
from standfast.testing import child_process
from support.temporal_runs import Temporal, until

Running = WorkflowHandle[Any, Any]


@dataclass
class Yard:
    """A queue with worker processes that charge, and the command line."""

    temporal: Temporal
    folder: Path

    @property
    def address(self) -> str:
        return self.temporal.client.service_client.config.target_host

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def charges(self, order: str = "a") -> int:
        """Return how often an order was charged."""
        return self.lines("charges").count(order)

    def stop_at(self, place: str) -> None:
        """Let charges wait "before" or "behind" their effect."""
        (self.folder / place).touch()

    def go_on(self) -> None:
        for place in ("before", "behind"):
            (self.folder / place).unlink(missing_ok=True)

    async def arrived(self, place: str, order: str = "a", times: int = 1) -> None:
        await until(lambda: self.lines(f"{place}s").count(order) >= times)

    @asynccontextmanager
    async def worker(self, store: str = "store.db", queue: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
        words = (self.address, queue or self.temporal.name, str(self.folder / store), str(self.folder))
        command = (sys.executable, "-m", "support.operated_worker", *words)
        tests = str(Path(__file__).parents[1])
        async with child_process(*command, environment={**os.environ, "PYTHONPATH": tests}) as process:
            yield process

    async def start(self, *steps: dict[str, Any], name: str = "w", **plan: Any) -> Running:
        run: Running = await self.temporal.client.start_workflow(
            "Operated", {"steps": steps, **plan}, id=self.temporal.session(name), task_queue=self.temporal.name
        )
        return run

    async def told(self, run: Running) -> Any:
        """Return what came of the steps of a run."""
        return await asyncio.wait_for(run.result(), 30)

    async def operate(self, *words: str, check: bool = True) -> str:
        """Run the `temporal` command."""
        process = await asyncio.create_subprocess_exec(
            str(temporal_binary()),
            *words,
            "--address",
            self.address,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert not check or process.returncode == 0, said.decode()
        return said.decode()

    async def on_activity(self, run: Running, act: str, *words: str, number: str = "1", check: bool = True) -> str:
        return await self.operate(
            "activity", act, "--workflow-id", run.id, "--activity-id", number, *words, check=check
        )

    async def attempt(self, run: Running, least: int) -> None:
        """Wait until the first activity is at an attempt."""

        async def reached() -> bool:
            pending = (await run.describe()).raw_description.pending_activities
            return any(one.attempt >= least for one in pending)

        await until(reached)
