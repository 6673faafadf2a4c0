"""A store's capabilities follow from its methods, on every Python and through every wrapper."""

from typing import Any

import pytest

from standfast import memory_store, sqlite_store
from standfast.stores import SQLiteStore
from standfast.stores.protocol import has_ledger, has_partial_answers, has_place, has_workers


class Wrapped:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class WithoutWords(SQLiteStore):
    add_partial = None  # type: ignore[assignment]


@pytest.mark.parametrize("wrap", [lambda store: store, Wrapped], ids=["itself", "wrapped"])
@pytest.mark.parametrize("has", [has_ledger, has_workers, has_partial_answers, has_place])
def test_a_durable_store_can_do_everything_and_a_memory_store_keeps_sessions_alone(has: Any, wrap: Any) -> None:
    assert (has(wrap(sqlite_store("never.db"))), has(wrap(memory_store())), has(None)) == (True, False, False)


def test_a_method_that_is_none_is_not_there() -> None:
    store = WithoutWords("never.db")
    assert (has_ledger(store), has_workers(store), has_partial_answers(store)) == (True, True, False)
