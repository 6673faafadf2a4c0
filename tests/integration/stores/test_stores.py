"""Every store passes the exported suite; a SQLite store opens, closes and is dropped without loss."""

import asyncio
import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.stores import append, contents, python

import standfast
from standfast import memory_store, sqlite_store
from standfast.stores import PostgresStore, SQLiteStore
from standfast.stores.sqlite import thread as sqlite_thread
from standfast.testing import store_suite

# --- the suite ---


def reopen(store: SQLiteStore) -> Any:
    return partial(sqlite_store, store._path)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "check",
    store_suite(partial_answers=True, deletion=True, waits=True, standing_approvals=True, reopen=reopen),
    ids=lambda check: check.__name__,
)
async def test_sqlite(check: Any, store: Any) -> None:
    await check(store)


def reopen_postgres(store: PostgresStore) -> Any:
    return partial(standfast.postgres_store, store._address.dsn, schema=store._address.schema)


async def end_connections(store: PostgresStore) -> None:
    administrator = await store._address.connect()
    await administrator.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await administrator.close()


@pytest.mark.slow(but=20)
@pytest.mark.parametrize(
    "check",
    store_suite(
        partial_answers=True,
        deletion=True,
        waits=True,
        standing_approvals=True,
        reopen=reopen_postgres,
        interrupt=end_connections,
    ),
    ids=lambda check: check.__name__,
)
async def test_postgres(check: Any, postgres_store: PostgresStore) -> None:
    await check(postgres_store)


@pytest.mark.parametrize(
    "check", store_suite(durable=False, waits=True, standing_approvals=True), ids=lambda check: check.__name__
)
async def test_memory(check: Any) -> None:
    await check(memory_store())


# --- opening, closing, forgetting ---


