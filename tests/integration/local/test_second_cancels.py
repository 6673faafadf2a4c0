"""A repeated cancel, or one in the middle of a write, neither hides an effect nor loses a result."""

import asyncio
import sqlite3
from typing import Any

import pytest
from support.cancellations import go_on, stored_results
from support.doubles import poster, reached
from support.stores import seed
from support.transcripts import DURABILITY, USER, asks, calls

from standfast import Agent, NotHappened, StoreError, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_calls_with_effects_that_outlive_two_cancels_are_not_reported_as_not_run(store: SQLiteStore) -> None:
    inside, leave, effects = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(parallel=True)
    async def post(text: str) -> None:
        """Post, and finish in spite of a cancel."""
        try:
            inside.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(leave.wait())
            effects.append(text)

    model = ScriptedModel([calls("c1", "c2")])
    running = asyncio.create_task(run(Agent("a", tools=[post]), message="go", session_id="s", store=store, llm=model))
    await reached(inside, running)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [DURABILITY in result.content for result in await stored_results(store)] == [True, True]


class Blocked(SQLiteStore):
    """A store whose n-th atomic write waits for another program's, until it may go on."""

    def __init__(self, path: Any, blocked: int) -> None:
        super().__init__(path)
        self.begun = asyncio.Event()
        self._left = blocked
        self._other: sqlite3.Connection | None = None

    async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
        self._left -= 1
        if self._left == 0:
            self._other = sqlite3.connect(self._path, isolation_level=None)
            self._other.execute("BEGIN IMMEDIATE")
            self.begun.set()
        return await super().append_messages_atomic(*args, **options)

    def go_on(self) -> None:
        assert self._other is not None
        self._other.execute("ROLLBACK")
        self._other.close()


@pytest.mark.parametrize(
    ("write", "content"),
    [(1, "cancelled before this call started"), (2, "posted c1")],
    ids=["of the calls", "of the results"],
)
@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancel_in_a_write_keeps_what_is_known(tmp_path: Any, write: int, content: str, cancels: int) -> None:
    effects: list[str] = []
    agent = Agent("a", tools=[poster(effects)])
    async with Blocked(tmp_path / "standfast.db", write) as store:
        running = asyncio.create_task(
            run(agent, message="go", session_id="s", store=store, llm=ScriptedModel([calls("c1")]))
        )
        await reached(store.begun, running)
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        assert not await store.hold("s")
        store.go_on()
        with pytest.raises(asyncio.CancelledError):
            await running
        (result,) = await stored_results(store)
        assert (content in result.content, effects) == (True, ["c1"] if write == 2 else [])
        await go_on(agent, store)


async def test_a_cancel_in_the_fence_of_a_repair_does_not_turn_into_a_conflict(tmp_path: Any) -> None:
    effects: list[str] = []

    async def never(text: str) -> NotHappened:
        return NotHappened()

    agent = Agent("a", tools=[poster(effects, verify=never)])
    async with Blocked(tmp_path / "standfast.db", 2) as store:
        await seed(store, [USER, asks("c1")], agent_name="a")
        running = asyncio.create_task(run(agent, session_id="s", store=store, llm=ScriptedModel([])))
        await reached(store.begun, running)
        running.cancel()
        store.go_on()
        with pytest.raises(asyncio.CancelledError):
            await running
        (result,) = await stored_results(store)
        assert (DURABILITY in result.content, effects) == (True, [])


async def test_a_cancel_in_a_write_that_then_fails_is_still_a_cancel(tmp_path: Any) -> None:
    class Failing(Blocked):
        async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
            if self.begun.is_set():
                raise StoreError("gone")
            return await super().append_messages_atomic(*args, **options)

    async with Failing(tmp_path / "standfast.db", 1) as store:
        running = asyncio.create_task(
            run(Agent("a"), message="go", session_id="s", store=store, llm=ScriptedModel([calls("c1")]))
        )
        await reached(store.begun, running)
        running.cancel()
        store.go_on()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await store.hold("s")
        await store.let_go("s")
