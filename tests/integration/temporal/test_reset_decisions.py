"""Decisions and answers are found after a reset: people are asked once, and no effect is denied."""

from functools import partial
from typing import Any

import pytest
from support.deploys import waits_for
from support.questions import ask
from support.resets import reset, resets, tasks
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    events,
    pending,
    refusals,
    result,
    scheduled,
    until,
    waiting,
)
from support.transcripts import asks_for, call, error_of, shape, tool_results
from temporalio.worker import Replayer

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_temporal_tool_approvals import TEAM, at_gate
from standfast import Agent, Approval, InputError, pipeline, tool
from standfast.temporal import StandfastPlugin, start_pipeline
from standfast.testing import ScriptedModel

BOTH = Approval(message="ok?", approvers=["ada", "bob"], quorum=2, timeout="7d")
BEFORE_THE_MODEL, AT_THE_GATE = 0, 1  # the workflow task before which a run is reset


async def decide(temporal: Temporal, handle: Run, decision: Any = "approve", by: str = "ada", **more: Any) -> None:
    (item,) = await pending(handle)
    await temporal.people.decide(handle.id, item["name"], decision, by=by, digest=item["digest"], **more)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_messages", [False, True])
@pytest.mark.parametrize("task", [BEFORE_THE_MODEL, AT_THE_GATE])
async def test_an_approved_call_is_not_asked_about_again(temporal: Temporal, task: int, with_messages: bool) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await decide(temporal, handle, edit={"text": "ho"})
        await result(handle)
        anew = await reset(temporal, handle, task, with_messages=with_messages)
        assert (await result(anew))["status"] == "complete"
        await check_healthy(anew)
    assert posted == ["ho"]
    assert '"posted":1' in tool_results(await temporal.messages())[0].content


