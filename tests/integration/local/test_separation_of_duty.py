"""Requesters cannot approve their own requests, under any spelling of their name."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.commands import done, refused
from support.drivers import Driver
from support.questions import ask
from support.temporal_runs import Run, Temporal, check_healthy, pending, result, until, waiting
from support.transcripts import asks_for, call

from integration.local.test_tool_approvals import approve, posts, reject, world
from integration.local.test_tool_approvals_in_process import waits
from standfast import (
    Agent,
    Approval,
    DefinitionError,
    InputError,
    assert_complete,
    is_interrupted,
    pipeline,
    resume,
    run,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

OTHERS = Approval(exclude_requester=True)


async def at_gate(handle: Run, gate: str) -> None:
    """Wait until a gate is open."""

    async def is_open() -> bool:
        return [(item["kind"], item["name"]) for item in await waiting(handle)] == [("approval", gate)]

    await until(is_open)


async def test_a_person_who_spoke_to_a_run_does_not_approve_what_it_asks_for(temporal: Temporal) -> None:
    posted, post = world(OTHERS)
    agent = Agent("a", tools=[ask, post])
    script = [asks_for(call("ask", "q1", question="ok?")), asks_for(call("post", "c1", text="hi")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent, user_id="ada")
        await pending(handle)
        await temporal.people.message(handle.id, "and post it", by="bob")
        await temporal.people.answer(handle.id, "yes", by="Eve ")
        await at_gate(handle, "c1")
        for by in ("ada", "bob", "eve", "ＡＤＡ"):
            with pytest.raises(InputError, match="has asked for it, and cannot approve it"):
                await temporal.people.decide(handle.id, "c1", "approve", by=by)
        assert posted == []
        await temporal.people.decide(handle.id, "c1", "approve", by="zoe")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["hi"]


async def test_a_person_who_spoke_in_an_earlier_run_of_the_session_does_not_approve(store: SQLiteStore) -> None:
    posted, post = world(OTHERS)
    agent, given = Agent("a", tools=[post]), {"store": store, "session_id": "s"}
    await run(agent, message="post it later", llm=ScriptedModel(["yes"]), user_id="ada", **given)  # type: ignore[arg-type]
    session = await store.load_session("s")
    assert session is not None
    await store.save_session(session.model_copy(update={"user_id": None}))  # it is everyone's
    waiting = await waits(agent, posts("hi"), user_id="bob", **given)
    for by in ("ada", "bob"):
        with pytest.raises(InputError, match=f"{by} has asked for it"):
            await resume(agent, waiting.checkpoint, llm=posts(), decisions=[approve(by=by)], **given)  # type: ignore[arg-type]
    await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve(by="eve")], **given)  # type: ignore[arg-type]
    assert posted == ["hi"]


async def test_a_person_who_spoke_before_a_checkpoint_was_made_does_not_approve() -> None:
    posted, post = world(OTHERS)
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"), user_id="ada")
    with pytest.raises(InputError, match="ada has asked for it"):
        await resume(agent, waiting.checkpoint, llm=posts(), decisions=[approve(by="ada")], user_id="bob")
    assert posted == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("then", ["temporal", "process"])
async def test_a_person_who_spoke_to_a_run_that_did_not_hear_it_does_not_approve_what_the_next_asks_for(
    temporal: Temporal, then: str
) -> None:
    posted, post = world(OTHERS)
    agent, model = Agent("a", tools=[post]), posts("hi")
    never = asyncio.Event()

    async def thinks(messages: Any, tools: Any) -> Any:
        await never.wait()

    async with temporal.worker(agent, llm=ScriptedModel(thinks)):
        handle = await temporal.start(agent, user_id="ada")
        await temporal.people.message(handle.id, "and post it", by="bob")
        await handle.terminate()
    if then == "process":
        given: dict[str, Any] = {"llm": model, "store": temporal.store, "session_id": temporal.session()}
        waiting = await run(agent, message="well?", user_id="ada", **given)
        assert is_interrupted(waiting)
        seen = waiting.approvals[0].digest
        for by in ("ada", "bob"):
            with pytest.raises(InputError, match=f"{by} has asked for it"):
                await run(agent, decisions=[approve(by=by, digest=seen)], user_id="ada", **given)
        await run(agent, decisions=[approve(by="zoe", digest=seen)], user_id="ada", **given)
    else:
        there = await temporal.elsewhere()
        async with there.worker(agent, llm=model):
            handle = await there.start(agent, "well?", user_id="ada")
            await at_gate(handle, "c1")
            for by in ("ada", "bob"):
                with pytest.raises(InputError, match=f"{by} has asked for it"):
                    await there.people.decide(handle.id, "c1", "approve", by=by)
            await there.people.decide(handle.id, "c1", "approve", by="zoe")
            assert (await result(handle))["status"] == "complete"
            await check_healthy(handle)
    assert posted == ["hi"]


async def test_a_person_who_edits_a_call_does_not_approve_the_edit(driver: Driver) -> None:
    posted, post = world(OTHERS)
    edit = {"text": "ho"}
    decisions = [approve(by="ada", edit=edit), approve(by="ADA", edit=edit), approve(by="bob")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert (ended.status, posted) == ("complete", ["ho"])
    assert ended.refused == ("gate c1: ADA has edited it, and cannot approve it: another person must",)


async def test_a_person_who_has_edited_a_call_does_not_approve_the_next(temporal: Temporal) -> None:
    posted, post = world(lambda call: OTHERS if call.arguments["text"] == "two" else Approval())
    agent = Agent("a", tools=[post])
    script = [asks_for(call("post", "c1", text="one")), asks_for(call("post", "c2", text="two")), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", edit={"text": "ONE"})
        await at_gate(handle, "c2")
        with pytest.raises(InputError, match="ada has asked for it"):
            await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        await temporal.people.decide(handle.id, "c2", "approve", by="bob")
        await result(handle)
        await check_healthy(handle)
    assert posted == ["ONE", "two"]


@pytest.mark.parametrize("what", ["an agent", "a pipeline"])
async def test_a_person_who_starts_a_run_at_the_terminal_does_not_approve_what_it_asks_for(
    temporal: Temporal, what: str
) -> None:
    posted, post = world(OTHERS)
    built = pipeline("p").step("c1", approval=OTHERS).build()
    given = ["a", "-m", "go"] if what == "an agent" else ["p", "-i", "{}"]
    login = {"STANDFAST_USER": "", "LOGNAME": "olga"}
    async with temporal.worker(Agent("a", tools=[post]), pipelines=[built], llm=posts("hi")):
        started = await done(temporal, "start", *given, "--task-queue", temporal.name, "-o", "json", **login)
        handle = temporal.people.run(json.loads(started)["workflow_id"])
        await pending(handle)
        says = await refused(temporal, "approve", handle.id, "c1", "-y", **login)
        assert "olga has asked for it, and cannot approve it" in says
        assert posted == []
        await done(temporal, "approve", handle.id, "c1", "-y", "--by", "zoe", **login)
        assert (await result(handle))["status"] == "complete"


async def test_one_name_in_two_spellings_is_one_person(driver: Driver) -> None:
    posted, post = world(Approval(approvers=["Ada", "bob"], quorum=2))
    decisions = [approve(by="ada"), approve(by=" ADA"), approve(by="bob\u200b")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert (ended.refused, posted) == (("gate c1:  ADA has approved it already",), ["hi"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quorum": 2}, "name approvers=, or one person could approve under several names"),
        ({"quorum": 2, "approvers": ["ada", "Ada "]}, "quorum is 2, of 1 people"),
        (
            {
                "approvers": ["ada", "bob"], "quorum": 2, "timeout": 1, "on_timeout": "escalate",
                "escalate_to": Approval(approvers=["eve"]),
            },
            "quorum is 2, of 1 people who may decide: .* an escalation inherits",
        ),
    ],
)  # fmt: skip
def test_a_quorum_is_of_people_who_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        Approval(**options)


async def test_an_escalation_that_says_only_what_to_ask_opens_the_gate_to_nobody_else(driver: Driver) -> None:
    louder = Approval(message="Please!")
    posted, post = world(
        Approval(approvers=["ada", "bob"], quorum=2, exclude_requester=True, timeout=0.05, on_timeout="escalate",
                 escalate_to=louder)
    )  # fmt: skip
    decisions = [None, approve(by="eve"), approve(by="ada"), approve(by="bob")]
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=decisions)
    assert ended.refused == ("gate c1: eve may not decide it; ada, bob may",)
    assert (ended.status, posted) == ("complete", ["hi"])


async def test_an_escalation_that_says_otherwise_has_its_way(driver: Driver) -> None:
    boss = Approval(approvers=["eve"], quorum=1)
    posted, post = world(
        Approval(approvers=["ada", "bob"], quorum=2, timeout=0.05, on_timeout="escalate", escalate_to=boss)
    )
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[None, approve(by="eve")])
    assert (ended.status, posted) == ("complete", ["hi"])


async def test_a_person_who_asked_may_still_reject(driver: Driver) -> None:
    posted, post = world(OTHERS)
    ended = await driver.run(Agent("a", tools=[post]), posts("hi"), decisions=[reject(by="ada")], user_id="ada")
    assert (ended.status, posted) == ("complete", [])


async def test_a_name_that_nobody_sees_is_none() -> None:
    _, post = world(OTHERS)
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"))
    with pytest.raises(InputError, match="by is missing"):
        await resume(agent, waiting.checkpoint, llm=posts(), decisions=[approve(by=" \u200b")])
    again = await run(agent, checkpoint=waiting.checkpoint, llm=posts())
    assert is_interrupted(again)
    ended = await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve(by="x")])
    assert assert_complete(ended).status == "complete"


async def test_a_person_who_spoke_to_a_run_in_process_does_not_approve_what_it_asks_for() -> None:
    posted, post = world(OTHERS)
    agent = Agent("a", tools=[ask, post])
    asks, posts_it = asks_for(call("ask", "q1", question="ok?")), asks_for(call("post", "c1", text="hi"))
    script = ScriptedModel([asks, "and now?", posts_it, "done"])
    asked = await waits(agent, script, user_id="ada")
    answered = assert_complete(await resume(agent, asked.checkpoint, "yes", llm=script, user_id="Eve "))
    given: dict[str, Any] = {"llm": script, "user_id": "bob"}
    waiting = await run(agent, checkpoint=answered.checkpoint, message="and post it", **given)
    for by in ("ada", "eve", "bob"):
        with pytest.raises(InputError, match=f"{by} has asked for it"):
            await resume(agent, waiting.checkpoint, llm=script, decisions=[approve(by=by)])
    assert posted == []
    assert_complete(await resume(agent, waiting.checkpoint, llm=script, decisions=[approve(by="zoe")]))
    assert posted == ["hi"]


async def test_a_person_who_has_edited_a_call_in_process_does_not_approve_the_next(
    where: Callable[[], dict[str, Any]],
) -> None:
    posted, post = world(lambda call: OTHERS if call.arguments["text"] == "two" else Approval())
    agent = Agent("a", tools=[post])
    calls = [call("post", f"c{number}", text=text) for number, text in enumerate(("one", "two"), 1)]
    script = ScriptedModel([*map(asks_for, calls), "done"])
    first = await waits(agent, script, **where())
    edited = [approve("c1", by="ada", edit={"text": "ONE"})]
    second = await resume(agent, first.checkpoint, llm=script, decisions=edited, **where())
    with pytest.raises(InputError, match="ada has asked for it"):
        await resume(agent, second.checkpoint, llm=script, decisions=[approve("c2", by="ada")], **where())
    assert_complete(await resume(agent, second.checkpoint, llm=script, decisions=[approve("c2", by="bob")], **where()))
    assert posted == ["ONE", "two"]
