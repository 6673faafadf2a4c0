"""Late decisions, answers and resumes are refused with a reason, by the history's own times."""

import asyncio
import json
from typing import Any

import pytest
from support.questions import ask
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
    until_over,
)
from support.transcripts import asks_for, call, error_of, tool_results
from temporalio.client import WorkflowUpdateFailedError

import standfast
from integration.local.test_tool_approvals import posts, world
from standfast import (
    Agent,
    Approval,
    InputError,
    Loop,
    ToolContext,
    ToolDurabilityError,
    is_interrupted,
    pipeline,
    tool,
)
from standfast.temporal import start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("way", ["signal", "update"])
@pytest.mark.parametrize(("on_timeout", "decision", "runs"), [("fail", "approve", []), ("approve", "reject", ["hi"])])
async def test_a_decision_on_a_call_after_its_time_does_not_count_though_no_worker_ran(
    temporal: Temporal, way: str, on_timeout: Any, decision: str, runs: list[str]
) -> None:
    posted, post = world(Approval(timeout=0.5, on_timeout=on_timeout))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    await until_over(item)
    given = {"gate": "c1", "by": "ada", "digest": item["digest"]}
    if way == "signal":
        await handle.signal(decision, given)
        update = None
    else:
        update = asyncio.ensure_future(handle.execute_update("decide", {**given, "decision": decision}))
        await asyncio.sleep(0.1)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        was = "timed out" if on_timeout == "fail" else "approved"
        if update is None:
            assert await refusals(handle) == [f"gate c1 was {was} already"]
        else:
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await update
            assert f"gate c1 was {was} already" in str(refused.value.cause)
        await check_healthy(handle)
    assert posted == runs
    rows = await temporal.store.load_decisions((await handle.describe()).run_id)
    assert [row.refused for row in rows] == [f"gate c1 was {was} already"]


async def test_answers_after_their_time_do_not_count_in_the_run_that_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("a", tools=[ask], loop=Loop(answer_timeout=1))
    model = ScriptedModel([asks_for(*(call("ask", f"c{n}", question="?") for n in (1, 2, 3))), "done"])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        items = await pending(handle, 3)
    await until_over(items[0])
    for number in (1, 2, 3):
        await handle.signal("answer", {"text": "late", "tool_call_id": f"c{number}", "id": f"a{number}"})
    monkeypatch.setattr(run_lifetime, "EVENTS", len(await events(handle)))  # it continues as new as soon as it may
    latest: Run = temporal.client.get_workflow_handle(handle.id)
    async with (await temporal.elsewhere()).worker(agent, llm=model):
        assert (await result(handle))["status"] == "complete"
        for number in (1, 2, 3):
            assert "too late" in (await latest.query("standfast.outcome", f"a{number}"))["refused"]
    assert ["Nobody answered within" in error_of(one) for one in tool_results(await temporal.messages())] == [True] * 3


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("late", [False, True])
async def test_the_gate_of_a_pipeline_as_well(temporal: Temporal, late: bool) -> None:
    built = pipeline("p").step("approve", approval=Approval(timeout=0.5)).build()
    async with temporal.worker(pipelines=[built]):
        handle = await start_pipeline(temporal.client, built, run_key=temporal.name, task_queue=temporal.name)
        (item,) = await pending(handle)
    if late:
        await until_over(item)
    await handle.signal("approve", {"gate": "approve", "by": "ada"})
    await until_over(item)
    async with (await temporal.elsewhere()).worker(pipelines=[built]):
        ended = await result(handle)
        await check_healthy(handle)
    assert ended["status"] == ("error" if late else "complete")
    assert ended.get("error_reason") == ("approval-timeout" if late else None)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("way", ["update", "client"])
async def test_a_person_who_decides_late_at_the_gate_of_a_pipeline_without_a_worker_is_told(
    temporal: Temporal, way: str
) -> None:
    built = pipeline("p").step("approve", approval=Approval(timeout=0.5)).build()
    async with temporal.worker(pipelines=[built]):
        handle = await start_pipeline(temporal.client, built, run_key=temporal.name, task_queue=temporal.name)
        (item,) = await pending(handle)
    await until_over(item)
    given = {"gate": "approve", "decision": "approve", "by": "ada"}
    if way == "update":
        deciding = asyncio.ensure_future(handle.execute_update("decide", given))
    else:
        deciding = asyncio.ensure_future(temporal.people.decide(handle.id, **given, digest=item["digest"]))
        await until(lambda: _is_sent(handle))
    await asyncio.sleep(0.1)
    async with (await temporal.elsewhere()).worker(pipelines=[built]):
        with pytest.raises(WorkflowUpdateFailedError if way == "update" else InputError) as refused:
            await deciding
        ended = await result(handle)
        await check_healthy(handle)
    assert ended["error_reason"] == "approval-timeout"
    assert "gate approve was timed out already" in str(refused.value.__cause__ or refused.value)
    rows = await temporal.store.load_decisions(ended["journal_key"])
    assert [row.refused for row in rows] == ["gate approve was timed out already"]


async def _is_sent(handle: Run) -> bool:
    return any(event.HasField("workflow_execution_signaled_event_attributes") for event in await events(handle))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("late", [False, True])
