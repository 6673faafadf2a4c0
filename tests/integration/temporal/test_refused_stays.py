"""What was refused stays refused after a reset, which sends everything to the new run again."""

import asyncio
from typing import Any

import pytest
from support.questions import ask
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, check_healthy, events, pending, result, until
from support.transcripts import asks_for, call, tool_contents
from temporalio.api.enums.v1 import EventType

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError
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
