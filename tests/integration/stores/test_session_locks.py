"""Holds of a session: over threads, forks, errors and what the file system allows."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.drivers import Driver
from support.stores import append, python

from standfast import Agent, InputError, StoreError, run, sqlite_store
from standfast.stores import SQLiteStore
from standfast.stores.file_holds import SessionLocks
from standfast.testing import ScriptedModel


def test_threads_that_take_and_give_back_never_hold_together_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    locks, holders, most = SessionLocks(str(tmp_path / "a.db")), list[int](), list[int]()
    open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def work() -> None:
        for _ in range(300):
            if locks.take("s"):
                holders.append(1)
                most.append(len(holders))
                holders.pop()
                locks.release("s")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert SessionLocks(str(tmp_path / "a.db")).take("s")
    if open_files:
        assert len(os.listdir("/proc/self/fd")) <= open_files + 1


def test_a_forked_child_does_not_share_the_holds_of_its_parent(tmp_path: Path) -> None:
    seen = python(
        """
        import asyncio, os, sys
        from standfast import sqlite_store
        store = sqlite_store(sys.argv[1])
        asyncio.run(store.hold("s"))
        child = os.fork()
        if child == 0:
            print("child", asyncio.run(store.hold("s")), asyncio.run(store.hold("t")), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print("parent", asyncio.run(sqlite_store(sys.argv[1]).hold("s")), flush=True)
        """,
        tmp_path / "a.db",
    )
    assert seen.stdout == "child False True\nparent False\n"


async def test_a_lock_file_that_cannot_be_opened_is_an_error_and_no_permission(tmp_path: Path) -> None:
    (tmp_path / "a.db-lock").mkdir()
    async with sqlite_store(tmp_path / "a.db") as store:
        with pytest.raises(StoreError, match=r"The lock file .*a\.db-lock cannot be used"):
            await store.hold("s")


async def test_a_person_who_may_write_to_the_database_may_lock_its_sessions(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "a.db") as store:
        await append(store, "a")
        os.chmod(tmp_path / "a.db", 0o666)
        await store.hold("s")
        assert os.stat(tmp_path / "a.db-lock").st_mode & 0o777 == 0o666
        await store.let_go("s")


async def test_a_run_that_is_cancelled_or_refused_holds_nothing(store: SQLiteStore) -> None:
    begun = asyncio.Event()

    async def wait(messages: Any, tools: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(Agent("a"), message="go", session_id="s", store=store, llm=ScriptedModel(wait)))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(InputError, match="nothing to run"):
        await run(Agent("a"), session_id="s", store=store, llm=ScriptedModel([]))
    assert await store.hold("s")
    await store.let_go("s")


async def test_a_store_without_locks_is_named_with_what_it_lacks() -> None:
    class Bare:
        durable = True

    with pytest.raises(InputError, match="has no 'hold'"):
        await run(Agent("a"), message="go", store=Bare(), llm=ScriptedModel([]))  # type: ignore[arg-type]


async def test_a_session_at_which_another_process_only_looks_is_not_in_flight(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, session, tries = driver.temporal.store, driver.temporal.session("s"), 0
    async with sqlite_store(store._path) as other:
        assert await other.hold(session)
        hold = store.hold

        async def try_again(name: str) -> bool:
            nonlocal tries
            tries += name == session
            if name == session and tries == 2:  # the look is over
                await other.let_go(session)
            return await hold(name)

        monkeypatch.setattr(store, "hold", try_again)
        ended = await driver.run(Agent("a"), ScriptedModel(["done"]))
    assert (ended.status, tries) == ("complete", 2)
