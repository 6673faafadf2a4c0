"""Calls stopped by guardrails, when their run is reset, moved, interrupted, or continues elsewhere."""

import contextlib
from typing import Any

import pytest
from support.drivers import looked_at
from support.resets import resets
from support.temporal_runs import (
    Temporal,
    chain,
    check_healthy,
    goes_on_as_new,
    pending,
    result,
    until,
    waiting,
    wedges,
)
from support.transcripts import asks_for, call
from temporalio.service import RPCError

from integration.local.test_guardrail_gates import ADA, EDITED, WHY, large_sums, pays, says, spender, stopped_agent
from integration.temporal.test_events import followed
from standfast import (
    Agent,
    AgentContext,
    Approval,
    GateEscalated,
    GateOpened,
    Guardrail,
    InputError,
    ToolCall,
    ToolStarted,
    is_interrupted,
    resume,
    run,
    tool,
)
from standfast.temporal import load_arguments
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel

BOB = Approval(message="Pay?", approvers=["bob"])


def both(ran: list[int], asked: list[Any] | None = None) -> Agent[Any]:
    """Return an agent whose payments bob has to approve, and the large ones ada as well."""

    def large(ctx: AgentContext, call: ToolCall) -> str | None:
        if asked is not None:
            asked.append(call.arguments)
        return large_sums(ctx, call)

    return spender(ran, [Guardrail(large, approval=ADA)], own=BOB)


async def until_ada_is_asked(handle: Any) -> dict[str, Any]:
    async def is_asked() -> Any:
        return [item for item in await waiting(handle) if item["approvers"] == ["ada"]]

    found: list[dict[str, Any]] = await until(is_asked)
    return found[0]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("edit", [None, {"amount": 400}])
