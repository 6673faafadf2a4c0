"""The ledger entries of a call show how often it was dispatched, and whether the last dispatch has begun."""

from collections.abc import Sequence

import pytest

from standfast.runtime.call_ledger import has_started, last_dispatch
from standfast.stores import LedgerEntry, SQLiteStore
from standfast.tools.calls import call_key


@pytest.mark.parametrize("given_up", [0, 1, 7, 8, 9])
async def test_a_call_has_started_if_its_last_dispatch_was_claimed(store: SQLiteStore, given_up: int) -> None:
    for number in range(1, given_up + 1):
        assert (await store.settle("s", call_key(0, "c", number))).state == "abandoned"
    assert (await last_dispatch(store, "s", 0, "c"), await has_started(store, "s", 0, "c")) == (given_up, False)
    await store.claim("s", call_key(0, "c", given_up + 1), owner="a", arguments_hash="")
    assert (await last_dispatch(store, "s", 0, "c"), await has_started(store, "s", 0, "c")) == (given_up + 1, True)


async def test_that_is_one_look_into_the_ledger(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.claim("s", call_key(0, "c"), owner="a", arguments_hash="")
    looks, look = [], store.load_entries

    async def counted(scope: str, keys: Sequence[str]) -> dict[str, LedgerEntry]:
        looks.append(keys)
        return await look(scope, keys)

    monkeypatch.setattr(store, "load_entries", counted)
    assert await has_started(store, "s", 0, "c")
    assert len(looks) == 1
