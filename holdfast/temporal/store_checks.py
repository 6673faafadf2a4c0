"""Checks that a store can do what workers need, before any run is begun."""

from typing import Any

from holdfast.errors import DefinitionError, MemoryStoreNotDurableError
from holdfast.stores.protocol import DurableStore, Ledger
from holdfast.stores.workers import Workers


def durable_store(store: Any) -> DurableStore:
    """Return a store that is durable and has a ledger.

    Raises:
        DefinitionError: it is none, or lacks methods.
        MemoryStoreNotDurableError: it is a memory store.
    """
    if not hasattr(store, "durable"):
        raise DefinitionError(f"store must be a store, such as sqlite_store('holdfast.db'), got {store!r:.80}")
    if not store.durable:
        raise MemoryStoreNotDurableError(f"HoldfastPlugin needs a durable store, got {store!r:.80}")
    for needed in (Ledger, Workers):
        if not isinstance(store, needed):
            raise DefinitionError(f"store: {store!r:.80} has no ledger: see holdfast.stores.{needed.__name__}")
    result: DurableStore = store
    return result
