"""Guarded functions and blocks outside Temporal: one run per key, and the stored result is the returned one."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity

from standfast import (
    Approval,
    DefinitionError,
    InputError,
    MemoryStoreNotDurableError,
    ToolCall,
    memory_store,
    sqlite_store,
    tool,
)
from standfast.effects import EffectFailedError, Happened, NotHappened, ToolDurabilityError, effect
from standfast.runtime.retention import Pruning, nobody_knows
from standfast.stores import D1Store, PostgresStore, SQLiteStore


@dataclass
class Receipt:
    order: str
    cents: int


class Bank:
    """Counts what is charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    async def charge(self, order: str, cents: int = 5) -> Receipt:
        self.charged.append(order)
        return Receipt(order, cents)

    def book(self, order: str, cents: int = 5) -> Receipt:
        self.charged.append(order)
        return Receipt(order, cents)


def by_order(order: str, cents: int = 5) -> str:
    return order


async def test_a_repeated_call_returns_what_is_kept_as_the_type_that_it_was(store: SQLiteStore) -> None:
    bank = Bank()
    charge = effect(store, "charge", key=by_order)(bank.charge)
    assert await charge("a") == await charge("a") == Receipt("a", 5)
    assert await charge("b", 7) == Receipt("b", 7)
    assert bank.charged == ["a", "b"]


