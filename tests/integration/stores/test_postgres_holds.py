"""PostgreSQL: holds that end with their process, come back with their connection, or are lost and then fence."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from support.postgres import PostgresServer, new_schema, postgres_server
from support.postgres_proxies import PostgresProxy
from support.stores import SESSION, append, contents, say

from standfast import SessionConflictError, StoreError
from standfast.stores import Append, PostgresStore
from standfast.stores.postgres import holds as postgres_holds
from standfast.stores.protocol import RunningCall
from standfast.testing.workers import at_work

LONG = 600.0


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(30):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within 30 s: {what}") from None


def locks_of(server: PostgresServer) -> int:
    return int(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))


def end_holders_connection(server: PostgresServer) -> None:
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[PostgresProxy]:
    async with PostgresProxy(postgres).running() as running:
        yield running


# --- a holder that lives, and one that dies ---


async def test_a_hold_is_seen_by_other_stores_until_it_is_let_go(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", LONG)  # a holder that has let go is not waited for
    schema = new_schema()
    async with postgres.store(schema) as one, postgres.store(schema) as other:
        assert await one.hold("s")
        assert not await other.hold("s")
        assert await other.hold("t")
        await one.let_go("s")
        assert await other.hold("s")
        assert await one.hold_scope() == await other.hold_scope()
    async with postgres.store(schema) as third:
        assert await third.hold("s")  # closing lets go


HOLDER = """
import asyncio, sys
from standfast import postgres_store

