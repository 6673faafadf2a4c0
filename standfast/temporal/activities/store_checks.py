"""Checks that a store can do what workers need, before any run begins."""

from typing import Any

from standfast.errors import DefinitionError, MemoryStoreNotDurableError
from standfast.stores.protocol import DurableStore, Ledger
from standfast.stores.workers import Workers


def durable_store(store: Any) -> DurableStore:
    """Return a store that is durable and has a ledger.

    Raises:
        DefinitionError: it is none, or lacks methods.
        MemoryStoreNotDurableError: it is a memory store.
    """
    if not hasattr(store, "durable"):
        raise DefinitionError(f"store must be a store, such as sqlite_store('standfast.db'), got {store!r:.80}")
    if not store.durable:
        raise MemoryStoreNotDurableError(f"StandfastPlugin needs a durable store, got {store!r:.80}")
    for needed in (Ledger, Workers):
        if not isinstance(store, needed):
            raise DefinitionError(f"store: {store!r:.80} has no ledger: see standfast.stores.{needed.__name__}")
    result: DurableStore = store
    return result