def test_so_does_a_plain_function_in_any_thread(store: SQLiteStore) -> None:
    bank, found = Bank(), []
    book = effect(store, "book", key=by_order)(bank.book)
    threads = [threading.Thread(target=lambda: found.append(book("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Receipt("a", 5)] * 8
    assert bank.charged == ["a"]


async def test_of_many_at_once_one_runs_and_all_get_its_result(store: SQLiteStore) -> None:
    bank = Bank()

    @effect(store, "slow", key=by_order)
    async def slow(order: str) -> Receipt:
        await asyncio.sleep(0.3)
        return await bank.charge(order)

    assert await asyncio.gather(*(slow("a") for _ in range(20))) == [Receipt("a", 5)] * 20
    assert bank.charged == ["a"]


async def test_a_key_with_other_arguments_is_refused(store: SQLiteStore) -> None:
    bank = Bank()
    charge = effect(store, "charge", key=by_order)(bank.charge)
    await charge("a", 5)
    with pytest.raises(InputError, match="Effect 'charge': its key 'a' was used with other arguments; nothing is run"):
        await charge("a", 6)
    assert bank.charged == ["a"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "arguments",
    [{"tags": {"x", "y", "z"}}, {"raw": b"\xff"}, {"call": ToolCall(id="1", name="x", arguments={"b": 1, "a": {2}})}],
)
def test_the_hash_of_arguments_is_the_same_in_every_process(arguments: dict[str, Any]) -> None:
    code = (
        f"from standfast.tools.signatures import hash_of\nfrom standfast import ToolCall\nprint(hash_of({arguments!r}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1


async def test_what_has_raised_is_not_run_again(store: SQLiteStore) -> None:
    calls = []

    @effect(store, "fail", key=by_order)
    async def fail(order: str) -> None:
        calls.append(order)
        raise ValueError("the card was declined")

    with pytest.raises(ValueError, match="declined"):
        await fail("a")
    with pytest.raises(EffectFailedError, match=r"Effect 'fail' \(a\) .* ValueError: the card was declined"):
        await fail("a")
    assert calls == ["a"]


async def test_what_is_safe_to_retry_runs_again_after_it_has_raised(store: SQLiteStore) -> None:
    calls = []

    @effect(store, "look", key=by_order, safe_to_retry=True)
    async def look(order: str) -> int:
        calls.append(order)
        if len(calls) < 3:
            raise ValueError("busy")
        return len(calls)

    for _ in range(2):
        with pytest.raises(ValueError, match="busy"):
            await look("a")
    assert await look("a") == await look("a") == 3
    assert calls == ["a"] * 3


async def test_what_is_cut_off_or_cancelled_has_an_unknown_outcome(store: SQLiteStore) -> None:
    @effect(store, "hang", key=by_order, timeout=0.2)
    async def hang(order: str) -> None:
        await asyncio.sleep(60)

    for _ in range(2):
        with pytest.raises(ToolDurabilityError, match="cut off after its timeout"):
            await hang("a")
    running = asyncio.ensure_future(hang("b"))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ToolDurabilityError, match="cancelled while it ran"):
        await hang("b")


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("verdict", "ends", "again"),
    [
        (None, "no answer", "no answer"),
        (Happened({"id": 7}), {"id": 7}, {"id": 7}),
        (NotHappened(), "raised", "raised"),
    ],
    ids=str,
)
async def test_an_error_that_leaves_the_outcome_open_is_told_so(
    store: SQLiteStore, is_async: bool, verdict: Any, ends: Any, again: Any
) -> None:
    runs = list[str]()

    def charge(order: str) -> Any:
        runs.append(order)
        raise TimeoutError("no answer")

    async def charge_async(order: str) -> Any:
        charge(order)

    guard = effect(store, "charge", key=by_order, verify=lambda order: verdict)
    guarded = guard(charge_async if is_async else charge)

    async def outcome() -> Any:
        try:
            return await guarded("a") if is_async else await asyncio.to_thread(guarded, "a")
        except (ToolDurabilityError, TimeoutError) as error:
            return getattr(error, "reason", "raised")

    assert (await outcome(), await outcome()) == (ends, again)
    assert len(runs) == (2 if ends == "raised" else 1)  # what has not happened may run again


async def test_an_open_outcome_is_returned_for_a_model_and_declared_errors_decide(store: SQLiteStore) -> None:
    class BusyError(Exception):
        pass

    @effect(store, "charge", key=by_order, on_unknown="return", unknown=(BusyError,), not_run=(TimeoutError,))
    async def charge(order: str) -> Any:
        raise BusyError("busy") if order == "a" else TimeoutError

    for _ in range(2):
        assert (await charge("a"))["kind"] == "tool-durability-error"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await charge("b")


async def test_a_block_that_raises_what_leaves_its_outcome_open_is_told_so(store: SQLiteStore) -> None:
    with pytest.raises(ToolDurabilityError, match="no answer"):
        async with effect(store, "charge", key="a"):
            raise TimeoutError("no answer")
    with pytest.raises(TimeoutError):  # verify is asked the next time the block is entered
        async with effect(store, "charge", key="b", verify=lambda: Happened(7)):
            raise TimeoutError("no answer")
    async with effect(store, "charge", key="b", verify=lambda: Happened(7)) as call:
        assert (call.is_done, call.result) == (True, 7)


async def test_a_cancel_while_verify_is_asked_leaves_an_unknown_outcome(store: SQLiteStore) -> None:
    asked = asyncio.Event()

    async def verify(order: str) -> None:
        asked.set()
        await asyncio.sleep(60)

    @effect(store, "charge", key=by_order, verify=verify)
    async def charge(order: str) -> None:
        raise TimeoutError("no answer")

    running = asyncio.ensure_future(charge("a"))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ToolDurabilityError, match="no answer"):
        await effect(store, "charge", key=by_order)(charge.__wrapped__)("a")  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {1: "a", "1": "b"}], ids=str)
async def test_a_result_that_json_would_change_is_an_error_that_says_it_ran(store: SQLiteStore, value: Any) -> None:
    calls = []

    @effect(store, "odd", key=by_order)
    async def odd(order: str) -> Any:
        calls.append(order)
        return value

    for _ in range(2):
        with pytest.raises(EffectFailedError, match="ran, but its result could not be kept whole: "):
            await odd("a")
    assert calls == ["a"]


async def test_a_set_that_is_declared_is_kept_as_a_set(store: SQLiteStore) -> None:
    @effect(store, "tags", key=by_order)
    async def tags(order: str) -> set[str]:
        return {"a", "b"}

    assert await tags("a") == await tags("a") == {"a", "b"}


