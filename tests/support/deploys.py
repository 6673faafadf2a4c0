"""Runs that are parked under one version of an application and continue under another."""

from collections.abc import Callable, Sequence
from typing import Any

from standfast import Agent, Message
from standfast.errors import StoreError
from standfast.stores import LedgerEntry
from standfast.testing import ScriptedModel
from support.questions import ask
from support.temporal_runs import Run, Temporal, pending, result, waiting
from support.transcripts import asks_for, call

QUESTION = asks_for(call("ask", "q1", question="Go on?"))


def by_turn(*turns: Any) -> Callable[..., Any]:
    """Return a model whose answer is that of its turn, whichever worker asks it."""
    return lambda messages, tools: turns[sum(message.role == "assistant" for message in messages)]


async def parked(temporal: Temporal, before: Agent, script: Callable[..., Any], **options: Any) -> Run:
    """Return a run of an agent that waits for the answer to a question, with no worker."""
    async with temporal.worker(before, llm=ScriptedModel(script), **options):
        run = await temporal.start(before)
        assert [item["name"] for item in await pending(run)] == ["q1"]
    return run


async def deployed(temporal: Temporal, before: Agent, after: Agent, *turns: Any, **options: Any) -> dict[str, str]:
    """Park a run of one version at a question, answer it under another, and return what the model reads, by call."""
    script = by_turn(QUESTION, *turns, "done")
    run = await parked(temporal, before, script, **options)
    async with temporal.worker(after, llm=ScriptedModel(script), **options):
        await run.execute_update("answer", {"text": "yes"})
        assert (await result(run))["status"] == "complete"
    return read(await temporal.messages())


def read(messages: Sequence[Message]) -> dict[str, str]:
    """Return what the model reads of calls, by id, questions left out."""
    results = [message for message in messages if message.role == "tool"]
    return {str(message.tool_call_id): message.content for message in results if message.tool_call_id != "q1"}


async def waits_for(run: Run, kind: str) -> bool:
    """Whether all that a run waits for is of a kind."""
    found = await waiting(run)
    return bool(found) and all(item["kind"] == kind for item in found)


def clerk(*tools: Any, **options: Any) -> Agent:
    return Agent("clerk", tools=[ask, *tools], **options)


class LosesCalls:
    """A store whose worker is lost when it has claimed a call, and cannot look up its outcome."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *place: str, **options: Any) -> LedgerEntry:
        await self._store.claim(*place, **options)
        raise RuntimeError("the worker is lost")

    async def settle(self, *place: str) -> LedgerEntry:
        raise StoreError("away")


async def is_being_settled(run: Run) -> bool:
    """Whether the outcome of a call is being looked up in vain."""
    found = (await run.describe()).raw_description.pending_activities
    return any(item.activity_type.name == "standfast.settle" and item.attempt > 1 for item in found)
