"""Every store passes the suite that holdfast exports; a SQLite store opens, closes and forgets without a loss."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import memory_store, sqlite_store
from holdfast.stores import SQLiteStore
from holdfast.testing import store_suite
from integration.stores import append, contents, python

# --- the suite ---


@pytest.mark.parametrize("check", store_suite(), ids=lambda check: check.__name__)
async def test_sqlite(check: Any, store: Any) -> None:
    await check(store)


@pytest.mark.parametrize("check", store_suite(durable=False), ids=lambda check: check.__name__)
async def test_memory(check: Any) -> None:
    await check(memory_store())


# --- opening, closing, forgetting ---


async def test_a_closed_store_opens_again_by_itself(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    await append(store, "a")
    await store.close()
    await store.close()
    assert (await append(store, "b"), await contents(store)) == (2, ["a", "b"])
    await store.close()


async def test_a_store_that_was_never_used_makes_no_file(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "holdfast.db"):
        pass
    assert os.listdir(tmp_path) == []


async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    writes = [asyncio.create_task(append(store, f"m{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    assert len(await contents(store)) == 20
    await store.close()


USED_WHILE_IT_CLOSES = """
import asyncio, os, sys, threading
from holdfast import Message
from holdfast.stores import Session, SQLiteStore

entered, leave = threading.Event(), threading.Event()

class SlowStore(SQLiteStore):
    async def wait(self):
        await self._do(lambda db: (entered.set(), leave.wait()))

def append(store, text):
    message = Message(role="user", content=text)
    return store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

async def main():
    store = SlowStore(sys.argv[1])
    await append(store, "a")
    busy = asyncio.create_task(store.wait())
    await asyncio.to_thread(entered.wait)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    used = asyncio.create_task(append(store, "b"))
    await asyncio.sleep(0)
    leave.set()
    tasks = {"busy": busy, "closing": closing, "used": used}
    await asyncio.wait(tasks.values(), timeout=5)
    print([name for name, task in tasks.items() if not task.done()], flush=True)
    if not closing.done():
        os._exit(1)
    await store.close()

asyncio.run(main())
"""


async def test_a_store_that_is_used_while_it_closes_neither_hangs_nor_loses_anything(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    done = await asyncio.to_thread(python, USED_WHILE_IT_CLOSES, path)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]


async def test_a_store_that_is_forgotten_closes_its_file_and_ends_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    store = sqlite_store(path)
    await append(store, "a")
    (thread,) = [thread for thread in threading.enumerate() if str(path) in thread.name]
    del store
    gc.collect()
    await asyncio.to_thread(thread.join, 10)
    assert (thread.is_alive(), os.listdir(tmp_path)) == (False, ["holdfast.db"])


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
from holdfast import Agent, run, sqlite_store
from holdfast.testing import ScriptedModel

store = sqlite_store(sys.argv[1])
asyncio.run(run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"))
"""


async def test_a_process_that_exits_without_closing_its_store_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    done = await asyncio.to_thread(python, NOT_CLOSED, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with sqlite_store(path) as store:
        assert await contents(store) == ["hi", "yes"]


async def test_closed_stores_leave_no_file_descriptor_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(50):
        async with sqlite_store(tmp_path / f"{number % 5}.db") as store:
            await store.load_session("s")
    assert len(os.listdir("/dev/fd")) <= before
