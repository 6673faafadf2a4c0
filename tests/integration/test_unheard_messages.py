"""What was said to a run, and acknowledged, is not lost with the run: the next one of the session hears it, once."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from holdfast import Agent, InputError, Message, run
from holdfast.local.unheard import Unheard
from holdfast.testing import ScriptedModel
from integration.questions import ask
from integration.resets import reset, tasks
from integration.temporal_runs import (
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
from integration.transcripts import shape


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
    return bool(await Unheard(session, temporal.store).load())


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
            "holdfast.commit",
            "holdfast.keep",
            "call_model",
        ]
