"""Repeats with the same id count once, even if their run is over and the session's next one has begun."""

import asyncio
from typing import Any

import pytest
from support.questions import ask_user
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    pending,
    refusals,
    result,
    until,
    until_over,
    waiting,
)
from support.transcripts import asks_for, call

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError, StandfastError
from standfast.temporal.wire import inbox
from standfast.testing import ScriptedModel

clerk = Agent("clerk", tools=[ask_user])


def asks(question: str) -> Any:
    return asks_for(call("ask_user", "c1", question=question))


async def asked(temporal: Temporal) -> Run:
    """Return a run that asks."""
    handle = await temporal.start(clerk)
    await pending(handle)
    return handle


async def test_an_answer_that_is_sent_again_does_not_answer_what_the_next_run_asks(temporal: Temporal) -> None:
    model = ScriptedModel([asks("Delete the draft?"), "done", asks("Delete the customer?"), "done"])
    async with temporal.worker(clerk, llm=model):
        first = await asked(temporal)
        await temporal.people.answer(first.id, "yes", id="a1")
        await result(first)
        second = await asked(temporal)
        await temporal.people.answer(second.id, "yes", id="a1")  # its acknowledgement was lost
        assert [item["message"] for item in await pending(second)] == ["Delete the customer?"]


async def test_a_message_that_is_sent_again_is_not_heard_by_the_next_run(temporal: Temporal) -> None:
    model = ScriptedModel([asks("Which?"), "done", asks("Which?"), "done"])
    async with temporal.worker(clerk, llm=model):
        first = await asked(temporal)
        await temporal.people.message(first.id, "buy ten", id="m1")
        await temporal.people.answer(first.id, "red")
        await result(first)
        second = await asked(temporal)
        await temporal.people.message(second.id, "buy ten", id="m1")
        await temporal.people.answer(second.id, "red")
        await result(second)
        said = [message.content for message in await temporal.messages() if message.role == "user"]
        assert said.count("buy ten") == 1


async def test_what_was_refused_for_now_is_taken_when_it_is_sent_again(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PARKED_MESSAGES", 2)
    agent = Agent("clerk", tools=[ask_user])
    model = ScriptedModel([asks("Which?"), asks("How many?"), "done"])
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await pending(run)
        for number in (1, 2):
            await temporal.people.message(run.id, f"message {number}", id=f"m{number}")
        for _ in range(2):
            with pytest.raises(InputError, match="try again later"):
                await temporal.people.message(run.id, "message 3", id="m3")
        await temporal.people.answer(run.id, "red")
        await until(lambda: _asks(run, "How many?"))
        for _ in range(2):
            await temporal.people.message(run.id, "message 3", id="m3")
        await temporal.people.answer(run.id, "ten")
        await result(run)
        await check_healthy(run)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "message 1", "message 2", "message 3"]


async def _asks(run: Run, question: str) -> bool:
    return [item["message"] for item in await waiting(run)] == [question]


@pytest.mark.slow
async def test_where_nobody_can_tell_it_is_not_sent_to_the_next_run(temporal: Temporal) -> None:
    model = ScriptedModel([asks("Delete the draft?"), "done", asks("Delete the customer?")])
    async with temporal.worker(clerk, llm=model):
        first = await asked(temporal)
        await temporal.people.answer(first.id, "yes", id="a1")
        await result(first)
        second = await asked(temporal)
    with pytest.raises(StandfastError, match="so it was not sent now"):
        await temporal.people.answer(second.id, "yes", id="a1")
    async with (await temporal.elsewhere()).worker(clerk, llm=model):
        assert [item["message"] for item in await pending(second)] == ["Delete the customer?"]


@pytest.mark.slow
async def test_what_was_sent_without_a_worker_is_told_the_truth_when_it_is_sent_again(temporal: Temporal) -> None:
    posted, post = world(Approval(timeout=1, approvers=["ada"]))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    await until_over(item)
    told = asyncio.ensure_future(
        temporal.people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"], id="d1")
    )
    await asyncio.sleep(0.3)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        with pytest.raises(InputError, match="timed out already"):
            await told
        await result(handle)
        with pytest.raises(InputError, match="timed out already"):
            await temporal.people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"], id="d1")
        await check_healthy(handle)
    assert posted == []


@pytest.mark.slow
async def test_a_hundred_people_decide_at_once(temporal: Temporal) -> None:
    people = [f"p{n}" for n in range(100)]
    posted, post = world(Approval(approvers=people, quorum=50))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        came = await asyncio.gather(
            *(
                temporal.people.decide(handle.id, "c1", "approve", by=who, digest=item["digest"], id=f"d-{who}")
                for who in people
            ),
            return_exceptions=True,
        )
        await result(handle)
        await check_healthy(handle)
    assert posted == ["hi"]
    assert came.count(None) == 50, came
    rows = await temporal.store.load_decisions((await handle.describe()).run_id)
    assert len([row for row in rows if row.refused is None]) == 50


async def test_an_id_that_was_used_for_another_gate_says_so(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two")):
        handle = await temporal.start("a")
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", id="bot")
        with pytest.raises(InputError, match="id bot was already used for approve of c1"):
            await temporal.people.decide(handle.id, "c2", "approve", by="ada", id="bot")
        await temporal.people.decide(handle.id, "c2", "reject", by="ada")
        await result(handle)
        await check_healthy(handle)
    assert posted == ["one"]


async def test_an_id_that_was_used_to_approve_does_not_reject(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        seen = {"digest": item["digest"]}
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", id="bot", **seen)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", id="bot", **seen)  # the same again
        for other in ({"decision": "reject", "by": "ada"}, {"decision": "approve", "by": "bob"}):
            with pytest.raises(InputError, match="id bot was already used for approve of c1: use a different id"):
                await temporal.people.decide(handle.id, "c1", id="bot", **other, **seen)
        await handle.signal("reject", {"gate": "c1", "by": "ada", "id": "bot", **seen})  # of another program
        assert await until(lambda: refusals(handle)) == [
            "reject: id bot was already used for approve of c1: use a different id for each",
            "approve: id bot was already used for approve of c1: use a different id for each",
            "reject: id bot was already used for approve of c1: use a different id for each",
        ]
        await temporal.people.decide(handle.id, "c1", "approve", by="bob", **seen)
        await result(handle)
        await check_healthy(handle)
    assert posted == ["hi"]


async def test_an_id_that_was_used_for_a_message_is_not_an_answer_and_no_other_message(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=ScriptedModel([asks("Which?"), "done", asks("Which?"), "done"])):
        run = await temporal.start(agent)
        await pending(run)
        people = temporal.people
        await people.message(run.id, "buy ten", id="n1")
        for again in (people.message(run.id, "buy twenty", id="n1"), people.answer(run.id, "red", id="n1")):
            with pytest.raises(InputError, match=r"n1'? was already used for"):
                await again
        await people.answer(run.id, "red", id="n2")
        with pytest.raises(InputError, match="id n2 was already used for answer"):
            await people.answer(run.id, "blue", id="n2")
        await result(run)
        second = await temporal.start(agent)
        await pending(second)
        with pytest.raises(InputError, match=r"n1'? was already used for"):  # in an earlier run
            await people.message(second.id, "buy twenty", id="n1")
        await people.answer(second.id, "red")
        await result(second)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "buy ten", "go"]