async def test_a_reset_of_a_reset_finds_it_as_well(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await decide(temporal, handle)
        await result(handle)
        for _ in range(2):
            handle = await reset(temporal, handle, AT_THE_GATE)
            assert (await result(handle))["status"] == "complete"
            await check_healthy(handle)
            plugin = StandfastPlugin(agents=[Agent("a", tools=[post])], store=temporal.store, llm=posts())
            await Replayer(workflows=[], plugins=[plugin]).replay_workflow(await handle.fetch_history())
    assert posted == ["hi"]


async def test_a_person_who_has_approved_of_several_need_not_approve_again(temporal: Temporal) -> None:
    posted, post = world(BOTH)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await decide(temporal, handle)
        anew = await reset(temporal, handle, BEFORE_THE_MODEL)

        (item,) = await pending(anew)
        await _until_approved_by(anew, ["ada"])
        with pytest.raises(InputError, match="ada has approved it already"):
            await temporal.people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"])
        await decide(temporal, anew, by="bob")
        assert (await result(anew))["status"] == "complete"
    assert posted == ["hi"]


async def _by_update(temporal: Temporal, handle: Run, by: str) -> None:
    """Approve as other programs do: nothing of an update is in a history before the task that accepts it."""
    (item,) = await pending(handle)
    given = {"gate": "c1", "decision": "approve", "digest": item["digest"], "by": by}
    await handle.execute_update("decide", given)


async def _by_client(temporal: Temporal, handle: Run, by: str) -> None:
    await decide(temporal, handle, by=by)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("approve", [_by_update, _by_client])
async def test_an_approval_is_found_and_counts_once_whichever_task_the_run_is_reset_to(
    temporal: Temporal, approve: Any
) -> None:
    posted, post = world(BOTH)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await approve(temporal, handle, "ada")
        async for anew in resets(temporal, handle):
            await _until_approved_by(anew, ["ada"])
            assert posted == []
        await approve(temporal, anew, "bob")
        assert (await result(anew))["status"] == "complete"
        await check_healthy(anew)
    assert posted == ["hi"]


async def test_an_answer_by_update_is_found_whichever_task_the_run_is_reset_to(temporal: Temporal) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await handle.execute_update("answer", {"text": "Ada", "tool_call_id": "c1"})
        assert (await result(handle))["status"] == "complete"
        before = await temporal.messages()
        async for anew in resets(temporal, handle):
            assert (await result(anew))["status"] == "complete"
            await check_healthy(anew)
    assert await temporal.messages() == before


async def _until_approved_by(handle: Run, people: list[str]) -> None:
    async def is_so() -> bool:
        return (await pending(handle))[0]["approved_by"] == people

    await until(is_so)


async def test_a_decision_that_counted_before_the_reset_is_not_an_error_when_it_is_sent_again(
    temporal: Temporal,
) -> None:
    posted, post = world(BOTH)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        given = {"digest": item["digest"], "by": "ada", "id": "of ada"}
        await temporal.people.decide(handle.id, "c1", "approve", **given)
        anew = await reset(temporal, handle, AT_THE_GATE)
        await _until_approved_by(anew, ["ada"])
        await temporal.people.decide(handle.id, "c1", "approve", **given)  # its acknowledgement was lost
        with pytest.raises(InputError, match="ada has approved it already"):
            await temporal.people.decide(handle.id, "c1", "approve", **{**given, "id": "another"})
        await decide(temporal, anew, by="bob")
        assert (await result(anew))["status"] == "complete"
    assert posted == ["hi"]


async def test_a_rejected_call_stays_rejected(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await decide(temporal, handle, "reject", comment="no")
        await result(handle)
        anew = await reset(temporal, handle, BEFORE_THE_MODEL)
        assert (await result(anew))["status"] == "complete"
    assert posted == []
    assert error_of(tool_results(await temporal.messages())[0]) == "Not run: it was rejected by ada: no"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_call_that_ran_when_nobody_decided_is_neither_asked_about_nor_decided(
    temporal: Temporal, decision: Any
) -> None:
    posted, post = world(Approval(message="ok?", timeout=1, on_timeout="approve"))
    model = ScriptedModel(
        [asks_for(call("post", "c1", text="hi")), asks_for(call("ask", "q1", question="More?")), "done"]
    )
    async with temporal.worker(Agent("a", tools=[post, ask]), llm=model):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        await until(partial(waits_for, handle, "question"))
        anew = await reset(temporal, handle, BEFORE_THE_MODEL)
        await until(partial(waits_for, anew, "question"))
        with pytest.raises(InputError, match="gate c1: the call has already run"):
            await temporal.people.decide(handle.id, "c1", decision, by="ada", digest=item["digest"])
        await temporal.people.answer(handle.id, "no", tool_call_id="q1")
        assert (await result(anew))["status"] == "complete"
        await check_healthy(anew)
    assert posted == ["hi"]
    assert '"posted":1' in tool_results(await temporal.messages())[0].content


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("with_messages", [False, True])
@pytest.mark.parametrize("task", [BEFORE_THE_MODEL, 1, 2, 3])
async def test_an_answered_question_is_not_asked_again(temporal: Temporal, task: int, with_messages: bool) -> None:
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.answer(handle.id, "Ada", tool_call_id="c1")
        assert (await result(handle))["status"] == "complete"
        before = await temporal.messages()
        anew = await reset(temporal, handle, task, with_messages=with_messages)
        assert (await result(anew))["status"] == "complete"
        await check_healthy(anew)
    assert await temporal.messages() == before


@pytest.mark.slow
async def test_a_gate_of_a_pipeline_that_was_decided_is_not_asked_again(temporal: Temporal) -> None:
    posted: list[str] = []

    @tool
    async def publish(text: str) -> str:
        """Publish."""
        posted.append(text)
        return "ok"

    built = (
        pipeline("p")
        .step("approve", approval=TEAM)
        .step("publish", run=publish, input=lambda ctx: {"text": "hi"})
        .build()
    )
    async with temporal.worker(pipelines=[built]):
        handle = await start_pipeline(temporal.client, built, run_key=temporal.name, task_queue=temporal.name)
        (item,) = await pending(handle)
        await temporal.people.decide(handle.id, "approve", "approve", by="ada", digest=item["digest"])
        await result(handle)
        for task in (1, 0):
            handle = await reset(temporal, handle, task)
            assert (await result(handle))["status"] == "complete"
            await check_healthy(handle)
    assert posted == ["hi"]


async def test_a_run_that_was_never_reset_looks_for_nothing(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, _):
        await decide(temporal, handle)
        await result(handle)
        assert scheduled(await events(handle)) == ["call_model", "standfast.decide", "post", "call_model"]
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


async def test_a_decision_that_only_the_reset_sends_again_comes_after_those_that_were_recorded(
    temporal: Temporal,
) -> None:
    """An approval by an update, and a rejection without an id that was too late."""
    charged: list[str] = []

    @tool
    async def charge() -> str:
        charged.append("once")
        return "charged"

    flow = pipeline("flow").step("ok", approval=Approval()).step("charge", run=charge).step("end", approval=Approval())
    async with temporal.worker(Agent("other"), pipelines=[flow.build()], llm=ScriptedModel([])):
        run = await start_pipeline(
            temporal.client, "flow", input={}, run_key=temporal.session(), task_queue=temporal.name
        )
        (item,) = await pending(run)
        for count in (1, 2):  # so that there are tasks in which the gate is open
            await run.signal("reject", {"by": "eve"})
            await until(partial(has_refused, run, count))
        at = len(await tasks(run)) - 1
        decision = {"gate": "ok", "by": "ada", "digest": item["digest"]}
        await run.execute_update("decide", {**decision, "decision": "approve"})
        await run.signal("reject", {**decision, "by": "bob"})
        await until(partial(is_at, run, "end"))
        new = await reset(temporal, run, at, with_signals=True)
        await until(partial(is_at, new, "end"))
        await decide(temporal, new)
        assert (await result(new))["status"] == "complete"
        await check_healthy(new)
    rows = await temporal.store.load_decisions(str(run.first_execution_run_id or run.result_run_id))
    assert {(row.gate, row.by, row.refused is None) for row in rows} == {
        ("ok", "ada", True), ("ok", "bob", False), ("end", "ada", True)
    }  # fmt: skip
    assert charged == ["once"]


async def has_refused(run: Run, count: int) -> bool:
    return len(await refusals(run)) == count


async def is_at(run: Run, gate: str) -> bool:
    return [item["name"] for item in await waiting(run)] == [gate]
