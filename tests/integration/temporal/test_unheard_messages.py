"""An acknowledged message is not lost with its run: the session's next run reads it, once."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.questions import ask
from support.resets import reset, tasks
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    events,
    pending,
    result,
    scheduled,
    status,
    until,
)
from support.transcripts import shape
from temporalio.client import WorkflowFailureError

from standfast import Agent, InputError, Message, run
from standfast.runtime.message_ids import Unheard
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def end(handle: Run, how: str) -> None:
    await (handle.terminate() if how == "terminate" else handle.cancel())
    with pytest.raises(WorkflowFailureError):
        await result(handle)


class Slow:
    """A model whose first answer does not come; `asked` when it is asked for it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.calls: list[list[Message]] = []

    async def chat(self, messages: Sequence[Message], tools: Any, **_: Any) -> Any:
        self.calls.append(list(messages))
        if len(self.calls) == 1:
            self.asked.set()
            await asyncio.Event().wait()
        return {"text": "done"}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("by_signal", [False, True])
@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_the_next_run_hears_what_was_said_to_one_that_waited(
    temporal: Temporal, how: str, by_signal: bool
) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        if by_signal:
            await handle.signal("message", {"text": "one more thing"})
            await until(lambda: _has_kept(temporal))
        else:
            await temporal.people.message(handle.id, "one more thing")
        assert (await status(handle))["unheard"] == ["one more thing"]
        await end(handle, how)
        again = await temporal.start("a", "again")
        await pending(again)  # it still waits for the answer
        await temporal.people.answer(again.id, "Ada")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
        assert (await temporal.run(Agent("a", tools=[ask]), "third"))["status"] == "complete"
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "one more thing", "again", "third"]


async def _has_kept(temporal: Temporal) -> bool:
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    return bool(await Unheard(session, temporal.store).load(await temporal.messages()))


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_what_was_said_before_the_first_answer_is_heard_by_the_next_run(temporal: Temporal, how: str) -> None:
    model = Slow()
    async with temporal.worker(Agent("a"), llm=model):
        handle = await temporal.start("a")
        await model.asked.wait()
        await temporal.people.message(handle.id, "and this")
        await end(handle, how)
        again = await temporal.start("a", "again")
        assert (await result(again))["status"] == "complete"
    assert shape(await temporal.messages()) == ["user and this", "user again", "assistant done"]


async def test_a_run_in_process_hears_it_as_well(temporal: Temporal) -> None:
    model = Slow()
    async with temporal.worker(Agent("a"), llm=model):
        handle = await temporal.start("a")
        await model.asked.wait()
        await temporal.people.message(handle.id, "and this")
        await end(handle, "terminate")
    for message in ("again", "third"):
        await run(
            Agent("a"),
            message=message,
            session_id=temporal.session(),
            store=temporal.store,
            llm=lambda _: ScriptedModel(["done"]),
        )
    assert shape(await temporal.messages()) == [
        "user and this", "user again", "assistant done", "user third", "assistant done",
    ]  # fmt: skip


async def test_what_was_heard_stays_heard_after_a_reset(temporal: Temporal) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.message(handle.id, "one more thing")
        await temporal.people.answer(handle.id, "Ada")
        assert (await result(handle))["status"] == "complete"
        before = await temporal.messages()
        for with_messages in (False, True):
            for task in range(0, len(await tasks(handle)), 2):
                handle = await reset(temporal, handle, task, with_messages=with_messages)
                assert (await result(handle))["status"] == "complete"
                await check_healthy(handle)
                assert await temporal.messages() == before


async def test_what_was_said_behind_the_point_of_a_reset_is_heard(temporal: Temporal) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.message(handle.id, "one more thing")
        handle = await reset(temporal, handle, 1)
        await pending(handle)
        await until(lambda: _takes_answers(temporal, handle))
        assert (await result(handle))["status"] == "complete"
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "one more thing"]


async def _takes_answers(temporal: Temporal, handle: Run) -> bool:
    with contextlib.suppress(InputError):  # as long as it looks up what was answered before
        await temporal.people.answer(handle.id, "Ada")
        return True
    return False


class DiesHearing(SQLiteStore):
    """A store whose process dies before it notes the messages that were read."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.dies, self.may_die = asyncio.Event(), True

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        if self.may_die and journal_key.endswith("/heard"):
            self.dies.set()
            await asyncio.Event().wait()
        return await super().save_reply(journal_key, turn, reply)


async def in_process(temporal: Temporal, message: str) -> None:
    llm = ScriptedModel(["done"])
    await run(Agent("a"), message=message, session_id=temporal.session(), store=temporal.store, llm=lambda _: llm)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("then", ["temporal", "process"])
@pytest.mark.parametrize("dies", ["temporal", "process"])
async def test_what_was_heard_by_who_died_before_noting_it_is_not_heard_again(
    temporal: Temporal, tmp_path: Any, dies: str, then: str
) -> None:
    async with DiesHearing(tmp_path / "dies.db") as store:
        temporal, model = replace(temporal, store=store), Slow()
        async with temporal.worker(Agent("a"), llm=model):
            handle = await temporal.start("a")
            await model.asked.wait()
            await temporal.people.message(handle.id, "and this")
            await end(handle, "terminate")
        if dies == "temporal":
            async with (await temporal.elsewhere()).worker(Agent("a"), llm=ScriptedModel(["done"])):
                handle = await temporal.start("a", "again")
                await store.dies.wait()
                await end(handle, "terminate")
        else:
            dying = asyncio.ensure_future(in_process(temporal, "again"))
            await store.dies.wait()
            dying.cancel()
            await asyncio.wait([dying])
        store.may_die = False
        if then == "temporal":
            async with (await temporal.elsewhere()).worker(Agent("a"), llm=ScriptedModel(["done"])):
                assert (await result(await temporal.start("a", "third")))["status"] == "complete"
        else:
            await in_process(temporal, "third")
        said = [message.content for message in await temporal.messages() if message.role == "user"]
        assert said.count("and this") == 1, said
        assert said[-1] == "third"
        assert await unnoted(temporal) == []  # even when it is pruned


async def unnoted(temporal: Temporal) -> list[str]:
    """Return the messages that are not noted as heard."""
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    return [one.id for one in await Unheard(session, temporal.store).load([])]


async def test_a_message_costs_one_activity(temporal: Temporal) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.message(handle.id, "one more thing")
        await temporal.people.answer(handle.id, "Ada")
        await result(handle)
        assert scheduled(await events(handle)) == [
            "call_model",
            "ask",
            "standfast.commit",
            "standfast.keep",
            "standfast.commit",  # the answer, before its sender is told
            "call_model",
        ]
