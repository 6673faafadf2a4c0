"""Leaving, interrupting or cancelling a stream cancels its run."""

import asyncio

from support.cancellations import Place, cancelled, go_on, staying, stored_results
from support.transcripts import asks_for, call

from standfast import Agent, run_streaming, tool
from standfast.events import ToolStarted
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_leaving_a_stream_early_cancels_the_run(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place, safe_to_retry=True)])
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    events = run_streaming(agent, message="go", session_id="s", store=store, llm=model)
    async with asyncio.timeout(30):
        async for event in events:
            if isinstance(event, ToolStarted):
                break
        await events.aclose()
    assert [message.status for message in await stored_results(store)] == ["cancelled"]
    assert await store.hold("s")
    await store.let_go("s")
    assert (await go_on(agent, store)).status == "complete"


async def test_breaking_out_of_a_stream_cancels_the_run(store: SQLiteStore) -> None:
    place, stopped = Place(), asyncio.Event()

    @tool
    async def stay() -> None:
        try:
            await place.stay()
        finally:
            stopped.set()

    agent = Agent("a", tools=[stay])
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    before = asyncio.all_tasks()
    async with asyncio.timeout(30):
        async for event in run_streaming(agent, message="go", session_id="s", store=store, llm=model):
            if isinstance(event, ToolStarted):
                await place.reached.wait()
                break
        await stopped.wait()
        await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
    assert [message.tool_call_id for message in await stored_results(store)] == ["c1"]


async def test_cancelling_the_reader_of_a_stream_cancels_the_run(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place)])
    model = ScriptedModel([asks_for(call("stay", "c1"))])

    async def read() -> None:
        async for _ in run_streaming(agent, message="go", session_id="s", store=store, llm=model):
            pass

    await cancelled(read(), place.reached)
    assert [message.tool_call_id for message in await stored_results(store)] == ["c1"]
    await go_on(agent, store)
    assert place.visits == 1


async def test_leaving_a_stream_that_has_ended_changes_nothing(store: SQLiteStore) -> None:
    events = run_streaming(Agent("a"), message="go", session_id="s", store=store, llm=ScriptedModel(["done"]))
    seen = [event async for event in events]
    await events.aclose()
    assert seen
    assert [message.content for message in await store.load_messages("s")] == ["go", "done"]


async def test_a_stream_that_nobody_reads_starts_nothing(store: SQLiteStore) -> None:
    model = ScriptedModel(["done"])
    events = run_streaming(Agent("a"), message="go", session_id="s", store=store, llm=model)
    await events.aclose()
    assert model.calls == []
    assert await store.load_session("s") is None
