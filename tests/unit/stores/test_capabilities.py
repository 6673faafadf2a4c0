"""A store can do what its methods can, on every Python and whoever wraps it."""

from typing import Any

import pytest

from standfast import memory_store, sqlite_store
from standfast.stores.capabilities import has_ledger, has_partial_answers, has_workers


class Wrapped:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("wrap", [lambda store: store, Wrapped], ids=["itself", "wrapped"])
@pytest.mark.parametrize("has", [has_ledger, has_workers, has_partial_answers])
def test_a_durable_store_can_do_everything_and_a_memory_store_keeps_sessions_alone(has: Any, wrap: Any) -> None:
    assert (has(wrap(sqlite_store("never.db"))), has(wrap(memory_store())), has(None)) == (True, False, False)
