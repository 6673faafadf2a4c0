"""Gates on Temporal: signals and updates of any shape at any time, timers, cancels, deploys, and their records."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    pending,
    refusals,
    result,
    scheduled,
    status,
    until,
)
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Replayer, Worker

from integration.pipelines.test_gates import TEAM, flow, writer
from integration.pipelines.test_pipelines import echo
from integration.temporal.test_temporal_junk import JUNK, UNDECODABLE
from standfast import (
    Approval,
    GateEscalated,
    GateReminded,
    InputError,
    Pipeline,
    Step,
    pipeline,
    sqlite_store,
    tool,
)
from standfast.temporal import StandfastClient, StandfastPlugin, start_pipeline
from standfast.testing import ScriptedModel, time_skipping_server

gated = flow(message="fine?", approvers=["ops"], **TEAM)


async def start(temporal: Temporal, made: Pipeline = gated, **options: Any) -> Run:
    return await start_pipeline(temporal.client, made, task_queue=temporal.name, run_key=temporal.session(), **options)


@asynccontextmanager
async def at_gate(temporal: Temporal, made: Pipeline = gated) -> AsyncIterator[Run]:
    """Give a run that waits at its gate; when the block ends it is still healthy and can be approved."""
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        run = await start(temporal, made)
        await pending(run)
        yield run
        if (await status(run))["status"] == "waiting":
            await temporal.people.decide(run.id, "ok", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


# --- what can be seen ---


async def test_a_gate_shows_what_it_asks_and_whom(temporal: Temporal) -> None:
    async with at_gate(temporal, flow(message="fine?", approvers=["ops"], timeout="7d", **TEAM)) as run:
        (shown,) = await pending(run)
        assert {name: shown[name] for name in ("kind", "name", "message", "approvers")} == {
            "kind": "approval", "name": "ok", "message": "fine?", "approvers": ["ada", "bob", "eve"]
        }  # fmt: skip
        assert len(shown["digest"]) == 32
        assert "deadline" in shown

        async def listed() -> bool:
            found = await temporal.people.waiting()
            return any((item["workflow_id"], item["kind"]) == (run.id, "approval") for item in found)

        await until(listed)
        query = f"StandfastGroup = 'ops' AND TaskQueue = '{temporal.name}'"
        assert [found.id async for found in temporal.client.list_workflows(query)] == [run.id]


# --- signals, at any time ---


@pytest.mark.parametrize(("name", "ends"), [("approve", "complete"), ("reject", "error")])
async def test_a_signal_decides(temporal: Temporal, name: str, ends: str) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal)
        await pending(run)
        await run.signal(name, {"gate": "ok", "by": "ada", "comment": "as you like"})
        assert (await result(run))["status"] == ends
        await check_healthy(run)
    rows = await temporal.store.load_decisions(await journal_key_of(run))
    assert [(row.by, row.decision, row.comment, row.refused) for row in rows] == [("ada", name, "as you like", None)]


async def journal_key_of(run: Run) -> str:
    return (await run.describe()).run_id


async def test_an_early_signal_is_kept_for_the_gate_that_it_names(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal, start_signal="approve", start_signal_args=[{"gate": "ok", "by": "ada"}])
        assert (await result(run))["outputs"]["ok"]["by"] == ["ada"]
        await check_healthy(run)


async def test_an_early_signal_of_somebody_who_may_not_decide_leaves_the_gate_open(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal, start_signal="approve", start_signal_args=[{"gate": "ok", "by": "mallory"}])
        await pending(run)
        assert await until(partial(refusals, run)) == ["gate ok: mallory may not decide it; ada, bob, eve may"]
        await run.signal("approve", {"gate": "ok", "by": "ada"})
        assert (await result(run))["status"] == "complete"


async def test_late_and_repeated_signals_change_nothing(temporal: Temporal) -> None:
    two = pipeline("w").step("ok", approval=Approval()).step("then", approval=Approval()).build()
    async with temporal.worker(pipelines=[two]):
        run = await start(temporal, two)
        await pending(run)
        for _ in range(2):
            await run.signal("approve", {"gate": "ok"})
        await run.signal("reject", {"gate": "ok"})
        for refused in await until(partial(so_many_refusals, run, 2)):
            assert refused.endswith("gate ok was approved already")
        assert [item["name"] for item in await pending(run)] == ["then"]
        await check_healthy(run)


async def so_many_refusals(run: Run, count: int) -> list[str]:
    found = await refusals(run)
    return found if len(found) == count else []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["approve", "reject"])
async def test_a_signal_that_cannot_be_used_is_noted_and_leaves_the_gate_open(temporal: Temporal, name: str) -> None:
    async with at_gate(temporal) as run:
        for count, arguments in enumerate([(), *JUNK.values()], 1):
            await run.signal(name, args=list(arguments))
            reasons = await until(partial(so_many_refusals, run, min(count, 10)))
            assert reasons[-1].startswith(name)
        for what in UNDECODABLE.values():
            await run.signal(name, what)
        await check_healthy(run)
        assert [item["kind"] for item in await pending(run)] == ["approval"]


# --- updates ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"decision": "approve", "by": "ada"}, "'gate' is missing; open: ok"),
        ({"gate": "ok"}, "decision must be"),
        ({"gate": "ok", "decision": "maybe"}, "decision must be"),
        ({"gate": "nope", "decision": "approve"}, "no gate nope is open; open: ok"),
        ({"gate": "ok", "decision": "approve", "edit": "x" * 300_000}, "more than"),
        ({"gate": "ok", "decision": "approve", "by": "mallory"}, "mallory may not decide it"),
        ({"gate": "ok", "decision": "approve", "by": "ada", "digest": "0"}, "has changed"),
    ],
    ids=["no gate", "nothing", "a word", "another gate", "too large", "somebody else", "another digest"],
)
async def test_a_decision_that_does_not_count_is_refused_to_its_sender(
    temporal: Temporal, data: dict[str, Any], why: str
) -> None:
    async with at_gate(temporal) as run:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("decide", data)
        assert why in str(refused.value.cause)


async def test_updates_of_any_shape_are_refused(temporal: Temporal) -> None:
    async with at_gate(temporal) as run:
        for arguments in [(), *JUNK.values(), *((what,) for what in UNDECODABLE.values())]:
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update("decide", args=list(arguments))
        await check_healthy(run)


async def test_a_decision_with_what_was_looked_at_counts(temporal: Temporal) -> None:
    async with at_gate(temporal) as run:
        (shown,) = await pending(run)
        await temporal.people.decide(run.id, "ok", "approve", by="ada", digest=shown["digest"])


async def test_of_racing_decisions_one_counts_and_all_are_recorded(temporal: Temporal) -> None:
    async with at_gate(temporal, flow(approvers=["ops"], **TEAM)) as run:
        decisions = [
            temporal.people.decide(run.id, "ok", decision, by=by)  # type: ignore[arg-type]
            for by in ("ada", "bob", "eve") for decision in ("approve", "approve")
        ]  # fmt: skip
        outcomes = await asyncio.gather(*decisions, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert all(isinstance(outcome, InputError) for outcome in outcomes if outcome is not None)
    rows = await temporal.store.load_decisions(await journal_key_of(run))
    assert [row.refused for row in rows].count(None) == 1


async def test_an_update_may_come_with_the_start(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        starts = WithStartWorkflowOperation(
            "w", {}, id=f"w/{temporal.session()}", task_queue=temporal.name,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )  # fmt: skip
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await temporal.client.execute_update_with_start_workflow(
                "decide", {"gate": "ok", "decision": "approve", "by": "ada"}, start_workflow_operation=starts
            )
        assert "no gate ok is open" in str(refused.value.cause)
        run: Run = await starts.workflow_handle()
        await pending(run)
        await check_healthy(run)


# --- time ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"timeout": "7d"}, ("error", "approval-timeout")),
        ({"timeout": "7d", "on_timeout": "reject"}, ("error", "approval-rejected")),
        ({"timeout": "7d", "on_timeout": "approve"}, ("complete", None)),
        ({"timeout": "7d", "remind_every": "1d", "on_timeout": "escalate",
          "escalate_to": Approval(approvers=["eve"], timeout="7d")}, ("error", "approval-timeout")),
    ],
    ids=["fail", "reject", "approve", "escalate"],
)  # fmt: skip
async def test_a_gate_of_seven_days_ends_after_seven_days(options: dict[str, Any], ends: tuple[str, str]) -> None:
    made = flow(**options)
    async with time_skipping_server() as environment, sqlite_store(":memory:") as store:
        plugin = StandfastPlugin(agents=[writer], pipelines=[made], store=store, llm=ScriptedModel(echo))
        async with Worker(environment.client, task_queue="q", plugins=[plugin]):
            run = await start_pipeline(environment.client, made, task_queue="q")
            ended = await run.result()
            assert (ended["status"], ended.get("error_reason")) == ends
            days = 14 if "escalate_to" in options else 7
            described = await run.describe()
            assert described.close_time is not None
            took = described.close_time - described.start_time
            assert timedelta(days=days) <= took < timedelta(days=days, minutes=5)
            history = await run.fetch_history()
            fired = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]
            assert len(fired) == (7 + 1 if "remind_every" in options else 1)
            told = await StandfastClient(environment.client).events(run.id)
            at_gate = [type(one).__name__ for one in told if isinstance(one, GateReminded | GateEscalated)]
            assert at_gate == (["GateReminded"] * 6 + ["GateEscalated"] if "remind_every" in options else [])
            began = described.start_time
            for day, one in enumerate((one for one in told if isinstance(one, GateReminded)), 1):
                assert one.at is not None
                assert timedelta(days=day) <= one.at - began < timedelta(days=day, minutes=5)
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)


async def test_a_gate_without_a_timeout_has_no_timer(temporal: Temporal) -> None:
    async with at_gate(temporal, flow()) as run:
        pass
    assert EventType.EVENT_TYPE_TIMER_STARTED not in [event.event_type for event in await events(run)]


# --- what it costs ---


async def test_a_step_and_a_gate_cost_what_the_table_says(temporal: Temporal) -> None:
    async with at_gate(temporal, flow(timeout="7d")) as run:
        pass
    history = await events(run)
    assert scheduled(history) == [
        "standfast.step",
        "standfast.step",
        "standfast.decide",
        "standfast.step",
        "standfast.step",
    ]
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history]
    assert kinds.count("START_CHILD_WORKFLOW_EXECUTION_INITIATED") == 2
    assert kinds.count("TIMER_STARTED") == 1
    assert kinds.count("MARKER_RECORDED") == 3  # the opening, and the board when the gate opens and when it is over


@pytest.mark.slow
async def test_nothing_of_a_step_starts_before_what_it_needs_is_kept(temporal: Temporal) -> None:
    @tool
    async def double(number: int) -> int:
        """Double it."""
        return 2 * number

    one = Step("one", run=double, input=lambda ctx: {"number": ctx.item})
    made = pipeline("w").map("each", one, over=lambda ctx: list(range(200)), concurrency=50).build()
    async with temporal.worker(pipelines=[made]):
        run = await start(temporal, made)
        assert (await result(run))["outputs"]["each"] == [2 * number for number in range(200)]
    history = await events(run)
    assert max(event.activity_task_started_event_attributes.attempt for event in history) == 1
    assert "standfast.settle" not in scheduled(history)
