"""One file used by several processes, threads and event loops, some of which lock it."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from support.stores import SESSION, append, contents

from standfast import Agent, Message, RunResult, StoreError, run, sqlite_store, tool
from standfast.stores import SQLiteStore
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.thread import SQLiteThread
from standfast.testing import ScriptedModel

# --- a file that is locked ---


class ImpatientStore(SQLiteStore):
    """A store that waits for a lock only briefly."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._thread = SQLiteThread(str(path), MIGRATIONS, busy_timeout=0.02)
        self._do = self._thread.do


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Another process that holds the write lock."""
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        script,
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"locked\n"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()
        await process.stdout.read()


async def test_a_locked_file_is_an_error_after_a_while_and_works_once_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with ImpatientStore(path) as store:
        await append(store, "a")
        async with locked(path):
            with pytest.raises(StoreError, match="is locked by another process; end that one or wait") as caught:
                await append(store, "b")
            assert await contents(store) == ["a"]
        assert str(path) in str(caught.value)
        assert (await append(store, "c"), await contents(store)) == (2, ["a", "c"])


async def test_writes_that_meet_one_lock_wait_for_it_together_and_not_one_after_the_other(tmp_path: Path) -> None:
    path, statements = tmp_path / "standfast.db", list[str]()
    async with ImpatientStore(path) as store:
        await store._do(lambda db: db.set_trace_callback(statements.append), writes=False)
        async with locked(path):
            ended = await asyncio.gather(*(append(store, "x") for _ in range(30)), return_exceptions=True)
    assert [type(end) for end in ended] == [StoreError] * 30
    assert statements.count("BEGIN IMMEDIATE") < 10


async def test_a_run_whose_store_is_locked_runs_no_tool_and_continues_later(tmp_path: Path) -> None:
    effects: list[str] = []

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    path, agent = tmp_path / "standfast.db", Agent("greeter", tools=[post])
    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "post"}]}, "done"]
    async with ImpatientStore(path) as store:
        await append(store, "a", "other")
        async with locked(path):
            with pytest.raises(StoreError, match="is locked"):
                await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
        assert effects == []
        result = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    assert (isinstance(result, RunResult), effects) == (True, ["post"])


async def test_a_new_file_that_another_process_locks_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with sqlite_store(path) as store:
        async with locked(path):
            write = asyncio.create_task(append(store, "a"))
            await asyncio.wait([write], timeout=0.3)
            assert not write.done(), write.exception()
        assert await write == 1


async def test_a_new_file_that_another_process_locks_is_an_error_and_becomes_a_store_later(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    async with ImpatientStore(path) as store:
        async with locked(path):
            with pytest.raises(StoreError, match="is locked"):
                await append(store, "a")
        assert await append(store, "b") == 1


# --- several processes, threads and event loops ---


APPENDS = """
import asyncio, sys
from standfast import Message, sqlite_store
from standfast.stores import Session

async def main(path, name, count):
    print("ready", flush=True)
    sys.stdin.readline()
    async with sqlite_store(path) as store:
        for number in range(count):
            message = Message(role="user", content=f"{name}{number}")
            await store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_processes_that_append_to_one_new_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "standfast.db", 40
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", APPENDS, str(path), name, str(count),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for name in "abc"
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [error.decode() for _, error in ended] == [""] * 3
    async with sqlite_store(path) as store:
        written, session = await contents(store), await store.load_session("s")
    assert session is not None
    assert session.last_seq == 3 * count
    assert [[text for text in written if text[0] == name] for name in "abc"] == [
        [f"{name}{number}" for number in range(count)] for name in "abc"
    ]


async def test_stores_that_open_one_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    for attempt in range(10):
        stores = [sqlite_store(tmp_path / f"{attempt}.db") for _ in range(8)]
        ended = await asyncio.gather(*(append(store, "x") for store in stores), return_exceptions=True)
        await asyncio.gather(*(store.close() for store in stores))
        assert sorted(ended, key=str) == list(range(1, 9))


async def test_many_appends_at_once_all_land_though_one_of_them_fails(store: SQLiteStore) -> None:
    broken = Message.model_construct(role="user", content=object())
    writes: list[Awaitable[Any]] = [append(store, f"m{number}", f"s{number % 7}") for number in range(100)]
    writes.insert(50, store.append_messages_atomic("s3", [broken], SESSION))
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert [index for index, end in enumerate(ended) if isinstance(end, BaseException)] == [50]
    written = [text for number in range(7) for text in await contents(store, f"s{number}")]
    assert sorted(written) == sorted(f"m{number}" for number in range(100))
    for number in range(7):
        session = await store.load_session(f"s{number}")
        assert session is not None
        assert session.last_seq == len(await contents(store, f"s{number}"))


async def test_a_value_that_cannot_be_stored_is_an_error_of_standfast(store: SQLiteStore) -> None:
    broken = Message.model_construct(role="user", content=object())
    with pytest.raises(StoreError, match="refused"):
        await store.append_messages_atomic("s", [broken], SESSION)


def test_a_store_serves_two_event_loops_one_after_the_other(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    assert asyncio.run(append(store, "a")) == 1
    assert asyncio.run(append(store, "b")) == 2
    assert asyncio.run(contents(store)) == ["a", "b"]
    asyncio.run(store.close())


def test_a_store_serves_two_event_loops_at_once(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")
    start = threading.Barrier(2)

    async def many(name: str) -> None:
        start.wait()
        await asyncio.gather(*(append(store, f"{name}{number}") for number in range(50)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(many(name))) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = asyncio.run(contents(store))
    asyncio.run(store.close())
    assert sorted(written) == sorted(f"{name}{number}" for name in "ab" for number in range(50))


def test_an_event_loop_that_is_closed_in_the_middle_of_a_write_does_not_stop_the_store(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "standfast.db")

    async def leave() -> None:
        asyncio.get_running_loop().create_task(append(store, "left"))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert asyncio.run(append(store, "next")) == 2
    asyncio.run(store.close())