async def main():
    store = postgres_store(sys.argv[1], schema=sys.argv[2])
    print(await store.hold("s"), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def holding(server: PostgresServer, schema: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that holds "s"."""
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", HOLDER, server.dsn(), schema), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"True\n"
    try:
        yield holder
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


async def test_a_hold_ends_with_its_process(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store, holding(postgres, schema) as holder:
        assert not await store.hold("s")
        holder.kill()
        await until(lambda: store.hold("s"), "the hold is free")


async def test_a_frozen_holder_keeps_its_hold(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", 0.0)
    schema = new_schema()
    async with postgres.store(schema) as store, holding(postgres, schema) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        assert not await store.hold("s")


async def test_of_many_that_want_a_hold_at_once_one_has_it(postgres: PostgresServer) -> None:
    schema = new_schema()
    stores = [postgres.store(schema) for _ in range(6)]
    try:
        for name in ("s", "t", "u"):
            assert sum(await asyncio.gather(*(store.hold(name) for store in stores for _ in range(3)))) == 1
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_of_many_that_wait_for_a_dead_holder_one_has_the_hold(
    postgres: PostgresServer, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", 0.5)
    schema = new_schema()
    dead = proxy.store(schema)
    assert await dead.hold("s")
    proxy.cut()
    stores = [postgres.store(schema) for _ in range(6)]
    try:
        assert sum(await asyncio.gather(*(store.hold("s") for store in stores))) == 1
    finally:
        await asyncio.gather(*(store.close() for store in stores))
        proxy.mend()
        await dead.close()


async def test_a_wait_for_a_hold_that_is_cancelled_leaves_it_free(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store, postgres.store(schema) as other:
        for step in range(12):
            taking = asyncio.create_task(store.hold("s"))
            for _ in range(step):
                await asyncio.sleep(0.0005)
            if not taking.cancel():
                assert await taking
                await store.let_go("s")
            else:
                await asyncio.wait({taking})
                if not taking.cancelled():
                    await store.let_go("s")
            assert await other.hold("s"), step
            await other.let_go("s")
        assert locks_of(postgres) == 0


# --- a holder that lives, and whose connection breaks ---


async def test_a_holder_whose_connection_ends_has_its_hold_again_before_others_take_it(
    postgres: PostgresServer,
) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store, postgres.store(schema) as other:
        await append(store, "a")
        assert await store.hold("s")
        for _ in range(3):
            end_holders_connection(postgres)
            assert not await other.hold("s")
            await until(lambda: asyncio.to_thread(lambda: locks_of(postgres) == 1), "the hold is locked again")
        await append(store, "b")
        await store.let_go("s")
        assert await other.hold("s")


async def test_others_wait_for_a_holder_that_cannot_come_back_at_once(
    postgres: PostgresServer, proxy: PostgresProxy
) -> None:
    schema = new_schema()
    store = proxy.store(schema)
    async with postgres.store(schema) as other:
        assert await store.hold("s")
        proxy.cut()
        await until(lambda: asyncio.to_thread(lambda: locks_of(postgres) == 0), "the server has heard of it")
        taking = asyncio.create_task(other.hold("s"))
        await asyncio.sleep(0.5)  # of the 3 s that it waits
        proxy.mend()
        assert not await taking
    await store.close()


async def test_a_hold_that_somebody_took_and_died_with_in_the_meantime_is_not_locked_again(
    postgres: PostgresServer, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", 0.0)
    schema = new_schema()
    async with (
        PostgresProxy(postgres).running() as others,
        proxy.store(schema) as store,
        others.store(schema) as other,
        postgres.store(schema) as third,
    ):
        assert await store.hold("s")
        proxy.hold_back("pg_try_advisory_lock(key)")
        proxy.cut()
        proxy.mend()
        await asyncio.wait_for(proxy.holds_back.wait(), 30)  # it has read that the hold is still in its name
        assert await other.hold("s")
        others.cut()
        await until(lambda: asyncio.to_thread(lambda: locks_of(postgres) == 0), "the server has heard of it")
        asked = len(proxy.statements)
        proxy.go_on()

        async def reads_again() -> bool:
            return len(proxy.statements) > asked

        await until(reads_again, "it looks again whose the hold is")
        await until(lambda: third.hold("s"), "the hold is free")
        others.mend()


async def test_a_server_that_restarts_leaves_holds_with_their_holders() -> None:
    schema = new_schema()
    with postgres_server() as server:
        async with server.store(schema) as store, server.store(schema) as other:
            for name in ("s", "t", "u"):
                assert await store.hold(name)
            assert await other.hold("v")
            await asyncio.to_thread(server.restart)
            assert not any(await asyncio.gather(*(other.hold(name) for name in ("s", "t", "u"))))
            assert not await store.hold("v")
            await append(store, "a")


async def test_a_holder_that_alone_sees_the_end_of_its_connection_has_its_hold_again(
    postgres: PostgresServer, proxy: PostgresProxy
) -> None:
    schema = new_schema()
    store = proxy.store(schema)
    async with postgres.store(schema) as other:
        assert await store.hold("s")
        proxy.cut(half=True)  # the server still has the old connection, and its lock
        assert not await other.hold("s")
        await append(store, "a")
        await store.let_go("s")
        assert await other.hold("s")
    await store.close()


# --- a hold that is lost ---


@pytest.fixture
async def loser(
    postgres: PostgresServer, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """A store that is cut off until another one has its hold of "s", and that other one."""
    monkeypatch.setattr(postgres_holds, "GRACE", 0.2)
    schema = new_schema()
    store = proxy.store(schema)
    async with postgres.store(schema) as other:
        await append(store, "a")
        assert await store.hold("s")
        proxy.cut()
        await until(lambda: other.hold("s"), "the other has the hold")
        proxy.mend()
        yield store, other
    await store.close()


async def test_a_run_that_has_lost_its_hold_writes_nothing(loser: tuple[PostgresStore, PostgresStore]) -> None:
    store, other = loser
    session = await store.load_session("s")
    assert session is not None
    known = {"expected_seq": 1, "expected_version": session.version}
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.append_messages_atomic("s", say("b"), SESSION, write_key="k", **known)
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.append_messages_atomic("s", say("b"), SESSION)
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.append_reply([Append(SESSION, say("b"), "k", 1)], journal_key="run", turn=1, reply="b")
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.append_messages("s", say("b"), SESSION)
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.save_session(SESSION.model_copy(update={"state": '"b"'}))
    assert await store.load_reply("run", 1) is None
    assert await store.load_session("s") == session
    await other.append_messages_atomic("s", say("c"), SESSION, write_key="k", **known)
    assert await contents(store) == ["a", "c"]


async def test_a_pipeline_that_has_lost_its_hold_keeps_nothing(loser: tuple[PostgresStore, PostgresStore]) -> None:
    store, other = loser
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await store.save_reply("s/steps/first", 0, "late")
    assert await other.save_reply("s/steps/first", 0, "mine") == "mine"


async def test_a_lost_hold_is_not_taken_again_in_silence(loser: tuple[PostgresStore, PostgresStore]) -> None:
    store, other = loser
    assert not await store.hold("s")
    await other.let_go("s")
    await asyncio.sleep(3 * postgres_holds.RETRIES)
    with pytest.raises(SessionConflictError, match="s was taken over by another run"):
        await append(store, "late")
    assert not await store.hold("s")  # the run that has lost it has not ended
    await store.let_go("s")
    assert await store.hold("s")
    await append(store, "b")


async def test_a_worker_that_others_take_for_dead_begins_no_call_until_it_has_its_name_again(
    postgres: PostgresServer, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", 0.2)
    schema = new_schema()
    worker = proxy.store(schema)
    running = RunningCall(owner="me", worker="w", task_token="t", workflow_id="w", run_id="r")
    claim = partial(worker.claim, "run", "1", owner="me", arguments_hash="h", running=running)
    async with postgres.store(schema) as other:
        assert await worker.hold("w")
        await worker.add_worker("w")
        await claim()
        proxy.cut()
        await until(lambda: other.hold("w"), "the worker looks dead")
        await other.end_call("me")
        proxy.mend()
        for _ in range(3):  # however often it reconnects in between
            with pytest.raises(StoreError, match="The worker w had lost its connection"):
                await claim()  # once more, since its answer may have been lost
            with pytest.raises(StoreError, match="The worker w had lost its connection"):
                await worker.begin_call(running)
            proxy.cut()
            proxy.mend()
        assert await other.running_calls() == []
        await asyncio.sleep(3 * postgres_holds.RETRIES)  # it is back for a while, and has asked for its name in vain
        await other.let_go("w")

        async def begins_calls() -> bool:
            with contextlib.suppress(StoreError):
                await worker.begin_call(running)
            return await other.running_calls() == [running]

        await until(begins_calls, "the worker has its name again")
        assert not await other.hold("w")
        assert (await claim()).owner == "me"
    await worker.close()


async def test_a_worker_whose_hold_was_lost_has_it_again_when_it_is_back(
    postgres: PostgresServer, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_holds, "GRACE", 0.2)
    schema = new_schema()
    worker = proxy.store(schema)
    async with postgres.store(schema) as other:
        assert await worker.hold("w")
        await worker.add_worker("w")
        proxy.cut()
        await until(lambda: other.hold("w"), "the worker looks dead")
        await other.drop_worker("w")
        await other.let_go("w")
        proxy.mend()

        async def is_known() -> bool:
            return await other.list_workers() == ["w"]

        await until(is_known, "the worker is known again")
        assert not await other.hold("w")
    await worker.close()


# --- the mark of the run at work ---


async def test_the_next_run_does_not_begin_while_the_last_one_writes(postgres: PostgresServer) -> None:
    """It reads the session once it has marked it, so a write that was let through before must be there by then."""
    schema = new_schema()
    first, second = at_work("s", journal_key="r1"), at_work("s", journal_key="r2")
    written = SESSION.model_copy(update={"journal_key": "r1/1"})
    async with postgres.store(schema) as one, postgres.store(schema) as other:
        await one.begin_work(first)
        seq = await append(one, "hi")
        blocker = await one._address.connect()
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.fetch(f'SELECT 1 FROM "{schema}".agent_sessions FOR UPDATE')

        async def blocked(verb: str) -> bool:
            wanted = f"query LIKE '%{verb}%' AND query LIKE '%{schema}%'"
            return (
                postgres.sql(f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {wanted}")
                != "0"
            )

        write = one.append_messages_atomic("s", say("late"), written, write_key="r1/1", expected_seq=seq)
        writing = asyncio.create_task(write)
        try:
            await until(lambda: blocked("UPDATE"), "the last run waits in its write")
            following = asyncio.create_task(other.begin_work(second, instead_of=first))

            async def has_followed_or_waits() -> bool:
                return following.done() or await blocked("sessions_at_work AS w")

            await until(has_followed_or_waits, "the next run waits for that write, or begins")
            assert not following.done()
        finally:
            await transaction.rollback()
            await blocker.close()
        assert (await writing, await following) == (seq + 1, second)
        assert await contents(other) == ["hi", "late"]
