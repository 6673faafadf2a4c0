"""A guarded call that meets another attempt at the same call: running, recursive, or invisible."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from standfast import InputError, sqlite_store
from standfast.effects import NotHappened, ToolDurabilityError, effect
from standfast.effects.kept_outcomes import write_kept
from standfast.effects.keys import time_of
from standfast.stores import SQLiteStore
from standfast.tools import Returned
from standfast.tools.signatures import hash_of

SCOPE = "effect/charge/a/steps/call"
LONG_AGO, LATER = "2001-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"


def by_order(order: str) -> str:
    return order


async def say_claimed(store: SQLiteStore, at: str) -> None:
    await store._do(lambda db: db.execute("UPDATE tool_ledger SET claimed_at = ? WHERE run_key = ?", (at, SCOPE)))


async def test_a_call_that_lives_is_waited_for_however_long_it_takes_and_not_looked_up(store: SQLiteStore) -> None:
    begun, goes_on, runs = asyncio.Event(), asyncio.Event(), []

    @effect(store, "charge", key=by_order, verify=lambda order: NotHappened())
    async def charge(order: str) -> int:
        runs.append(order)
        begun.set()
        await goes_on.wait()
        return 5

    first = asyncio.ensure_future(charge("a"))
    await begun.wait()
    await say_claimed(store, LONG_AGO)
    second = asyncio.ensure_future(charge("a"))
    await asyncio.wait({second}, timeout=0.5)
    goes_on.set()
    assert await asyncio.gather(first, second) == [5, 5]
    assert runs == ["a"]


async def test_one_whose_time_is_over_and_that_may_still_run_is_unknown_and_not_looked_up(store: SQLiteStore) -> None:
    begun, goes_on, runs = threading.Event(), threading.Event(), []

    def block() -> int:
        runs.append("a")
        begun.set()
        goes_on.wait()
        return 5

    @effect(store, "charge", key=by_order, timeout=60, verify=lambda order: NotHappened())
    async def charge(order: str) -> int:
        return block()  # so that it cannot be cut off

    first = asyncio.ensure_future(asyncio.to_thread(asyncio.run, charge("a")))
    assert await asyncio.to_thread(begun.wait, 30)
    await say_claimed(store, LONG_AGO)
    with pytest.raises(ToolDurabilityError, match="its timeout has passed, and it may still be running"):
        await charge("a")
    goes_on.set()
    assert await first == 5
    assert [await charge("a"), runs] == [5, ["a"]]


async def test_one_that_nobody_can_see_is_lost_when_its_time_is_over_though_a_clock_was_set_back(
    store: SQLiteStore,
) -> None:
    runs = []

    @effect(store, "charge", key=by_order, timeout=0.01)
    async def charge(order: str) -> int:
        runs.append(order)
        return 5

    digest = hash_of({"order": "a"})
    await store.claim(SCOPE, "0/charge", owner="effects_elsewhere_1_1f_elsewhere.1", arguments_hash=digest)
    await say_claimed(store, LATER)
    with pytest.raises(ToolDurabilityError, match="its process ended while it ran"):
        await charge("a")
    assert runs == []


async def test_one_that_nobody_can_see_is_not_looked_up_before_its_own_time_is_over(store: SQLiteStore) -> None:
    runs, owner = [], "effects_elsewhere_1_1f_elsewhere.1-3600"

    @effect(store, "charge", key=by_order, timeout=0.01, verify=lambda order: NotHappened())
    async def charge(order: str) -> int:
        runs.append(order)
        return 5

    await store.claim(SCOPE, "0/charge", owner=owner, arguments_hash=hash_of({"order": "a"}))
    await say_claimed(store, (datetime.now(UTC) - timedelta(minutes=1)).isoformat())  # more than the waiting one has
    waits = asyncio.ensure_future(charge("a"))
    await asyncio.wait({waits}, timeout=0.5)
    assert runs == []
    await store.finish(SCOPE, "0/charge", owner=owner, state="done", result=write_kept(Returned("7")))
    assert await waits == 7


async def test_a_claim_says_after_how_many_seconds_its_attempt_has_been_cut_off(store: SQLiteStore) -> None:
    owners = []

    async def look(order: str) -> None:
        entry = (await store.load_entries(f"effect/look/{order}/steps/call", ["0/look"]))["0/look"]
        owners.append(time_of(str(entry.owner)))

    await effect(store, "look", key=by_order, timeout=59.5)(look)("a")
    await effect(store, "look", key=by_order)(look)("b")
    assert owners == [65, None]


async def test_calls_at_once_that_are_safe_to_retry_all_have_a_result(store: SQLiteStore) -> None:
    @effect(store, "look", key=by_order, safe_to_retry=True)
    async def look(order: str) -> int:
        await asyncio.sleep(0.1)
        return 5

    assert await asyncio.gather(*(look("a") for _ in range(5))) == [5] * 5


async def test_calls_at_once_on_a_store_in_memory_of_sqlite_run_once() -> None:
    runs = []
    async with sqlite_store(":memory:") as store:

        @effect(store, "charge", key=by_order)
        async def charge(order: str) -> int:
            runs.append(order)
            await asyncio.sleep(0.1)
            return 5

        assert await asyncio.gather(*(charge("a") for _ in range(5))) == [5] * 5
    assert runs == ["a"]


async def test_a_call_that_would_wait_for_itself_is_refused(store: SQLiteStore) -> None:
    @effect(store, "charge", key=lambda order, times: order)
    async def charge(order: str, times: int) -> Any:
        return await charge(order, times)

    with pytest.raises(InputError, match="called from within itself with the key 'a'"):
        await asyncio.wait_for(charge("a", 1), 20)


def test_so_is_that_of_a_plain_function(store: SQLiteStore) -> None:
    @effect(store, "charge", key=by_order)
    def charge(order: str) -> Any:
        return "ran" if order == "b" else charge("b" if order == "a" else order)

    assert charge("a") == "ran"  # with another key it may call itself
    with pytest.raises(InputError, match="called from within itself with the key 'c'"):
        charge("c")


async def test_two_stores_of_one_file_in_a_process_see_each_other(tmp_path: Path) -> None:
    runs: list[str] = []
    goes_on, begun = threading.Event(), threading.Event()

    def guard() -> Any:
        @effect(sqlite_store(tmp_path / "store.db"), "charge", key=by_order)
        def charge(order: str) -> int:
            runs.append(order)
            begun.set()
            goes_on.wait()
            return 5

        return charge

    first = asyncio.ensure_future(asyncio.to_thread(guard(), "a"))
    assert await asyncio.to_thread(begun.wait, 30)
    second = asyncio.ensure_future(asyncio.to_thread(guard(), "a"))
    await asyncio.wait({second}, timeout=0.4)
    goes_on.set()
    assert await asyncio.gather(first, second) == [5, 5]
    assert runs == ["a"]
