"""Agents called by other agents ask people, and are waited for, even after a reset or continue-as-new."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, chain, check_healthy, events, forget, pending, result, until, waiting
from support.transcripts import asks_for, call, error_of, result_of, tool_results
from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError
from temporalio.worker import Worker

from integration.temporal.test_completed_by_hand import complete
from standfast import Agent, Approval, Message, ToolContext, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


class Family:
    """An agent that pays once people let it, and one that calls it."""

    def __init__(self) -> None:
        self.paid: list[str] = []

        @tool(approval=Approval(approvers=["ada"]))
        async def pay(to: str) -> str:
            """Pay."""
            self.paid.append(to)
            return "paid"

        self.payer = Agent("payer", model="payer", tools=[pay])
        self.boss = Agent("boss", model="boss", tools=[self.payer])

    def model(self, name: str) -> ScriptedModel:
        asks = call("pay", "c1", to="Eve") if name == "payer" else call("payer", "p1", message="pay Eve")

        def answer(messages: Sequence[Message], tools: Any) -> Any:
            return f"{name} is done" if any(one.role == "tool" for one in messages) else asks_for(asks)

        return ScriptedModel(answer)

    def worker(self, temporal: Temporal, **options: Any) -> Any:
        return temporal.worker(self.boss, self.payer, llm=self.model, **options)


async def payer_at_gate(temporal: Temporal, caller: Run) -> Run:
    """Return the run of the agent that is called, as soon as it waits at its gate."""
    child: Run = temporal.client.get_workflow_handle(f"{caller.id}/p1", result_type=dict[str, Any])

    async def waits_there() -> bool:
        try:
            return bool(await waiting(child))
        except RPCError:  # it has not begun
            return False

    await until(waits_there)
    return temporal.client.get_workflow_handle(
        child.id, run_id=(await child.describe()).run_id, result_type=dict[str, Any]
    )


async def approve(temporal: Temporal, child: Run) -> None:
    await pending(temporal.client.get_workflow_handle(child.id))
    await temporal.people.decide(child.id, "c1", "approve", by="ada")


async def test_an_agent_that_is_called_asks_people_also_when_it_has_gone_on_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 30)
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        child = await payer_at_gate(temporal, boss)
        latest: Run = temporal.client.get_workflow_handle(child.id)

        async def has_moved() -> bool:
            await latest.signal("approve", {"gate": "c1", "by": "nobody"})
            return (await latest.describe()).run_id != child.result_run_id

        await until(has_moved)
        await approve(temporal, child)
        assert (await result(boss))["status"] == "complete"
        assert len(await chain(temporal.client, child)) > 1
    assert family.paid == ["Eve"]
    assert result_of(await temporal.messages(), "p1") == "payer is done"


# --- resets ---


async def test_who_was_reset_waits_for_an_agent_also_when_that_is_reset(temporal: Temporal) -> None:
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        child = await payer_at_gate(temporal, boss)
        boss = await reset(temporal, boss, 1)
        await until(lambda: _is_attached(boss))
        await until(lambda: _waits(boss))
        for _ in range(2):
            child = await reset(temporal, child, 0)
            await pending(child)
        await approve(temporal, child)
        assert (await result(boss))["status"] == "complete"
        await check_healthy(boss)
    assert family.paid == ["Eve"]
    assert result_of(await temporal.messages(), "p1") == "payer is done"


async def _waits(run: Run) -> bool:
    """Whether a run knows that the agent that it has called waits for people."""
    return (await run.query("status"))["status"] == "waiting"


async def _is_attached(run: Run) -> bool:
    described = (await run.describe()).raw_description
    return any(one.activity_type.name == "standfast.attach" for one in described.pending_activities)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_cancel_reaches_an_agent_at_its_gate_also_behind_a_reset(temporal: Temporal, is_reset: bool) -> None:
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        child = await payer_at_gate(temporal, boss)
        if is_reset:
            boss = await reset(temporal, boss, 1)
            await until(lambda: _is_attached(boss))
        await boss.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(boss)
        assert (await child.describe()).status == WorkflowExecutionStatus.CANCELED
        await check_healthy(boss)
    assert family.paid == []
    assert error_of(tool_results(await temporal.messages())[0]) == "Agent 'payer' was cancelled"


ENDS_UNPAID = ("cancelled", "terminated")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("ending", ["approved", "cancelled", "terminated", "forgotten"])
async def test_a_run_reset_to_before_an_agent_that_has_ended_in_the_meantime_finds_its_end(
    temporal: Temporal, ending: str
) -> None:
    """The server tells the end of a child to one run of its parent: a later one has to look itself."""
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        child = await payer_at_gate(temporal, boss)
        began = await has_begun(boss, child)
        again = await reset(temporal, boss, began)
        if ending == "cancelled":
            await child.cancel()
        elif ending == "terminated":
            await child.terminate()
        else:
            await approve(temporal, child)
        assert (await result(again))["status"] == "complete"
        if ending == "forgotten":
            await forget(temporal, child)
        once_more = await reset(temporal, boss, began)
        assert (await result(once_more))["status"] == "complete"
        await check_healthy(once_more)
    assert family.paid == ([] if ending in ENDS_UNPAID else ["Eve"])
    (told,) = tool_results(await temporal.messages())
    if ending in ENDS_UNPAID:
        assert error_of(told) == f"Agent 'payer' was {ending}"
    else:
        assert told.content == "payer is done"


async def has_begun(caller: Run, child: Run) -> int:
    """Return the point of a run to reset to that comes first behind the start of its child."""

    async def points() -> list[int]:
        started = [
            one.event_id
            for one in await events(caller)
            if one.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id == child.id
        ]
        return [number for number, task in enumerate(await tasks(caller)) if started and task > started[0]]

    return (await until(points))[0]


async def test_a_pipeline_that_was_reset_waits_for_an_agent_also_when_that_is_reset(temporal: Temporal) -> None:
    family = Family()
    flow = pipeline("flow").step("p1", agent=family.payer, input=lambda ctx: "pay Eve").build()
    async with family.worker(temporal, pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, run_key=temporal.name, task_queue=temporal.name)
        child = await payer_at_gate(temporal, run)
        run = await reset(temporal, run, 0)
        await until(lambda: _is_attached(run))
        await approve(temporal, await reset(temporal, child, 1))
        assert (await result(run))["outputs"] == {"p1": {"response": "payer is done"}}
    assert family.paid == ["Eve"]


async def test_a_handler_waits_for_the_agent_it_invoked_also_when_that_is_reset(temporal: Temporal) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def slow(messages: Sequence[Message], tools: Any) -> str:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return "invoked is done"

    invoked = Agent("invoked", model="invoked")

    @tool
    async def delegate(ctx: ToolContext) -> str:
        """Let another agent do it."""
        return (await ctx.agents.invoke(invoked, message="go"))["response"]

    caller = Agent("caller", model="caller", tools=[delegate])
    models = {"caller": ScriptedModel([asks_for(call("delegate", "d1")), "done"]), "invoked": ScriptedModel(slow)}
    async with temporal.worker(caller, invoked, llm=models.__getitem__):
        run = await temporal.start(caller)
        await until(inside.is_set)
        handle = temporal.client.get_workflow_handle(f"{run.id}/d1")
        first = temporal.client.get_workflow_handle(handle.id, run_id=(await handle.describe()).run_id)
        waits_for_it = asyncio.create_task(temporal.people.result(handle.id))
        await reset(temporal, first, 0)
        go_on.set()
        assert (await result(run))["status"] == "complete"
        assert (await waits_for_it)["response"] == "invoked is done"
    assert result_of(await temporal.messages(), "d1") == "invoked is done"


# --- results that no agent has ---

ODD: list[Any] = [
    {"status": "complete", "iterations": 1}, {"status": "interrupted", "question": None, "iterations": 1},
    {"status": "complete", "response": "x", "iterations": 1, "usage": {"input_tokens": "many"}},
    {"status": "error", "error": "no"}, {"status": "complete", "response": "x", "iterations": "1"},
]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", ODD, ids=str)
async def test_junk_instead_of_an_agents_result_waits_for_a_person(temporal: Temporal, value: Any) -> None:
    family = Family()
    flow = pipeline("flow").step("p1", agent=family.payer, input=lambda ctx: "pay Eve").build()
    async with family.worker(temporal, pipelines=[flow]):
        boss = await temporal.start("boss")
        run = await start_pipeline(temporal.client, flow, run_key=temporal.name, task_queue=temporal.name)
        for caller, task, action in ((boss, 1, "retry"), (run, 0, "abort")):
            child = await payer_at_gate(temporal, caller)
            again = await reset(temporal, caller, task)
            await complete(temporal, again, "standfast.attach", value)
            (item,) = await pending(again)
            assert (item["kind"], item["name"]) == ("pause", "standfast.attach")
            await temporal.people.resume(again.id, action)
            if action == "retry":
                await approve(temporal, child)
            ended = await result(again)
            await check_healthy(again)
        assert (ended["status"], ended["error_reason"]) == ("error", "agent-failed")
    assert family.paid == ["Eve"]
    assert result_of(await temporal.messages(), "p1") == "payer is done"


@workflow.defn(name="payer", sandboxed=False)
class Payer:
    """A user's workflow that has an agent's name."""

    @workflow.run
    async def run(self, data: Any = None) -> Any:
        return {"status": "complete", "response": {"paid": True}}


async def test_a_workflow_that_ends_as_no_agent_does_is_an_error_for_its_caller(temporal: Temporal) -> None:
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        child = await payer_at_gate(temporal, boss)
    elsewhere = (await temporal.elsewhere()).client
    async with Worker(elsewhere, task_queue=temporal.name, workflows=[Payer]):
        child = await reset(temporal, child, 0)
        assert await result(child) == {"status": "complete", "response": {"paid": True}}
    async with family.worker(await temporal.elsewhere()):
        assert (await result(boss))["status"] == "complete"
    assert "ended as no agent does" in error_of(tool_results(await temporal.messages())[0])


async def test_an_agent_that_is_said_to_have_ended_has_no_answer_that_it_did_not_give(temporal: Temporal) -> None:
    family = Family()
    async with family.worker(temporal):
        boss = await temporal.start("boss")
        await payer_at_gate(temporal, boss)
        boss = await reset(temporal, boss, 1)
        await complete(temporal, boss, "standfast.attach", {"status": "complete", "response": "fine", "iterations": 1})
        await result(boss)
    assert "not in the store" in error_of(tool_results(await temporal.messages())[0])
