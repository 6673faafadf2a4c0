"""A refusal stays a refusal after a reset, which sends everything to the new run again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from support.questions import ask
from support.resets import reset, tasks
from support.temporal_runs import (
    People,
    Run,
    Temporal,
    ask_models_once,
    check_healthy,
    events,
    pending,
    result,
    until,
    waiting,
)
from support.transcripts import asks_for, call, tool_contents
from temporalio.api.enums.v1 import EventType

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError, Loop, Message, ModelError, ToolDurabilityError, tool
from standfast.temporal.workflows.calls import model_calls
from standfast.testing import ScriptedModel


def asks_once(messages: Any, tools: Any) -> Any:
    return "done" if any(one.role == "tool" for one in messages) else asks_for(call("ask", "c1", question="Who?"))


async def is_refused(run: Run, sent: str) -> bool:
    return "refused" in (await run.query("standfast.outcome", sent) or {})


async def not_taken(temporal: Temporal, run: Run, *sending: Any) -> None:
    """Terminate a run that has not taken what it is sent; its senders are told that this does not count."""
    before = len(await events(run))
    acts = [asyncio.create_task(one) for one in sending]

    async def have_arrived() -> bool:
        kinds = [event.event_type for event in (await events(run))[before - 1 :]]
        return kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) == len(acts)

    await until(have_arrived)
    await run.terminate()
    for act in acts:
        with pytest.raises(InputError, match="it does not count"):
            await act


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("to", ["its start", "where it waits"])
async def test_messages_that_a_terminated_run_has_not_taken(temporal: Temporal, to: str) -> None:
    agent, people = Agent("clerk", tools=[ask]), temporal.people
    async with temporal.worker(agent, llm=ScriptedModel(asks_once)):
        run = await temporal.start(agent)
        await pending(run)
    await not_taken(temporal, run, people.message(run.id, "hurry", id="m1"))
    task = 0 if to == "its start" else len(await tasks(run)) - 1
    new = await reset(temporal, run, task, with_messages=True)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(asks_once)):
        await until(lambda: is_refused(new, "m1"))
        await pending(new)
        await people.message(run.id, "slowly")
        await people.answer(run.id, "Ada")
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    messages = await temporal.messages()
    assert tool_contents(messages) == [("c1", "Ada")]
    assert [one.content for one in messages if one.role == "user"] == ["go", "slowly"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("how", ["not taken", "refused"])
async def test_decisions(temporal: Temporal, how: str) -> None:
    """One that a terminated run has not taken, and one that it has refused."""
    posted, post = world(Approval(approvers=["ada", "bob"]))
    agent, people = Agent("poster", tools=[post]), temporal.people
    async with temporal.worker(agent, llm=posts("hi")):
        run = await temporal.start(agent)
        (item,) = await pending(run)
        await people.message(run.id, "hurry")  # so that there is a task in which the gate is open
        at = len(await tasks(run)) - 1
        given: Any = {"digest": item["digest"], "id": "d1"}
        if how == "refused":
            with pytest.raises(InputError, match="may not"):
                await people.decide(run.id, "c1", "approve", by="eve", **given)
            await run.terminate()
    if how == "not taken":
        await not_taken(temporal, run, people.decide(run.id, "c1", "approve", by="ada", **given))
    new = await reset(temporal, run, at, with_messages=True)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        await until(lambda: is_refused(new, "d1"))
        (item,) = await pending(new)
        assert (item["name"], posted) == ("c1", [])
        await people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    assert posted == ["hi"]


Act = Callable[[People, str, str], Awaitable[None]]  # what a person does to a run, with an id


class Waits:
    """An agent that waits for a person in one way, and the act that ends the wait."""

    def __init__(self, kind: str) -> None:
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            raise ToolDurabilityError("pay", "p1")

        self.kind, self.is_up = kind, False
        self.agent = Agent("waits", tools=[ask, pay], loop=Loop(on_unknown="ask"))
        self.llm = ScriptedModel(self._answer)
        self.act: Act = {
            "question": lambda people, run, sent: people.answer(run, "Ada", tool_call_id="c1", id=sent),
            "unknown": lambda people, run, sent: people.resolve(run, "p1", "happened", result="receipt", id=sent),
            "pause": lambda people, run, sent: people.resume(run, "abort", id=sent),
        }[kind]

    def _answer(self, messages: list[Message], tools: Any) -> Any:
        if any(one.role == "tool" for one in messages):
            return "done"
        if self.kind == "pause" and not self.is_up:
            return ModelError("overloaded", transient=True)
        return asks_for(call("pay", "p1", amount=1) if self.kind == "unknown" else call("ask", "c1", question="Who?"))


KINDS = pytest.mark.parametrize("kind", ["question", "unknown", "pause"])


@pytest.mark.slow(but=1)
@KINDS
@pytest.mark.parametrize("to", ["its start", "where it waits"])
async def test_what_a_terminated_run_has_not_taken_ends_no_wait_of_the_next(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, kind: str, to: str
) -> None:
    """Nor does it when it is sent again with its id."""
    ask_models_once(monkeypatch)
    waits = Waits(kind)
    async with temporal.worker(waits.agent, llm=waits.llm):
        run = await temporal.start(waits.agent)
        await pending(run)
        await temporal.people.message(run.id, "hurry")  # so that there is a task in which it waits
    await not_taken(temporal, run, waits.act(temporal.people, run.id, "a1"))
    task = 0 if to == "its start" else len(await tasks(run)) - 1
    new = await reset(temporal, run, task, with_messages=True)
    async with (await temporal.elsewhere()).worker(waits.agent, llm=waits.llm):
        await until(lambda: is_refused(new, "a1"))
        await pending(new)
        with pytest.raises(InputError, match="does not count"):
            await waits.act(temporal.people, run.id, "a1")
        assert [item["kind"] for item in await waiting(new)] == [kind]
        await waits.act(temporal.people, run.id, "a2")
        assert (await result(new))["status"] == ("error" if kind == "pause" else "complete")
        await check_healthy(new)


async def test_what_came_when_nothing_waited_for_it_ends_no_wait_after_a_reset(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause that ended automatically is open again after the reset."""
    ask_models_once(monkeypatch)
    monkeypatch.setattr(model_calls, "OUTAGE_WAITS", (timedelta(seconds=0.2), timedelta(seconds=0.2)))
    waits, people = Waits("pause"), temporal.people
    async with temporal.worker(waits.agent, llm=waits.llm):
        run = await temporal.start(waits.agent)
        await pending(run)
        await people.message(run.id, "hurry")
        at = len(await tasks(run)) - 1
        waits.is_up = True

        async def asks() -> bool:
            return [item["kind"] for item in await waiting(run)] == ["question"]

        await until(asks)
        with pytest.raises(InputError, match="not paused"):
            await people.resume(run.id, "abort", id="r1")
        waits.is_up = False
        new = await reset(temporal, run, at, with_messages=True)
        await until(lambda: is_refused(new, "r1"))
        waits.is_up = True
        run = new
        await until(asks)
        await people.answer(run.id, "Ada")
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
