"""A cancelled run waits for the plain functions that it started."""

import asyncio
import threading

import pytest
from support.cancellations import stored_results
from support.transcripts import asks_for, call

from standfast import Agent, RetryPolicy, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class Thread:
    """A plain function that runs in a thread until it is released."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.released = threading.Event()
        self.visits = 0

    def stay(self) -> str:
        self.visits += 1
        self.loop.call_soon_threadsafe(self.reached.set)
        self.released.wait(30)
        return "done"


async def test_a_cancel_waits_for_a_plain_function_and_keeps_its_result(store: SQLiteStore) -> None:
    thread = Thread()

    @tool
    def work() -> str:
        return thread.stay()

    agent = Agent("a", tools=[work])
    model = ScriptedModel([asks_for(call("work", "c1"), call("work", "c2"))])
    task = asyncio.create_task(run(agent, message="go", session_id="s", store=store, llm=model))
    async with asyncio.timeout(30):
        await thread.reached.wait()
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        thread.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    results = await stored_results(store)
    assert [message.status for message in results] == ["completed", "cancelled"]
    assert (results[0].content, thread.visits) == ("done", 1)


async def test_a_plain_function_that_fails_after_the_cancel_is_not_tried_again(store: SQLiteStore) -> None:
    thread = Thread()

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001))
    def work() -> None:
        thread.stay()
        raise ValueError("broken")

    agent = Agent("a", tools=[work])
    model = ScriptedModel([asks_for(call("work", "c1"))])
    task = asyncio.create_task(run(agent, message="go", session_id="s", store=store, llm=model))
    async with asyncio.timeout(30):
        await thread.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        thread.released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert thread.visits == 1
    assert [message.tool_call_id for message in await stored_results(store)] == ["c1"]


async def test_a_cancelled_batch_waits_for_the_plain_function_in_it(store: SQLiteStore) -> None:
    inside, release = threading.Event(), threading.Event()

    @tool(parallel=True)
    async def post() -> str:
        """Post."""
        await asyncio.Event().wait()
        return "never"

    @tool(parallel=True)
    def pay() -> str:
        """Pay."""
        inside.set()
        release.wait(30)
        return "paid"

    agent = Agent("a", tools=[post, pay])
    model = ScriptedModel([{"tool_calls": [{"id": "c1", "name": "post"}, {"id": "c2", "name": "pay"}]}])
    running = asyncio.create_task(run(agent, message="go", session_id="s", store=store, llm=model))
    await asyncio.to_thread(inside.wait, 30)
    running.cancel()
    asyncio.get_running_loop().call_later(0.05, release.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    results = {message.tool_call_id: message.content for message in await stored_results(store)}
    assert "tool-durability-error" in results["c1"]
    assert results["c2"] == "paid"