async def test_a_result_that_is_not_json_is_lost_and_said_so(store: SQLiteStore) -> None:
    calls = []

    @effect(store, "odd", key=by_order)
    async def odd(order: str) -> Any:
        calls.append(order)
        return object()

    for _ in range(2):
        with pytest.raises(EffectFailedError, match="ran, but its result was lost"):
            await odd("a")
    assert calls == ["a"]


async def test_an_unknown_outcome_can_be_returned_for_a_model(tmp_path: Path) -> None:
    store = await killed_in("charge", tmp_path)

    @effect(store, "charge", key=by_order, on_unknown="return")
    async def charge(order: str) -> Any:
        raise AssertionError("it ran again")

    told = await charge("a")
    assert (told["kind"], told["toolName"], told["toolCallId"]) == ("tool-durability-error", "charge", "a")
    assert "its process ended while it ran" in told["error"]


@pytest.mark.parametrize(
    ("verdict", "outcome"), [(Happened({"id": 7}), {"id": 7}), (NotHappened(), "ran again"), (None, "unknown")]
)
async def test_a_lost_call_is_looked_up(tmp_path: Path, verdict: Any, outcome: Any) -> None:
    store = await killed_in("charge", tmp_path)

    @effect(store, "charge", key=by_order, verify=lambda order: verdict)
    async def charge(order: str) -> Any:
        return "ran again"

    if outcome == "unknown":
        with pytest.raises(ToolDurabilityError):
            await charge("a")
    else:
        assert await asyncio.gather(*(charge("a") for _ in range(5))) == [outcome] * 5


async def test_all_that_look_a_lost_call_up_at_once_have_its_result(tmp_path: Path) -> None:
    store, asked = await killed_in("charge", tmp_path), []

    async def look(order: str) -> Happened:
        asked.append(order)
        while len(asked) < 20:
            await asyncio.sleep(0)
        return Happened({"id": 7})

    @effect(store, "charge", key=by_order, verify=look)
    async def charge(order: str) -> Any:
        return "ran again"

    assert await asyncio.gather(*(charge("a") for _ in range(20))) == [{"id": 7}] * 20


async def test_a_lost_call_that_another_attempt_takes_over_in_the_meantime_is_not_run(tmp_path: Path) -> None:
    store = await killed_in("charge", tmp_path)
    load_entries, taken = store.load_entries, []

    async def load_when_taken(scope: str, keys: Sequence[str]) -> Any:
        if not taken:  # another attempt, for which the call has happened; then it also dies
            lost = (await load_entries(scope, keys))[keys[0]]
            taken.append(await store.take_over(scope, keys[0], owner=f"{lost.owner}9"))
        return await load_entries(scope, keys)

    store.load_entries = load_when_taken  # type: ignore[method-assign]

    @effect(store, "charge", key=by_order, verify=lambda order: Happened({"id": 7}))
    async def charge(order: str) -> Any:
        raise AssertionError("it ran again")

    assert await charge("a") == {"id": 7}
    assert len(taken) == 1


