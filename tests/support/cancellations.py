"""A point at which a run can be held and cancelled, and the next run's view of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from standfast import Agent, Message, RunResult, Tool, assert_complete, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class Place:
    """A place in a tool or model that a run reaches, and stays at until it is released."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.visits = 0

    async def stay(self) -> str:
        self.visits += 1
        self.reached.set()
        await self.released.wait()
        return "done"


def staying(place: Place, **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def stay() -> str:
        return await place.stay()

    return stay


async def cancelled(work: Coroutine[Any, Any, Any], reached: asyncio.Event) -> None:
    """Start a run, cancel it when it has reached the event, and wait for its end."""
    task = asyncio.create_task(work)
    async with asyncio.timeout(30):
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def go_on(agent: Agent, store: SQLiteStore, script: Any = ("done",), **options: Any) -> RunResult:
    async with asyncio.timeout(30):
        return assert_complete(await run(agent, session_id="s", store=store, llm=ScriptedModel(script), **options))


async def stored_results(store: SQLiteStore) -> list[Message]:
    return [message for message in await store.load_messages("s") if message.role == "tool"]
