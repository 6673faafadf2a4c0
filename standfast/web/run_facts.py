"""Reads the facts of a run that are missing from the server's list: who started it, and its usage.

Both are in the run's history, at its beginning and its end, where they never change: each is read once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowContinuedAsNewError, WorkflowFailureError
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.messages import Usage
from standfast.temporal.client.owners import owner_of
from standfast.temporal.client.waiting_items import read_result

_AT_ONCE = 16  # runs that are looked up
_WAITS = 1.5  # seconds that a page waits for them; later results are available to the next page
_REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class Facts:
    """The known facts of a run.

    Args:
        by: the user who started it; None if it has none.
        usage: its usage; None if it is still open, or could not report it.
    """

    by: str | None
    usage: Usage | None


class RunFacts:
    """The facts of runs, by run id and whether the run has ended."""

    def __init__(self, client: Client) -> None:
        self._client, self._few = client, asyncio.Semaphore(_AT_ONCE)
        self._known: dict[tuple[str, bool], Facts] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[None]] = {}

    async def of(self, runs: Sequence[Mapping[str, Any]], *, wait: float = _WAITS) -> dict[str, Facts]:
        """Return the facts of those runs that are known in time, by run id."""
        keys = [(run["run_id"], "closed" in run) for run in runs]
        for key, run in zip(keys, runs, strict=True):
            if key not in self._known and key not in self._asking:
                self._asking[key] = asyncio.create_task(self._ask(key, run))
        if asked := [self._asking[key] for key in keys if key in self._asking]:
            await asyncio.wait(asked, timeout=wait)
        return {key[0]: self._known[key] for key in keys if key in self._known}

    async def _ask(self, key: tuple[str, bool], run: Mapping[str, Any]) -> None:
        try:
            async with self._few:
                with suppress(RPCError, StandfastError):  # requested again for the next page
                    by, _ = await owner_of(self._client, run["workflow_id"], run["run_id"])
                    self._known[key] = Facts(by, await self._usage(run) if key[1] else None)
        finally:
            del self._asking[key]
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]

    async def _usage(self, run: Mapping[str, Any]) -> Usage | None:
        handle = self._client.get_workflow_handle(run["workflow_id"], run_id=run["run_id"])
        try:
            usage = read_result(await handle.result(follow_runs=False)).get("usage")
        except (WorkflowContinuedAsNewError, WorkflowFailureError):
            return None
        return None if usage is None else Usage(**usage)
