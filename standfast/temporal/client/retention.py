"""Deletes from time to time the stored records of runs that Temporal has forgotten, by one worker at a time."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

from temporalio.client import Client
from temporalio.service import RPCError

from standfast.errors import DefinitionError
from standfast.runtime.repeating import repeating
from standfast.runtime.retention import PrunedStore, Pruning
from standfast.stores.capabilities import has_deletion
from standfast.temporal.client.forgotten import Forgotten
from standfast.tools import Duration, seconds

_LOG = logging.getLogger("standfast")
_NAME = "standfast/retention"  # held while a worker deletes; no session name contains a slash
_EVERY = 3600.0  # seconds between two rounds
_FIRST = 30.0  # seconds until the first one, after a worker has begun
_PAUSE = 0.02  # seconds between two names, during which runs have the store to themselves


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