async def test_the_same_signal_twice_is_told_apart(temporal: Temporal, late: bool) -> None:
    posted, post = world(Approval(timeout=4, quorum=2, approvers=["ada", "bob"]))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        given = {"gate": "c1", "by": "ada", "digest": item["digest"]}
        await handle.signal("approve", given)
        await until(lambda: _approved(temporal, handle.id))
    if late:
        await until_over(item)
    await handle.signal("approve", {**given, "by": "bob"})
    await handle.signal("approve", given)
    await until_over(item)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ([] if late else ["hi"])


async def _approved(temporal: Temporal, workflow_id: str) -> bool:
    (item,) = await temporal.people.pending(workflow_id)
    return bool(item["approved_by"])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", ["signal", "update"])
async def test_an_answer_counts_by_the_time_when_it_was_given(temporal: Temporal, way: str, late: bool) -> None:
    agent = Agent("a", tools=[ask], loop=Loop(answer_timeout=4))
    async with temporal.worker(agent, llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    if late:
        await until_over(item)
    update = None
    if way == "signal":
        await handle.signal("answer", {"text": "Ada"})
    else:
        update = asyncio.ensure_future(handle.execute_update("answer", {"text": "Ada"}))
        await asyncio.sleep(0.1)
    await until_over(item)
    is_late = late or way == "update"  # it is accepted when a worker takes it
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        if update is not None:
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await update
            assert "answer: it arrived too late, after " in str(refused.value.cause)
        elif late:
            assert "answer: it arrived too late, after " in (await refusals(handle))[0]
        await check_healthy(handle)
    (heard,) = tool_results(await temporal.messages())
    assert ("Nobody answered within" in error_of(heard)) if is_late else (heard.content == "Ada")


async def test_what_comes_in_time_costs_no_look_into_the_history(temporal: Temporal) -> None:
    _, post = world(Approval(timeout="1d"))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        await handle.signal("approve", {"gate": "c1", "by": "ada", "digest": item["digest"]})
        await result(handle)
        assert "standfast.sent" not in scheduled(await events(handle))


# --- calls of unknown outcome that are not resolved in time ---


@tool
async def pay() -> str:
    """Pay, and do not know whether it worked."""
    raise ToolDurabilityError("pay", "p1", reason="the line went dead")


def payer(timeout: float | None) -> Agent:
    return Agent("payer", model="payer", tools=[pay], loop=Loop(on_unknown="ask", answer_timeout=timeout))


PATIENT = payer(None)


@tool
async def delegate(ctx: ToolContext) -> str:
    """Let another agent pay."""
    return (await ctx.agents.invoke(PATIENT, message="pay"))["response"]


def one_payment(messages: Any, tools: Any) -> Any:
    if messages[-1].role == "tool":
        return "done"
    name = tools[0]["name"] if isinstance(tools[0], dict) else tools[0].name
    return asks_for(call(name, "p1", **({"message": "pay"} if name == "payer" else {})))


async def in_process(temporal: Temporal) -> dict[str, Any]:
    given: dict[str, Any] = {"store": temporal.store, "session_id": temporal.session()}
    assert is_interrupted(await standfast.run(PATIENT, message="go", llm=ScriptedModel(one_payment), **given))
    return {"message": None}


async def exported(temporal: Temporal, *, by_an_older_version: bool = False) -> dict[str, Any]:
    async with temporal.worker(PATIENT, llm=ScriptedModel(one_payment)):
        run = await temporal.start("payer", session="before")
        await pending(run)
        checkpoint = await temporal.people.export(run.id)
        await run.terminate()
    changes: dict[str, Any] = {"exported_from": None}
    if by_an_older_version:
        (question,) = checkpoint.questions or ()
        text = f"{ToolDurabilityError.sentence('pay', 'p1')} What came of it? The answer becomes its result."
        changes["questions"] = (question.model_copy(update={"unknown": None, "question": text}),)
    return {"message": None, "checkpoint": checkpoint.model_copy(update=changes)}


async def exported_by_an_older_version(temporal: Temporal) -> dict[str, Any]:
    return await exported(temporal, by_an_older_version=True)


async def not_asked_before(temporal: Temporal) -> dict[str, Any]:
    return {}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("asked_before", "tools"),
    [
        (not_asked_before, []),
        (in_process, []),
        (exported, []),
        (exported_by_an_older_version, []),
        (not_asked_before, [PATIENT]),  # an agent that is a tool asks, and its caller waits
        (not_asked_before, [delegate]),
    ],
)
async def test_a_call_of_unknown_outcome_that_is_not_resolved_in_time_ends_as_the_durability_error(
    temporal: Temporal, asked_before: Any, tools: list[Any]
) -> None:
    agent = Agent("boss", tools=tools, loop=Loop(answer_timeout=0.3)) if tools else payer(0.3)
    given = await asked_before(temporal)
    agents, model = [agent, *([PATIENT] if tools else [])], ScriptedModel(one_payment)
    async with (await temporal.elsewhere()).worker(*agents, llm=model):
        run = await temporal.start(agent, **given)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    (told,) = tool_results(await temporal.messages())
    error = json.loads(told.content)
    assert (error["kind"], error["toolCallId"]) == ("tool-durability-error", "p1")
    assert "it was not resolved within 0:00:00.300000" in error["error"]