async def test_after_a_reset_nobody_is_asked_again_and_no_guardrail_is(temporal: Temporal, edit: Any) -> None:
    ran: list[int] = []
    asked: list[Any] = []
    agent = both(ran, asked) if edit is None else spender(ran)
    decisions = [("bob", None), ("ada", None)] if edit is None else [("ada", edit)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1", amount=500)), "done"])):
        handle = await temporal.start(agent)
        for by, change in decisions:
            await until(lambda: _asks(handle, by))  # noqa: B023
            await temporal.people.decide(handle.id, "c1", "approve", by=by, edit=change)
        before = await result(handle)
        ends = []
        async for again in resets(temporal, handle):
            ends.append(await result(again))
            await check_healthy(again)
    assert len(ends) > 4
    assert all(end == before for end in ends)
    assert ran == [500 if edit is None else 400]
    assert asked == ([{"amount": 500}] if edit is None else [])


@pytest.mark.slow
@pytest.mark.parametrize("moves", [False, True], ids=["in one piece", "goes on as new"])
async def test_an_agent_that_was_called_with_an_edit_is_asked_once_after_every_reset(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 30 if moves else 4_000)
    heard: list[str] = []
    boss, writer, models = stopped_agent(heard, Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(boss, writer, llm=models):
        handle = await temporal.start(boss)
        for by, edit in (("ada", {"message": EDITED}), ("bob", None)):
            await pending(handle)
            if moves and edit is None:
                await goes_on_as_new(handle, "w1")
            await temporal.people.decide(handle.id, "w1", "approve", by=by, edit=edit)
        latest = temporal.client.get_workflow_handle(handle.id, result_type=dict)
        before = await result(latest)
        (begun,) = [one for one in await temporal.people.events(handle.id) if isinstance(one, ToolStarted)]
        assert (begun.call.arguments, begun.edited_by) == ({"message": EDITED}, "ada")
        if not moves:
            async for again in resets(temporal, handle):
                assert await result(again) == before
                await check_healthy(again)
    assert heard == [EDITED]
    told = (await temporal.messages())[2].content
    assert "ada changed the arguments before it ran" in told


async def _asks(handle: Any, by: str) -> bool:
    return any(item["approvers"] == [by] for item in await waiting(handle))


@pytest.mark.slow
async def test_a_run_that_was_reset_behind_the_first_answer_asks_the_second_alone(temporal: Temporal) -> None:
    ran: list[int] = []
    agent = both(ran)
    async with temporal.worker(agent, llm=pays(500)):
        handle = await temporal.start(agent)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        await until_ada_is_asked(handle)
        async for again in resets(temporal, handle):
            assert (await until_ada_is_asked(again))["message"].startswith("Really?\n")
            last = again
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        assert (await result(last))["status"] == "complete"
    assert ran == [500]


@pytest.mark.slow
async def test_a_run_that_grows_long_between_two_questions_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 60)
    ran: list[int] = []
    agent = both(ran)
    async with temporal.worker(agent, llm=pays(500)):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        await until_ada_is_asked(handle)
        for number in range(40):
            await handle.signal("reject", {"gate": "c1", "by": f"nobody {number}"})

        async def moved() -> bool:
            return (await temporal.client.get_workflow_handle(handle.id).describe()).run_id != handle.result_run_id

        await until(moved)
        latest = temporal.client.get_workflow_handle(handle.id)
        left = await until_ada_is_asked(latest)
        assert (left["message"], left["arguments"]) == (WHY.replace("large_sums", "large"), {"amount": 500})
        with pytest.raises(InputError, match="has changed"):
            await temporal.people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"])
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
        assert not [failed for one in await chain(temporal.client, handle) for failed in wedges(one)]
    assert ran == [500]


async def test_a_stopped_call_outlives_its_worker_and_the_next_one_looks_at_its_edit(temporal: Temporal) -> None:
    ran: list[int] = []
    seen: list[Any] = []

    def look(ctx: AgentContext, asked: ToolCall) -> str | None:
        seen.append((asked.arguments, ctx.deps))
        return large_sums(ctx, asked)

    agent = spender(ran, [Guardrail(look, approval=ADA)], context=dict[str, str])
    async with temporal.worker(agent, llm=pays(500)):
        handle = await temporal.start(agent, context={"shop": "Mill"})
        (item,) = await pending(handle)
    edited = {"gate": "c1", "by": "ada", "edit": {"amount": 400}, "digest": item["digest"]}
    await handle.signal("approve", edited)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert ran == [400]
    assert seen == [({"amount": 500}, {"shop": "Mill"}), ({"amount": 400}, {"shop": "Mill"})]


@pytest.mark.parametrize("goes_on", ["on Temporal", "in process"])
async def test_the_next_run_of_a_session_asks_only_those_who_have_not_decided(temporal: Temporal, goes_on: str) -> None:
    ran: list[int] = []
    agent = both(ran)
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1", amount=500)), "done"])):
        handle = await temporal.start(agent)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        await until_ada_is_asked(handle)
        if goes_on == "in process":
            exported = await temporal.people.export(handle.id)
            await handle.terminate()
            again = await run(agent, checkpoint=exported.model_copy(update={"exported_from": None}), llm=pays(1))
            assert is_interrupted(again)  # what a checkpoint says of decisions proves nothing
            assert again.approvals[0].approvers == ("bob",)
            return
        await handle.terminate()
        later = await temporal.start(agent, None)
        await until_ada_is_asked(later)
        await temporal.people.decide(later.id, "c1", "approve", by="ada")
        assert (await result(later))["status"] == "complete"
    assert ran == [500]


async def test_of_large_arguments_all_can_be_read_at_either_question(temporal: Temporal) -> None:
    @tool(approval=Approval(approvers=["bob"]))
    def post(text: str) -> str:
        return "posted"

    def long_texts(ctx: AgentContext, asked: ToolCall) -> str:
        return "long"

    agent = Agent("a", model="m", tools=[post], tool_guardrails=[Guardrail(long_texts, approval=ADA)])
    text = "x" * 20_000
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1", text=text)), "done"])):
        handle = await temporal.start(agent)
        (first,) = await pending(handle)
        assert await load_arguments(temporal.store, first) == {"text": text}
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        second = await until_ada_is_asked(handle)
        assert second["digest"] != first["digest"]
        assert await load_arguments(temporal.store, second) == {"text": text}
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"


@pytest.mark.slow
async def test_each_question_about_a_stopped_call_is_an_event(temporal: Temporal) -> None:
    own = Approval(message="Pay?", approvers=["bob"], timeout=0.5, on_timeout="approve")
    for session, agent in (("a", both([])), ("b", spender([], own=own))):
        async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1", amount=500)), "done"])):
            handle = await temporal.start(agent, session=session)
            if session == "a":
                await pending(handle)
                await temporal.people.decide(handle.id, "c1", "approve", by="bob")
            await until_ada_is_asked(handle)
            await temporal.people.decide(handle.id, "c1", "approve", by="ada")
            await result(handle)
            events = await followed(temporal, handle)
        gates = [event for event in events if isinstance(event, GateOpened | GateEscalated)]
        (first, second) = gates
        assert isinstance(first, GateOpened)
        assert (first.approvers, first.message) == (("bob",), "Pay?")
        if session == "b":  # its time is over, and it asks others
            assert isinstance(second, GateEscalated)
            continue
        assert isinstance(second, GateOpened)
        assert (second.approvers, second.message, second.call) == (
            ("ada",),
            WHY.replace("large_sums", "large"),
            first.call,
        )


async def test_an_agent_that_a_tool_runs_waits_on_temporal_and_cannot_in_process(temporal: Temporal) -> None:
    ran: list[int] = []
    payer = spender(ran)
    boss = Agent("boss", model="b", tools=[payer])
    asks = asks_for(call("spender", "d1", message="pay"))
    models = {"b": [asks, "done"], "m": [asks_for(call("pay", "c1", amount=500)), "no"]}
    scripted = {name: ScriptedModel(turns) for name, turns in models.items()}
    await run(boss, message="go", llm=lambda name: scripted[str(name)])
    assert ran == []
    scripted = {name: ScriptedModel(turns) for name, turns in models.items()}
    async with temporal.worker(boss, payer, llm=lambda name: scripted[str(name)]):
        handle = await temporal.start(boss)
        child = temporal.client.get_workflow_handle(f"{handle.id}/d1")

        async def asked() -> bool:
            with contextlib.suppress(RPCError):
                return bool(await waiting(child))
            return False

        await until(asked)
        await temporal.people.decide(child.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
    assert ran == [500]


# --- checkpoints, which anyone may have written ---


def stripped(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint from which someone has taken its gates and what guardrails have said."""
    plain: dict[str, Any] = checkpoint.model_dump(mode="json")
    for message in plain["messages"]:
        message.pop("tripped", None)
    return plain | {"questions": None, "pending_tool_use_id": None}


async def test_a_person_who_takes_the_verdict_out_of_a_checkpoint_pays_nobody(temporal: Temporal) -> None:
    ran: list[int] = []
    agent = spender(ran)
    waits = await run(agent, message="go", llm=pays(500))
    assert is_interrupted(waits)
    again = await run(agent, checkpoint=stripped(waits.checkpoint), llm=pays())
    assert is_interrupted(again)
    assert again.approvals[0].message == WHY
    again = await run(agent, messages=stripped(waits.checkpoint)["messages"], llm=pays())
    assert is_interrupted(again)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start(agent, None, checkpoint=stripped(waits.checkpoint))
        (item,) = await pending(handle)
        assert (item["message"], item["approvers"], ran) == (WHY, ["ada"], [])
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
    assert ran == [500]


async def test_without_a_store_a_checkpoint_is_continued_with_all_decisions_together() -> None:
    ran: list[int] = []
    agent = both(ran)
    first = await run(agent, message="go", llm=pays(500))
    assert is_interrupted(first)
    bob = looked_at(first, says("approve", "bob"))
    second = await resume(agent, first.checkpoint, decisions=[bob], llm=pays())
    assert is_interrupted(second)
    assert second.approvals[0].approvers == ("ada",)
    ada = looked_at(second, says("approve"))
    ended = await resume(agent, second.checkpoint, decisions=[bob, ada], llm=ScriptedModel(["done"]))
    assert (ended.status, ran) == ("complete", [500])


async def test_a_signed_checkpoint_keeps_the_first_decision() -> None:
    ran: list[int] = []
    agent, key = both(ran), {"checkpoint_key": "a key of the tests"}
    first = await run(agent, message="go", llm=pays(500), **key)
    assert is_interrupted(first)
    second = await resume(
        agent, first.checkpoint, decisions=[looked_at(first, says("approve", "bob"))], llm=pays(), **key
    )
    assert is_interrupted(second)
    decisions = [looked_at(second, says("approve"))]
    ended = await resume(agent, second.checkpoint, decisions=decisions, llm=ScriptedModel(["done"]), **key)
    assert (ended.status, ran) == ("complete", [500])
