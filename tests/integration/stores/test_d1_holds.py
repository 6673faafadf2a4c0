"""D1: a hold is a lease, and a holder that has lost it writes nothing more."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.d1_proxies import D1Proxy
from support.stores import SESSION, append, contents, say

from standfast import InputError, SessionConflictError, StoreError
from standfast.stores import Append, D1Store, RunningCall, d1_store
from standfast.testing.holds import within
from standfast.testing.store_processes import StoreProcess

RUNNING = RunningCall(owner="me", worker="worker", task_token="dG9rZW4=", workflow_id="a/s", run_id="r")


def let_run_out(server: D1Server, store: D1Store, name: str = "s") -> None:
    server.sql(store._name.rpartition("/")[2], f"UPDATE holds SET until = 0 WHERE name = '{name}'")


def again(server: D1Server, store: D1Store, **options: Any) -> D1Store:
    """Return another object over the same database."""
    return server.store(store._name.rpartition("/")[2], **options)


WRITES: dict[str, Callable[[D1Store], Any]] = {
    "append": lambda store: append(store, "late"),
    "append where it was": lambda store: store.append_messages_atomic("s", say("late"), SESSION, expected_seq=1),
    "append more": lambda store: store.append_messages("s", say("late"), SESSION),
    "save": lambda store: store.save_session(SESSION.model_copy(update={"state": '"late"'})),
    "reply": lambda store: store.append_reply(
        [Append(SESSION, say("late"), "k", 1)], journal_key="r", turn=1, reply="late"
    ),
    "reply of a run": lambda store: store.save_reply("s/step", 1, "late"),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_process_that_has_lost_a_session_writes_nothing_to_it(
    d1: D1Server, d1_store: D1Store, write: str
) -> None:
    await append(d1_store, "first")
    assert await d1_store.hold("s")
    let_run_out(d1, d1_store)
    async with again(d1, d1_store) as other:
        assert await other.hold("s")
        with pytest.raises(SessionConflictError, match=r"s was taken over by another run.*run again to go on"):
            await WRITES[write](d1_store)
        session = await other.load_session("s")
        assert session is not None
        assert (await contents(other), session.state, session.version) == (["first"], "{}", 1)
        assert (await other.load_reply("r", 1), await other.load_reply("s/step", 1)) == (None, None)
        await WRITES[write](other)


@pytest.mark.parametrize("write", WRITES)
async def test_a_process_that_holds_a_session_writes_to_it(d1_store: D1Store, write: str) -> None:
    await append(d1_store, "first")
    assert await d1_store.hold("s")
    await WRITES[write](d1_store)


async def test_a_worker_that_has_lost_its_name_begins_no_call_and_takes_it_again_when_it_is_free(
    d1: D1Server, d1_store: D1Store
) -> None:
    assert await d1_store.hold("worker")
    await d1_store.add_worker("worker")
    let_run_out(d1, d1_store, "worker")
    async with again(d1, d1_store) as other:
        assert await other.hold("worker")
        await other.drop_worker("worker")
        for begin in (
            d1_store.claim("run", "1", owner="me", arguments_hash="h", running=RUNNING),
            d1_store.begin_call(RUNNING),
        ):
            with pytest.raises(StoreError, match=r"worker had not renewed its hold.*try again in a second"):
                await begin
        assert (await other.load_entries("run", ["1"]), await other.running_calls()) == ({}, [])
        await other.let_go("worker")
        await within(lambda: has_worker(other), "a worker whose name is free")
        assert not await other.hold("worker")
    assert (await d1_store.claim("run", "1", owner="me", arguments_hash="h", running=RUNNING)).owner == "me"


async def has_worker(store: D1Store) -> bool:
    return await store.list_workers() == ["worker"]


async def test_a_hold_that_ran_out_and_that_nobody_took_is_renewed(d1: D1Server, d1_store: D1Store) -> None:
    assert await d1_store.hold("s")
    let_run_out(d1, d1_store)

    async def is_renewed() -> bool:
        database = d1_store._name.rpartition("/")[2]
        return bool(d1.sql(database, "SELECT until > unixepoch() AS ok FROM holds")[0]["ok"])

    await within(is_renewed, "a hold that ran out")
    async with again(d1, d1_store) as other:
        assert not await other.hold("s")
    await append(d1_store, "a")


async def test_a_hold_outlasts_its_lease_many_times(d1: D1Server) -> None:
    async with d1.store(lease=0.4) as store, again(d1, store, lease=0.4) as other:
        assert await store.hold("s")
        for _ in range(8):
            assert not await other.hold("s")
            await asyncio.sleep(0.2)


async def test_a_process_that_takes_a_hold_that_misses_renewals_waits_for_its_end(d1: D1Server) -> None:
    async with D1Proxy(d1).running() as proxy, proxy.store(lease=2) as store, again(d1, store, lease=2) as other:
        assert await store.hold("s")
        proxy.faults = ["drop"] * 1_000
        taken = False
        looks = 0
        while not taken:
            taken = await other.hold("s")
            looks += 1
        assert looks < 500
        proxy.faults = []
        with pytest.raises(SessionConflictError, match="was taken over"):
            await append(store, "late")


async def test_a_process_that_stood_still_for_longer_than_its_lease_writes_nothing(
    d1: D1Server, d1_store: D1Store
) -> None:
    process = StoreProcess()
    try:
        await process.open(Reopened(d1.url, d1_store._name.rpartition("/")[2], 1.0))
        assert await process.do(hold_and_append)
        os.kill(process._process.pid, signal.SIGSTOP)
        await within(lambda: d1_store.hold("s"), "a hold of a frozen process")
        writing = asyncio.create_task(process.do(try_to_append))
        os.kill(process._process.pid, signal.SIGCONT)
        assert "was taken over by another run" in await writing
        assert await contents(d1_store) == ["held"]
    finally:
        process.kill()


class Reopened:
    """Opens a store in another process."""

    def __init__(self, url: str, database: str, lease: float) -> None:
        self.url, self.database, self.lease = url, database, lease

    def __call__(self) -> D1Store:
        return d1_store(ACCOUNT, self.database, TOKEN, base_url=self.url, lease=self.lease)


async def hold_and_append(store: Any) -> bool:
    held: bool = await store.hold("s")
    await append(store, "held")
    return held


async def try_to_append(store: Any) -> str:
    try:
        await append(store, "late")
    except SessionConflictError as error:
        return str(error)
    return "done"


async def test_holds_end_with_their_event_loop(d1: D1Server, d1_store: D1Store) -> None:
    async with again(d1, d1_store) as other:
        assert await asyncio.to_thread(asyncio.run, d1_store.hold("s"))
        assert await other.hold("s")


async def test_holds_end_with_a_store_that_nothing_refers_to(d1: D1Server, d1_store: D1Store) -> None:
    store = again(d1, d1_store, lease=1_000)
    assert await store.hold("s")
    assert not await d1_store.hold("s")
    del store
    gc.collect()
    await within(lambda: d1_store.hold("s"), "a hold of a store that is forgotten")


async def test_holds_end_with_close(d1: D1Server, d1_store: D1Store) -> None:
    store = again(d1, d1_store, lease=1_000)
    assert await store.hold("s")
    await store.close()
    assert await d1_store.hold("s")


async def test_a_hold_whose_answer_was_lost_is_held(d1: D1Server) -> None:
    async with D1Proxy(d1).running() as proxy, proxy.store() as store:
        await store.identity()
        proxy.faults = ["lose"]
        assert await store.hold("s")
        proxy.faults = ["lose"]
        await store.let_go("s")
        assert await store.hold("s")


async def test_a_hold_that_is_cancelled_while_it_is_taken_is_not_held(d1: D1Server, d1_store: D1Store) -> None:
    await d1_store.identity()
    for _ in range(5):
        taking = asyncio.create_task(d1_store.hold("s"))
        await asyncio.sleep(0.001)
        taking.cancel()
        if (await asyncio.gather(taking, return_exceptions=True))[0] is not True:
            async with again(d1, d1_store) as other:
                assert await other.hold("s")
        else:
            await d1_store.let_go("s")


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_a_lease_is_more_than_nothing(lease: float) -> None:
    with pytest.raises(InputError, match="lease must be seconds, more than 0"):
        d1_store(ACCOUNT, "db", TOKEN, lease=lease)
