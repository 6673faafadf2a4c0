"""Tells what a store can do besides storing sessions.

The checks do not use `isinstance`. From Python 3.12 on, it does not see methods that an object gets from another one by
`__getattr__`, so a wrapped store would lose its ledger.
"""

from typing import Any, Protocol

from typing_extensions import TypeIs, get_protocol_members

from standfast.errors import DefinitionError, MemoryStoreNotDurableError
from standfast.stores.deletion import Deletion
from standfast.stores.partial_answers import PartialAnswers, PartialNews
from standfast.stores.protocol import DurableStore, Ledger
from standfast.stores.standing_approvals import StandingApprovals
from standfast.stores.waits import Waits
from standfast.stores.workers import Workers


class Placed(Protocol):
    """A store that can detect when its data were restored or copied."""

    async def place(self) -> str:
        """Return an id of the place of its data. It is the same as long as the data stay there, and another once they
        were copied.
        """
        ...


class Journal(Protocol):
    """A store for values that never change; see `Ledger`."""

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str: ...
    async def load_reply(self, journal_key: str, turn: int) -> str | None: ...


def has_journal(store: object) -> TypeIs[Journal]:
    return _has_methods(store, Journal)


def has_ledger(store: object) -> TypeIs[Ledger]:
    return _has_methods(store, Ledger)


def has_workers(store: object) -> TypeIs[Workers]:
    return _has_methods(store, Workers)


def has_partial_answers(store: object) -> TypeIs[PartialAnswers]:
    return _has_methods(store, PartialAnswers)


def has_partial_news(store: object) -> TypeIs[PartialNews]:
    return _has_methods(store, PartialNews)


def has_deletion(store: object) -> TypeIs[Deletion]:
    return _has_methods(store, Deletion)


def has_waits(store: object) -> TypeIs[Waits]:
    return _has_methods(store, Waits)


def has_standing_approvals(store: object) -> TypeIs[StandingApprovals]:
    return _has_methods(store, StandingApprovals)


def has_place(store: object) -> TypeIs[Placed]:
    return _has_methods(store, Placed)


def largest_row(store: object) -> int | None:
    """Return the largest size of a row of a store in bytes; None if it is larger than any row."""
    return getattr(store, "largest_row", None)


def _has_methods(store: object, protocol: Any) -> bool:
    return all(callable(getattr(store, name, None)) for name in get_protocol_members(protocol))


def durable_store(store: Any) -> DurableStore:
    """Return a store that is durable and has a ledger.

    Raises:
        DefinitionError: the argument is not a store, or lacks methods.
        MemoryStoreNotDurableError: it is a memory store.
    """
    if not hasattr(store, "durable"):
        raise DefinitionError(f"store must be a store, such as sqlite_store('standfast.db'), got {store!r:.80}")
    if not store.durable:
        raise MemoryStoreNotDurableError(f"StandfastPlugin needs a durable store, got {store!r:.80}")
    for has, needed in ((has_ledger(store), "Ledger"), (has_workers(store), "Workers")):
        if not has:
            raise DefinitionError(f"store: {store!r:.80} has no ledger: see standfast.stores.{needed}")
    result: DurableStore = store
    return result
