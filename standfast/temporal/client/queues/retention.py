"""Deletes from time to time the stored records of runs that Temporal has forgotten, by one worker at a time."""

import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import DefinitionError, InputError
from standfast.runtime.retention import PrunedStore, Pruning
from standfast.runtime.tasks import repeating
from standfast.stores.deletion import DELETED, NotedRun
from standfast.stores.protocol import Ledger, has_deletion
from standfast.temporal.client.runs.descriptions import quoted
from standfast.tools import Duration, seconds

_LOG = logging.getLogger("standfast")
_NAME = "standfast/retention"  # held while a worker deletes; no session name contains a slash
_EVERY = 3600.0  # seconds between two rounds
_FIRST = 30.0  # seconds until the first one, after a worker has begun
_PAUSE = 0.02  # seconds between two names, during which runs have the store to themselves


class Forgotten:
    """Tells which runs a server has forgotten: they are closed, and past the retention of their namespace.

    Args:
        unnoted: runs of versions that did not note their runs, by the journal key of the runs that they continue. None
            keeps all records of such versions.
        store: has those runs, and gets a note of each run that is found.
    """

    def __init__(
        self, client: Client, store: Ledger | None = None, unnoted: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._client, self._store, self._unnoted = client, store, unnoted
        self._chains: dict[str, set[str]] = {}  # the first runs of all known runs, by workflow id
        self._others: bool | None = None  # whether runs of other namespaces are in the store

    async def check_namespace(self) -> None:
        """Check that the namespace exists: otherwise all its runs would count as forgotten.

        Raises:
            InputError: it does not exist.
        """
        try:
            await self._client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=self._client.namespace)
            )
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise InputError(f"There is no namespace {self._client.namespace!r}; nothing was deleted") from error

    async def __call__(self, name: str, noted: NotedRun | None) -> bool:
        """Return whether the server no longer knows a run or its continuations; False if that is unknown."""
        if noted is not None and noted.namespace == self._client.namespace:
            return not await self._is_known(noted.workflow_id, name)
        if self._unnoted is None or (noted is not None and noted.namespace):
            return False
        if noted is not None and await self._is_known(noted.workflow_id, name):
            return False
        return await self._is_unknown(name)

    async def _is_known(self, workflow_id: str, run_id: str) -> bool:
        """Whether the server knows a run, or a continuation, which has it as its first run."""
        if not workflow_id:
            return True  # unknown
        if await self._first_of(workflow_id, run_id) is not None:
            return True
        if workflow_id not in self._chains:
            query = f"WorkflowId = {quoted(workflow_id)}"
            known = {run.run_id async for run in self._client.list_workflows(query)}
            firsts = [await self._first_of(workflow_id, run) for run in (None, *known)]
            self._chains[workflow_id] = {first for first in firsts if first is not None}
        return run_id in self._chains[workflow_id]

    async def _first_of(self, workflow_id: str, run_id: str | None) -> str | None:
        """Return the first run of a run's chain, by default the last run's; None if it does not exist."""
        try:
            found = await self._client.get_workflow_handle(workflow_id, run_id=run_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return None
        return found.raw_info.first_run_id or found.run_id

    async def _is_unknown(self, name: str) -> bool:
        """Whether a run that was not noted is unknown; a run that is found is noted, so that its session is known."""
        if not has_deletion(self._store):
            return False
        if self._others is None:
            self._others = bool({*(await self._store.noted()).namespaces} - {"", self._client.namespace})
        if self._others:
            return False
        for run in (name, *(self._unnoted or {}).get(name, ())):
            async for found in self._client.list_workflows(f"RunId = {quoted(run)}"):
                opened = await self._store.load_reply(f"{name}/open", 0)
                facts = None if opened in (None, DELETED) else json.loads(str(opened))
                session = facts.get("session") if isinstance(facts, dict) else None
                await self._store.note_run(
                    NotedRun(
                        journal_key=name, session_id=session, namespace=self._client.namespace, workflow_id=found.id
                    )
                )
                return False
        return True


def check_retention(retention: Duration | None, store: object) -> timedelta | None:
    """Return the minimum time for which records of runs are kept; None keeps all.

    Raises:
        DefinitionError: it is not a duration, or the store cannot delete records.
    """
    if retention is None:
        return None
    kept = timedelta(seconds=seconds(retention, "retention"))
    if not has_deletion(store):
        raise DefinitionError(f"retention: {store!r:.80} cannot delete records; see standfast.stores.Deletion")
    return kept


@asynccontextmanager
async def keeping_for(client: Client, store: object, retention: timedelta | None) -> AsyncIterator[None]:
    """For as long as the block lasts, delete records of forgotten runs that are older than that."""
    if retention is None:
        yield
        return
    pruned, failed = cast(PrunedStore, store), "Old records could not be deleted; retrying next time"
    async with repeating(
        partial(prune_once, client, pruned, retention), _EVERY, failed, first=_FIRST, expected=RPCError
    ):
        yield


async def prune_once(client: Client, store: PrunedStore, retention: timedelta) -> Pruning | None:
    """Delete old records of forgotten runs; None if another worker is doing so.

    Decisions stay, and so do all records of versions that did not note their runs.
    """
    if not await store.hold(_NAME):
        return None
    try:
        forgotten = Forgotten(client)
        await forgotten.check_namespace()
        pruning = Pruning(store, datetime.now(UTC) - retention, forgotten, pause=_PAUSE)
        await pruning.prune()
    finally:
        await store.let_go(_NAME)
    if (gone := pruning.dropped) and gone.calls + gone.replies + gone.partial_answers:
        _LOG.info("Deleted %d calls and %d replies, %d bytes, of old runs", gone.calls, gone.replies, gone.bytes)
    return pruning
