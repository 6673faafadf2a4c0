"""PostgreSQL: one store used from several loops, threads and processes, closed, forgotten, and interrupted."""

import asyncio
import gc
import os
import threading

import pytest
from support.postgres import PostgresServer, new_schema
from support.stores import append, contents, python

from standfast.stores import PostgresStore


def connections_to(server: PostgresServer) -> int:
    return int(server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'standfast'"))


async def none_left(server: PostgresServer, but: int = 0) -> None:
    async with asyncio.timeout(30):
        while connections_to(server) != but:
            await asyncio.sleep(0.02)


async def test_a_closed_store_opens_again_on_its_own(postgres: PostgresServer) -> None:
    store = postgres.store()
    await append(store, "a")
    await store.close()
    await store.close()
    assert (await append(store, "b"), await contents(store)) == (2, ["a", "b"])
    await store.close()
    await none_left(postgres)


async def test_a_store_that_was_never_used_connects_to_nothing() -> None:
    async with PostgresStore("postgresql://nobody@127.0.0.1:1/nothing"):
        pass


async def test_closing_finishes_what_was_asked_for(postgres: PostgresServer) -> None:
    store = postgres.store(max_connections=2)
    writes = [asyncio.create_task(append(store, f"m{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    assert len(await contents(store)) == 20
    await store.close()
    await none_left(postgres)


async def test_a_store_takes_no_more_connections_than_it_may(postgres: PostgresServer) -> None:
    async with postgres.store(max_connections=3) as store:
        await asyncio.gather(*(append(store, "m", f"s{number}") for number in range(60)))
        assert connections_to(postgres) == 3
        assert len(await store.list_sessions()) == 60


async def test_a_store_is_used_from_the_loops_of_several_threads(postgres: PostgresServer) -> None:
    async with postgres.store() as store:

        async def write(name: str) -> None:
            for number in range(20):
                await append(store, f"{name}{number}")

        await append(store, "first")
        await asyncio.gather(write("a"), *(asyncio.to_thread(asyncio.run, write(name)) for name in "bc"))
        written = await contents(store)
        assert len(written) == 61
        for name in "abc":
            assert [text for text in written if text[0] == name] == [f"{name}{number}" for number in range(20)]
        before = connections_to(postgres)
    await none_left(postgres)
    assert before <= 10  # the other loops' connections ended with them


async def test_closing_also_closes_what_a_loop_of_another_thread_has_open(postgres: PostgresServer) -> None:
    store, is_open, may_end = postgres.store(), threading.Event(), threading.Event()

    async def elsewhere() -> None:
        await append(store, "a")
        assert await store.hold("s")
        is_open.set()
        await asyncio.to_thread(may_end.wait)

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(is_open.wait)
    await append(store, "b", "t")
    await store.close()
    await none_left(postgres)
    may_end.set()
    await thread


async def test_a_store_that_is_forgotten_closes_its_connections(postgres: PostgresServer) -> None:
    store = postgres.store()
    await append(store, "a")
    assert await store.hold("s")
    assert connections_to(postgres) == 2
    del store
    gc.collect()
    await none_left(postgres)


RUNS = """
import asyncio, sys
from standfast import Agent, postgres_store, run
from standfast.testing import ScriptedModel

store = postgres_store(sys.argv[1], schema=sys.argv[2])
for _ in range(3):
    asyncio.run(run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"))
"""


async def test_a_store_that_is_not_closed_serves_one_loop_after_another_and_leaves_nothing(
    postgres: PostgresServer,
) -> None:
    schema = new_schema()
    done = await asyncio.to_thread(python, RUNS, postgres.dsn(), schema)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with postgres.store(schema) as store:
        assert await contents(store) == ["hi", "yes"] * 3
        assert postgres.sql(f"SELECT count(*) FROM {schema}.holds") == "0"
    await none_left(postgres)


FORKS = """
import asyncio, os, sys
from standfast import Message, postgres_store
from standfast.stores import Session

store = postgres_store(sys.argv[1], schema=sys.argv[2])

async def append(text):
    message = Message(role="user", content=text)
    await store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

async def main():
    await append("a")
    held = await store.hold("s")
    child = os.fork()
    if child == 0:
        return
    _, status = os.waitpid(child, 0)
    await append("c")
    print(held, status, await store.hold("s"), flush=True)
    await store.close()

async def in_child():
    print(await store.hold("s"), flush=True)
    await append("b")
    await store.close()

loop = asyncio.new_event_loop()
parent = os.getpid()
loop.run_until_complete(main())
if os.getpid() != parent:
    asyncio._set_running_loop(None)
    new = asyncio.new_event_loop()
    new.run_until_complete(in_child())
    new.close()
    os._exit(0)
"""


async def test_after_a_fork_each_process_has_its_own_connections(postgres: PostgresServer) -> None:
    schema = new_schema()
    done = await asyncio.to_thread(python, FORKS, postgres.dsn(), schema)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["False", "True 0 False", ""]), done.stderr
    async with postgres.store(schema) as store:
        assert await contents(store) == ["a", "b", "c"]


async def test_a_cancelled_write_is_whole_or_not_there(postgres_store: PostgresStore) -> None:
    await append(postgres_store, "a")
    for number in range(20):
        write = asyncio.create_task(append(postgres_store, f"b{number}"))
        await asyncio.sleep(0.0002 * number)
        if write.cancel():
            with pytest.raises(asyncio.CancelledError):
                await write
    await append(postgres_store, "c")
    session, written = await postgres_store.load_session("s"), await contents(postgres_store)
    assert session is not None
    assert (session.last_seq, written[0], written[-1]) == (len(written), "a", "c")


async def test_closed_stores_leave_no_file_descriptor_behind(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store:
        await store.load_session("s")
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        async with postgres.store(schema) as store:
            await store.hold("s")
    assert len(os.listdir("/dev/fd")) <= before
