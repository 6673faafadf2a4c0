"""Attempts at an effect that do not end with their function: no caller waits for a call that does not run."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.temporal_runs import Temporal
from temporalio import activity, workflow
from temporalio.exceptions import ActivityError, CancelledError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from standfast import StoreError, sqlite_store
from standfast.effects import Happened, NotHappened, ToolDurabilityError, effect
from standfast.effects.keys import ActivityKeys
from standfast.stores import SQLiteStore


class HeldStore:
    """A store that does not answer one of its operations until it is told to; what it was asked is done."""

    durable = True

    def __init__(self, store: SQLiteStore, operation: str) -> None:
        self._store, self._operation = store, operation
        self.asked, self.answers = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._operation:
            return found

        async def ask(*arguments: Any, **options: Any) -> Any:
            answer = await found(*arguments, **options)
            self.asked.set()
            while not self.answers.is_set():
                await asyncio.sleep(0.01)
            return answer

        return ask


class LosingStore:
    """A store whose first claim is written, and its acknowledgement lost."""

    durable = True

    def __init__(self, store: SQLiteStore) -> None:
        self._store, self._loses = store, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        answer = await self._store.claim(*arguments, **options)
        if self._loses:
            self._loses = False
            raise StoreError("the connection was lost")
        return answer


def by_order(order: str) -> str:
    return order


async def soon(call: Any) -> Any:
    return await asyncio.wait_for(call, 20)


async def test_a_call_that_was_cancelled_while_it_was_claimed_may_be_made_again(store: SQLiteStore) -> None:
    held: Any = HeldStore(store, "claim")

    @effect(held, "charge", key=by_order)
    async def charge(order: str) -> int:
        return 5

    first = asyncio.ensure_future(charge("a"))
    assert await asyncio.to_thread(held.asked.wait, 20)
    first.cancel()
    held.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await soon(charge("a")) == 5


async def test_so_may_one_whose_claim_was_written_and_not_acknowledged(store: SQLiteStore) -> None:
    losing: Any = LosingStore(store)

    @effect(losing, "charge", key=by_order)
    async def charge(order: str) -> int:
        return 5

    with pytest.raises(StoreError, match="connection was lost"):
        await charge("a")
    while await store.load_entries("effect/charge/a/steps/call", ["0/charge"]):  # it is given back in the meantime
        entries = await store.load_entries("effect/charge/a/steps/call", ["0/charge"])
        if entries["0/charge"].state == "abandoned":
            break
        await asyncio.sleep(0.01)
    assert await soon(charge("a")) == 5


async def test_a_caller_that_waits_for_another_attempt_can_be_cancelled(store: SQLiteStore) -> None:
    goes_on, begun = asyncio.Event(), asyncio.Event()

    @effect(store, "charge", key=by_order)
    async def charge(order: str) -> int:
        begun.set()
        await goes_on.wait()
        return 5

    first = asyncio.ensure_future(charge("a"))
    await begun.wait()
    second = asyncio.ensure_future(charge("a"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(second)
    goes_on.set()
    assert await soon(first) == 5


@pytest.mark.parametrize(("verdict", "outcome"), [(Happened(7), 7), (NotHappened(), 5), (None, None)])
async def test_a_call_that_was_cancelled_while_it_ran_is_looked_up(
    store: SQLiteStore, verdict: Any, outcome: int | None
) -> None:
    begun, runs, asked = asyncio.Event(), [], []

    def verify(order: str) -> Any:
        asked.append(order)
        return verdict

    @effect(store, "charge", key=by_order, verify=verify)
    async def charge(order: str) -> int:
        runs.append(order)
        begun.set()
        if len(runs) == 1:
            await asyncio.Event().wait()
        return 5

    first = asyncio.ensure_future(charge("a"))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if outcome is None:
        with pytest.raises(ToolDurabilityError, match="cancelled while it ran"):
            await soon(charge("a"))
        return
    assert await asyncio.gather(*(soon(charge("a")) for _ in range(3))) == [outcome] * 3
    asked.clear()
    assert await soon(charge("a")) == outcome
    assert asked == []
    assert len(runs) == 1 + isinstance(verdict, NotHappened)


def test_a_call_whose_event_loop_was_closed_is_unknown_in_the_next_one(store: SQLiteStore) -> None:
    begun = threading.Event()

    @effect(store, "charge", key=by_order)
    async def charge(order: str) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 5

    loop = asyncio.new_event_loop()
    task = loop.create_task(charge("a"))
    while not begun.is_set():
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio would complain that it is pending
    del task
    gc.collect()
    with pytest.raises(ToolDurabilityError, match="event loop was closed while it ran"):
        asyncio.run(soon(charge("a")))


def test_each_event_loop_finds_what_another_has_kept(store: SQLiteStore) -> None:
    runs = []

    @effect(store, "charge", key=by_order)
    async def charge(order: str) -> int:
        runs.append(order)
        return 5

    async def in_a_loop() -> int:
        async with store:  # which closes it
            return await charge("a")

    assert [asyncio.run(in_a_loop()) for _ in range(3)] == [5] * 3
    assert runs == ["a"]


async def test_a_store_that_is_gone_behind_the_effect_holds_up_nobody_who_is_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = asyncio.Event()

    @effect(sqlite_store(tmp_path / "store.db"), "charge", key=by_order)
    async def charge(order: str) -> int:
        for path in tmp_path.glob("store.db*"):
            path.unlink()
        ran.set()
        return 5

    call = asyncio.ensure_future(charge("a"))
    await ran.wait()
    while "the store refuses its result" not in caplog.text:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    with pytest.raises(StoreError, match="store"):
        await soon(charge("b"))


async def test_a_timeout_is_an_unknown_outcome_though_not_run_names_timeouts(store: SQLiteStore) -> None:
    runs = []

    @effect(store, "charge", key=by_order, timeout=0.1, not_run=(TimeoutError,))
    async def charge(order: str) -> None:
        runs.append(order)
        await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(ToolDurabilityError, match="cut off after its timeout"):
            await charge("a")
    assert runs == ["a"]


# --- activities ---


@workflow.defn(sandboxed=False)
class Cancelling:
    """Cancels an activity, and says how it ended."""

    @workflow.run
    async def run(self) -> str:
        run = workflow.start_activity(
            "book", "a", start_to_close_timeout=timedelta(seconds=60), heartbeat_timeout=timedelta(seconds=5),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )  # fmt: skip
        await workflow.wait_condition(lambda: self.begun)
        run.cancel()
        try:
            await run
        except ActivityError as error:
            return type(error.cause).__name__
        return "not cancelled"

    begun = False

    @workflow.signal
    def begin(self) -> None:
        self.begun = True


async def test_a_plain_activity_that_is_cancelled_is_cancelled_and_has_an_unknown_outcome(temporal: Temporal) -> None:
    begun = threading.Event()

    @effect(temporal.store, "book", key=by_order)
    def book(order: str) -> None:
        begun.set()
        while True:
            activity.heartbeat()
            activity.wait_for_cancelled_sync(0.05)

    client, queue = temporal.client, temporal.name
    with ThreadPoolExecutor() as threads:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[Cancelling],
            activities=[activity.defn(book)],
            activity_executor=threads,
            max_heartbeat_throttle_interval=timedelta(seconds=0.1),
        ):
            run = await client.start_workflow(Cancelling.run, id=temporal.session(), task_queue=queue)
            assert await asyncio.to_thread(begun.wait, 30)
            await run.signal(Cancelling.begin)
            assert await run.result() == CancelledError.__name__
    with pytest.raises(ToolDurabilityError, match="cancelled while it ran"):
        await asyncio.to_thread(book, "a")


async def test_an_activity_counts_its_effects_however_many_others_there_are_in_the_meantime() -> None:
    keys = ActivityKeys()

    def environment(number: int) -> ActivityEnvironment:
        made = ActivityEnvironment()
        names = {"workflow_id": None, "workflow_run_id": None, "activity_run_id": f"run-{number}"}
        made.info = replace(made.info, **names)  # type: ignore[arg-type]
        return made

    async def lasting() -> list[int]:
        first = await keys.next("charge")
        for number in range(10_001):
            await environment(number).run(keys.next, "charge")
        return [first.place, (await keys.next("charge")).place]

    assert await environment(-1).run(lasting) == [0, 1]
    gc.collect()
    assert len(keys._calls) <= 1  # ended activities are forgotten