async def test_a_closed_store_opens_again_on_its_own(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    await append(store, "a")
    await store.close()
    await store.close()
    assert (await append(store, "b"), await contents(store)) == (2, ["a", "b"])
    await store.close()


async def test_a_store_that_was_never_used_makes_no_file(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_open", [False, True])
async def test_closing_finishes_what_was_asked_for(tmp_path: Path, is_open: bool) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    if is_open:
        await store.load_session("s")
    writes = [asyncio.create_task(append(store, f"m{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    assert len(await contents(store)) == 20
    await store.close()


FILES = ["standfast.db", "standfast.db-mark"]  # of a store that is closed
USED_WHILE_IT_CLOSES = """
import asyncio, os, sqlite3, sys
from standfast import Message
from standfast.stores import Session, SQLiteStore

def append(store, text):
    message = Message(role="user", content=text)
    return store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

async def main():
    store = SQLiteStore(sys.argv[1])
    await append(store, "a")
    other = sqlite3.connect(sys.argv[1], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    busy = asyncio.create_task(append(store, "b"))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    used = asyncio.create_task(append(store, "c"))
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    other.close()
    tasks = {"busy": busy, "closing": closing, "used": used}
    await asyncio.wait(tasks.values(), timeout=5)
    print([name for name, task in tasks.items() if not task.done()], flush=True)
    if not closing.done():
        os._exit(1)
    await store.close()

asyncio.run(main())
"""


async def test_a_store_that_is_used_while_it_closes_neither_hangs_nor_loses_anything(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    done = await asyncio.to_thread(python, USED_WHILE_IT_CLOSES, path)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    async with sqlite_store(path) as store:
        assert sorted(await contents(store)) == ["a", "b", "c"]


async def test_a_store_that_is_closed_with_work_waiting_does_it_and_stays_closed(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    await append(store, "a")
    await asyncio.gather(append(store, "b"), store.close())
    await asyncio.sleep(0)
    assert "standfast.db-wal" not in os.listdir(tmp_path)
    assert await contents(store) == ["a", "b"]
    await store.close()


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every disk count as quick, however busy the machine is."""
    monkeypatch.setattr(sqlite_thread, "QUICK", 60.0)
    monkeypatch.setattr(sqlite_thread, "STALL", 60.0)


@pytest.mark.usefixtures("quick_disk")
async def test_work_that_a_signal_breaks_off_leaves_no_transaction_open(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM agent_sessions")
        raise Stop

    async with sqlite_store(tmp_path / "standfast.db") as store:
        await append(store, "a")
        await connection_of_loop(store)
        job = sqlite_thread.Job(stop, True, loop := asyncio.get_running_loop(), loop.create_future())
        with pytest.raises(Stop):
            store._thread._here._do([job], store._thread._queue)
        assert job.future.cancelled()
        await append(store, "b")
        assert await contents(store) == ["a", "b"]


async def where(store: Any) -> bool:
    """Whether a store works on this event loop, and not in its thread."""
    name: str = await store._do(lambda db: threading.current_thread().name)
    return name == threading.current_thread().name


async def connection_of_loop(store: Any) -> sqlite3.Connection:
    """Use a store until it works on this event loop, and return the connection that it uses there."""
    here, db = threading.get_ident(), None
    while db is None:
        db = await store._do(lambda db: db if threading.get_ident() == here else None)
    return db


def is_closed(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT 1")
    except sqlite3.ProgrammingError as error:
        return "closed" in str(error)
    return False


@pytest.mark.usefixtures("quick_disk")
async def test_what_is_quick_is_done_on_the_loop_and_what_was_slow_leaves_the_rest_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        assert not await where(store)  # opening a file may wait for others
        assert await where(store)
        monkeypatch.setattr(sqlite_thread, "QUICK", 0.0)
        assert await where(store)
        assert not await where(store)
        monkeypatch.setattr(sqlite_thread, "A_WHILE", 0.0)
        store._thread._here._slow_until = 0.0
        assert await where(store)
        assert await where(store)
        assert not any(await asyncio.gather(*(where(store) for _ in range(sqlite_thread.A_FEW + 1))))
        assert await where(store)


async def test_a_disk_that_hangs_at_every_write_holds_the_loop_up_once_until_it_is_quick_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, hangs, threads = sqlite_thread.work_off, True, list[str]()

    def work_off(db: sqlite3.Connection, jobs: list[Any], beside: Any) -> None:
        usual(db, jobs, beside)
        if any(job.writes for job in jobs):
            threads.append(threading.current_thread().name)
            time.sleep(1.5 * sqlite_thread.STALL if hangs else 0)

    monkeypatch.setattr(sqlite_thread, "A_WHILE", 0.0)
    monkeypatch.setattr(sqlite_thread, "work_off", work_off)
    async with sqlite_store(tmp_path / "standfast.db") as store:
        await contents(store)  # opens it, and writes nothing
        for name in "abcde":
            await append(store, name)
            await contents(store)
        loop = threading.current_thread().name
        assert [name == loop for name in threads] == [True, False, False, False, False]
        hangs = False
        while threads[-1] != loop:  # a disk may be slow once more on its own
            await append(store, "f")
        assert threads[5] != loop
        assert set(await contents(store)) == set("abcdef")


async def test_the_loop_continues_while_another_process_writes_and_writes_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        await append(store, "a")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            first = asyncio.create_task(append(store, "b"))
            await asyncio.sleep(0.05)
            second = asyncio.create_task(append(store, "c"))
            await asyncio.sleep(0.05)
            assert not first.done()
            other.execute("ROLLBACK")  # by this loop, which would not come to it if it waited
        await asyncio.gather(first, second)
        assert await contents(store) == ["a", "b", "c"]


async def test_a_store_is_used_from_the_loops_of_several_threads(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:

        async def write(name: str) -> None:
            for number in range(50):
                await append(store, f"{name}{number}")

        await append(store, "first")
        await asyncio.gather(write("a"), *(asyncio.to_thread(asyncio.run, write(name)) for name in "bc"))
        written = await contents(store)
        assert len(written) == 151
        for name in "abc":
            assert [text for text in written if text[0] == name] == [f"{name}{number}" for number in range(50)]


async def test_a_store_that_is_forgotten_closes_its_file_and_ends_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    store = sqlite_store(path)
    await append(store, "a")
    db = await connection_of_loop(store)
    (thread,) = [thread for thread in threading.enumerate() if str(path) in thread.name]
    del store
    await asyncio.to_thread(gc.collect)
    await asyncio.to_thread(thread.join, 10)
    assert (is_closed(db), thread.is_alive(), *sorted(os.listdir(tmp_path))) == (True, False, *FILES)


async def test_a_store_that_another_thread_closes_closes_its_file(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    db = await connection_of_loop(store)
    await asyncio.to_thread(asyncio.run, store.close())
    assert (is_closed(db), *sorted(os.listdir(tmp_path))) == (True, *FILES)


async def test_a_store_that_another_thread_closes_finishes_what_its_own_does(tmp_path: Path) -> None:
    store: Any = sqlite_store(tmp_path / "standfast.db")
    here, works, found = threading.get_ident(), threading.Event(), None

    def work(db: sqlite3.Connection) -> str | None:
        if threading.get_ident() != here:
            return None
        works.set()
        while not store._thread._lock.locked():  # until someone closes it
            time.sleep(0.001)
        return "closed" if is_closed(db) else "open"

    def close() -> None:
        works.wait()
        asyncio.run(store.close())

    closing = asyncio.create_task(asyncio.to_thread(close))
    while found is None:
        found = await store._do(work)
    await closing
    assert (found, *sorted(os.listdir(tmp_path))) == ("open", *FILES)


FORKED = """
import asyncio, gc, os, sys, threading
from standfast import sqlite_store

store = sqlite_store(sys.argv[1])
here = threading.get_ident()

async def connection_of_loop():
    db = None
    while db is None:
        db = await store._do(lambda db: db if threading.get_ident() == here else None)
    return db

db = asyncio.run(connection_of_loop())
lock = store._thread._here._lock
lock.acquire()  # as another thread's work may, when this one forks
child = os.fork()
if child == 0:
    asyncio.run(store.close())
    asyncio.run(connection_of_loop())
    store = None
    gc.collect()
    print("open" if db.execute("SELECT 1").fetchone() else "", flush=True)
    os._exit(0)
lock.release()
print(os.waitpid(child, 0)[1])
asyncio.run(store.close())
"""


async def test_a_forked_process_leaves_the_connection_to_its_parent(tmp_path: Path) -> None:
    # Not by `python`, since Python itself warns of a fork beside threads.
    command = [sys.executable, "-P", "-c", FORKED, str(tmp_path / "standfast.db")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, *sorted(os.listdir(tmp_path))) == ("open\n0\n", *FILES)


async def test_a_cancelled_write_is_whole_or_not_there(store: SQLiteStore) -> None:
    await append(store, "a")
    write = asyncio.create_task(append(store, "b"))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await append(store, "c")
    session, written = await store.load_session("s"), await contents(store)
    assert session is not None
    assert written in (["a", "c"], ["a", "b", "c"])
    assert session.last_seq == len(written)


NOT_CLOSED = """
import asyncio, sys
from standfast import Agent, run, sqlite_store
from standfast.testing import ScriptedModel

store = sqlite_store(sys.argv[1])
asyncio.run(run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"))
"""


async def test_a_process_that_exits_without_closing_its_store_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    done = await asyncio.to_thread(python, NOT_CLOSED, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with sqlite_store(path) as store:
        assert await contents(store) == ["hi", "yes"]


USED_AT_EXIT = """
import atexit
atexit.register(lambda: go("later"))  # the first that is registered runs last, after what ends with its object

import asyncio, sys
from standfast import Agent, run, sqlite_store
from standfast.testing import ScriptedModel

def go(message):
    asyncio.run(run(Agent("greeter"), message=message, llm=ScriptedModel(["yes"]), store=store, session_id="s"))

store = sqlite_store(sys.argv[1])
go("hi")
"""


async def test_a_store_can_be_used_by_what_runs_when_its_process_exits(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    done = await asyncio.to_thread(python, USED_AT_EXIT, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with sqlite_store(path) as store:
        assert await contents(store) == ["hi", "yes", "later", "yes"]


async def test_closed_stores_leave_no_file_descriptor_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(50):
        async with sqlite_store(tmp_path / f"{number % 5}.db") as store:
            await store.load_session("s")
    assert len(os.listdir("/dev/fd")) <= before