async def killed_in(name: str, folder: Path) -> SQLiteStore:
    """Return a store in which a call with the key "a" was begun by a process that was killed then."""
    path = folder / "killed.db"
    code = f"""
import asyncio, os, signal
from standfast import sqlite_store
from standfast.effects import effect
@effect(sqlite_store({str(path)!r}), {name!r}, key=lambda order: order)
async def charge(order):
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(charge("a"))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == -signal.SIGKILL
    return sqlite_store(path)


async def test_a_kept_result_that_does_not_fit_what_the_function_returns_now_is_told_so(store: SQLiteStore) -> None:
    bank = Bank()
    await effect(store, "charge", key=by_order)(bank.charge)("a")

    @effect(store, "charge", key=by_order)
    async def charge(order: str, cents: int = 5) -> int:
        raise AssertionError("it ran again")

    with pytest.raises(EffectFailedError, match="has run, and its result is stored, but does not fit"):
        await charge("a")


async def test_of_a_huge_error_as_much_is_kept_as_anybody_reads(store: SQLiteStore) -> None:
    @effect(store, "fail", key=by_order)
    async def fail(order: str) -> None:
        raise ValueError("x" * 50_000_000)

    with pytest.raises(ValueError, match="xxx"):
        await fail("a")
    with pytest.raises(EffectFailedError, match=r"cut: 32,768 of 50,000,000 bytes") as told:
        await fail("a")
    assert len(str(told.value)) < 40_000


async def test_a_huge_result_is_kept_whole(store: SQLiteStore) -> None:
    @effect(store, "load", key=by_order)
    async def load(order: str) -> str:
        return "x" * 50_000_000

    assert [len(await load("a")), len(await load("a"))] == [50_000_000] * 2


async def test_the_longest_keys_of_the_oddest_characters_are_told_apart_in_every_store(
    store: SQLiteStore, postgres_store: PostgresStore
) -> None:
    names = ["\U0001f600" * 100, "a/b", "a"]
    keys = ["\U0001f4b8" * 400, "\U0001f4b8" * 399, "c", "b/c", "é", "e\u0301", "#2", "a'; --", "%", "0/charge"]
    for kept in (store, postgres_store):
        for name in names:
            bank = Bank()
            charge = effect(kept, name, key=by_order)(bank.charge)
            for key in (*keys, *keys):
                assert await charge(key) == Receipt(key, 5)
            assert bank.charged == keys
        for key in ("", "x" * 401, "a\nb", "a\0b", "\ud800"):
            with pytest.raises(InputError, match="printable text of 1 to 400 characters"):
                await charge(key)


async def test_a_method_is_guarded_whatever_its_object_holds(store: SQLiteStore) -> None:
    @dataclass
    class Till:
        calls: int = 0

        @effect(store, "take", key=lambda self, order: order)
        async def take(self, order: str) -> int:
            self.calls += 1
            return self.calls

    till = Till()
    assert [await till.take("a"), await till.take("a"), await till.take("b")] == [1, 1, 2]


def test_a_plain_function_that_only_promises_to_run_is_told_so(store: SQLiteStore) -> None:
    bank = Bank()

    @effect(store, "wrapped", key=by_order)
    def wrapped(order: str) -> Any:
        return bank.charge(order)

    with pytest.raises(TypeError, match="make it an async def"):
        wrapped("a")
    assert bank.charged == []


async def test_other_stores_keep_the_promise_too(postgres_store: PostgresStore, d1_store: D1Store) -> None:
    for kept in (postgres_store, d1_store):
        bank = Bank()
        charge = effect(kept, "charge", key=by_order)(bank.charge)
        assert await asyncio.gather(*(charge("a") for _ in range(5))) == [Receipt("a", 5)] * 5
        assert bank.charged == ["a"]


async def test_a_forked_process_has_its_own_name(tmp_path: Path) -> None:
    code = f"""
import asyncio, os
from standfast import sqlite_store
from standfast.effects import effect
@effect(sqlite_store({str(tmp_path / "forked.db")!r}), "count", key=lambda number: str(number))
def count(number: int) -> int:
    return os.getpid()
ours = count(1)
child = os.fork()
if child == 0:
    os._exit(0 if count(1) == ours and count(2) == os.getpid() else 1)
assert os.waitpid(child, 0)[1] == 0
assert count(2) == child
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", "-c", code)
    assert await process.wait() == 0


async def test_an_old_key_can_be_pruned_and_is_new_then(store: SQLiteStore) -> None:
    bank = Bank()
    charge = effect(store, "charge", key=by_order)(bank.charge)
    await charge("a")
    young = Pruning(store, datetime.now(UTC) - timedelta(days=1), nobody_knows)
    await young.prune()
    await charge("a")
    assert bank.charged == ["a"]
    await Pruning(store, datetime.now(UTC) + timedelta(days=1), nobody_knows).prune()
    await charge("a")
    assert bank.charged == ["a", "a"]


# --- blocks ---


async def test_a_block_runs_once(store: SQLiteStore) -> None:
    for round_ in range(2):
        async with effect(store, "charge", key="order-7") as call:
            assert call.is_done is bool(round_)
            if not call.is_done:
                call.result = {"id": "ch_1"}
        assert call.result == {"id": "ch_1"}


async def test_a_block_that_has_raised_raises_again_before_it_begins(store: SQLiteStore) -> None:
    with pytest.raises(KeyError):
        async with effect(store, "charge", key="order-7"):
            raise KeyError("no card")
    with pytest.raises(EffectFailedError, match="no card"):
        async with effect(store, "charge", key="order-7"):
            raise AssertionError("it ran again")


async def test_a_block_with_a_timeout_is_refused_since_it_is_not_cut_off(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match="applies to functions, not to blocks"):
        async with effect(store, "charge", key="order-7", timeout=1):
            raise AssertionError("it ran")


# --- declarations ---


def wrong(build: Callable[[], Any], error: type[Exception], text: str) -> Any:
    return pytest.param(build, error, text, id=text)


def plain(order: str) -> str:
    return order


class Generating:
    async def __call__(self, order: str) -> Any:
        yield order


STORE = sqlite_store("never-opened.db")


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        wrong(lambda: effect(memory_store())(plain), MemoryStoreNotDurableError, "memory store forgets"),
        wrong(lambda: effect("shop.db"), DefinitionError, "store must be a store, such as sqlite_store"),  # type: ignore[arg-type]
        wrong(lambda: effect(STORE)(effect(STORE)(plain)), DefinitionError, "is already guarded"),
        wrong(lambda: effect(STORE)(partial(effect(STORE)(plain))), DefinitionError, "is already guarded"),
        wrong(lambda: tool(effect(STORE)(plain)), DefinitionError, "its function has a guard"),
        wrong(lambda: tool(name="x")(partial(effect(STORE)(plain))), DefinitionError, "declare the tool safe"),
        wrong(lambda: tool(plain).with_handler(effect(STORE)(plain)), DefinitionError, "'plain': its function has a"),
        wrong(lambda: effect(STORE)(Generating()), DefinitionError, "is a generator"),
        wrong(lambda: effect(STORE)(activity.defn(lambda order: order)), DefinitionError, "below @activity.defn"),
        wrong(lambda: effect(STORE)(tool(plain)), DefinitionError, "already runs at most once"),
        wrong(lambda: effect(STORE, key=plain), DefinitionError, "key= also needs a name"),
        wrong(lambda: effect(STORE, "x", key=lambda: "k")(plain), DefinitionError, "key must take the arguments"),
        wrong(lambda: effect(STORE, "x", key="k")(plain), DefinitionError, "must be a function of the arguments"),
        wrong(lambda: effect(STORE, timeout="5s")(plain), DefinitionError, "timeout needs an async function"),
        wrong(lambda: effect(STORE, approval=Approval(on_reject="continue")), DefinitionError, "without show"),
        wrong(lambda: effect(STORE, on_unknown="ignore"), DefinitionError, "must be one of raise, return"),  # type: ignore[arg-type]
        wrong(lambda: effect(STORE)(int), DefinitionError, "needs a function"),
        wrong(lambda: effect(STORE)(plain)("a"), InputError, "has no key"),
        wrong(lambda: effect(STORE, "x", key=lambda order: "")(plain)("a"), InputError, "1 to 400 characters"),
        wrong(lambda: effect(STORE, "x", key=by_order, approval=Approval())(plain)("a"), InputError, "needs approval"),
        wrong(lambda: effect(STORE, "x", key=by_order)(plain)(), TypeError, "missing a required argument"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    build: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        build()
    assert not Path("never-opened.db").exists()


def test_a_safe_tool_may_have_a_guard_whose_verify_is_asked() -> None:
    guarded = effect(STORE, "pay", verify=plain, key=plain)(plain)
    assert tool(safe_to_retry=True)(guarded).handler is guarded


def test_a_key_may_take_as_many_arguments_as_calls_have(store: SQLiteStore) -> None:
    keys: list[Callable[..., str]] = [
        lambda order: order,
        lambda order, cents: order,
        lambda order, cents=5: order,
        lambda *, order, cents=5: order,
        lambda *given, **named: "k",
        str,
    ]
    for key in keys:
        assert effect(store, "charge", key=key)(Bank().book)
