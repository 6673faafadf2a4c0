"""Tools that need approval, on Temporal: signals, time, cancels, long waits, other drivers, and the cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
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
    until_over,
)
from support.transcripts import asks_for, call, error_of, shape, tool_results
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_temporal_junk import JUNK, UNDECODABLE
from standfast import Agent, Approval, InputError, pipeline, sqlite_store
from standfast.temporal import StandfastPlugin, start_agent, start_pipeline
from standfast.testing import ScriptedModel, time_skipping_server

TEAM = Approval(message="ok?", approvers=["ops"], groups={"ops": ["ada", "bob"]}, timeout="7d")


@asynccontextmanager
async def at_gate(temporal: Temporal, approval: Any = TEAM, *texts: str) -> AsyncIterator[tuple[Run, list[str]]]:
    """Give a run that waits at its gate, and what was posted; when the block ends it is healthy and can be approved."""
    posted, post = world(approval)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts(*(texts or ("hi",)))):
        handle = await temporal.start("a")
        await pending(handle)
        yield handle, posted
        for item in (await status(handle))["waiting"]:
            await temporal.people.decide(handle.id, item["name"], "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)


# --- what can be seen ---


async def test_what_waits_is_shown_with_its_arguments_and_found_by_its_group(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, _):
        (shown,) = await pending(handle)
        assert {name: shown[name] for name in ("kind", "name", "message", "tool", "arguments", "approvers")} == {
            "kind": "approval", "name": "c1", "message": "ok?", "tool": "post", "arguments": {"text": "hi", "times": 1},
            "approvers": ["ada", "bob"],
        }  # fmt: skip
        now = await status(handle)
        assert (now["status"], now["running"]) == ("waiting", [])

        async def found() -> bool:
            query = f"StandfastWaiting = 'approval' AND StandfastGroup = 'ops' AND TaskQueue = '{temporal.name}'"
            return [item.id async for item in temporal.client.list_workflows(query)] == [handle.id]

        await until(found)


async def test_of_large_arguments_the_beginning_is_shown(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000, "small") as (handle, _):
        large, small = await pending(handle, 2)
        assert large["arguments"] == '{"text": "' + "x" * 30 + "…"
        assert small["arguments"] == {"text": "small", "times": 1}


# --- signals and updates, at any time ---


@pytest.mark.parametrize(("name", "runs"), [("approve", ["hi"]), ("reject", [])])
async def test_a_signal_decides(temporal: Temporal, name: str, runs: list[str]) -> None:
    async with at_gate(temporal) as (handle, posted):
        digest = await temporal.people.digest(handle.id, "c1")
        await handle.signal(name, {"gate": "c1", "by": "ada", "comment": "as you like", "digest": digest})
        await result(handle)
        assert posted == runs
    rows = await temporal.store.load_decisions((await handle.describe()).run_id)
    assert [(row.gate, row.by, row.decision, row.comment) for row in rows] == [("c1", "ada", name, "as you like")]


@pytest.mark.parametrize("more", [{}, {"digest": "0" * 32}])
async def test_a_decision_on_a_call_that_nobody_has_seen_yet_is_refused(temporal: Temporal, more: Any) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        given = {"gate": "c1", "by": "ada", **more}
        handle = await temporal.start("a", start_signal="approve", start_signal_args=[given])
        await pending(handle)
        assert await refusals(handle) == ["approve: no gate c1 is open; open: none"]
        assert posted == []
        await temporal.people.decide(handle.id, "c1", "reject", by="ada")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == []


@pytest.mark.parametrize("name", ["approve", "reject"])
async def test_a_person_who_decides_on_a_call_says_the_digest_of_what_they_have_seen(
    temporal: Temporal, name: str
) -> None:
    async with at_gate(temporal) as (handle, posted):
        await handle.signal(name, {"gate": "c1", "by": "ada"})
        await until(lambda: refusals(handle))
        (refused,) = await refusals(handle)
        assert refused.startswith("gate c1: digest is missing")
        with pytest.raises(InputError, match=r"gate c1: digest is missing; .* `pending`"):
            await temporal.people.decide(handle.id, "c1", name, by="ada", digest=None)
        assert posted == []


@pytest.mark.slow
async def test_nothing_that_anybody_sends_wedges_a_run_at_a_gate(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, _):
        for name in ("approve", "reject"):
            for arguments in [(), *JUNK.values(), *((what,) for what in UNDECODABLE.values())]:
                await handle.signal(name, args=list(arguments))
        for arguments in [(), *JUNK.values(), *((what,) for what in UNDECODABLE.values())]:
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("decide", args=list(arguments))
        assert len(await refusals(handle)) == 10
        await check_healthy(handle)
        assert [item["kind"] for item in await pending(handle)] == ["approval"]


async def test_an_answer_is_not_an_approval(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, posted):
        for more in ({}, {"tool_call_id": "c1"}):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update("answer", {"text": "yes", **more})
            assert "call c1 waits to be approved, not for an answer" in str(refused.value.cause)
            await handle.signal("answer", {"text": "yes", **more})
        assert len(await refusals(handle)) == 2
        assert posted == []


async def test_of_racing_decisions_one_counts_and_all_are_recorded(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, posted):
        decisions = [
            temporal.people.decide(handle.id, "c1", decision, by=by)  # type: ignore[arg-type]
            for by in ("ada", "bob", "ada") for decision in ("approve", "approve")
        ]  # fmt: skip
        outcomes = await asyncio.gather(*decisions, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert all(isinstance(outcome, InputError) for outcome in outcomes if outcome is not None)
        await result(handle)
        assert posted == ["hi"]
    rows = await temporal.store.load_decisions((await handle.describe()).run_id)
    assert [row.refused for row in rows].count(None) == 1


async def test_a_message_waits_until_the_turn_is_over(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, _):
        await temporal.people.message(handle.id, "and hello")
    assert shape(await temporal.messages())[:3] == ["user go", "calls c1", "result c1"]
    assert "user and hello" in shape(await temporal.messages())


# --- time ---


@pytest.mark.parametrize(
    ("options", "days", "says"),
    [
        ({"timeout": "7d"}, 7, "Approval timed out"),
        ({"timeout": "7d", "on_timeout": "reject"}, 7, "Not run: it was not approved in time"),
        ({"timeout": "7d", "on_timeout": "approve"}, 7, None),
        ({"timeout": "7d", "remind_every": "1d", "on_timeout": "escalate",
          "escalate_to": Approval(approvers=["eve"], timeout="7d")}, 14, "Approval timed out"),
    ],
    ids=["fail", "reject", "approve", "escalate"],
)  # fmt: skip
async def test_a_gate_of_seven_days_ends_after_seven_days(options: dict[str, Any], days: int, says: str | None) -> None:
    posted, post = world(Approval(**options))
    agent = Agent("a", tools=[post])
    async with time_skipping_server() as environment, sqlite_store(":memory:") as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=posts("hi"))
        async with Worker(environment.client, task_queue="q", plugins=[plugin]):
            handle = await start_agent(environment.client, agent, message="go", session_id="s", task_queue="q")
            assert (await handle.result())["status"] == "complete"
            described = await handle.describe()
            assert described.close_time is not None
            took = described.close_time - described.start_time
            assert timedelta(days=days) <= took < timedelta(days=days, minutes=5)
            history = await handle.fetch_history()
            fired = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]
            assert len(fired) == (7 + 1 if "remind_every" in options else 1)
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)
        (heard,) = tool_results(await store.load_messages("s"))
    assert posted == (["hi"] if says is None else [])
    assert says is None or error_of(heard).startswith(says)


@pytest.mark.parametrize(("on_timeout", "decision"), [("approve", "reject"), ("fail", "approve")])
async def test_a_decision_in_time_counts_though_no_worker_ran_until_it_was_over(
    temporal: Temporal, on_timeout: Any, decision: str
) -> None:
    for timeout in (0.5, 4, 32):  # on a busy machine a worker has not stopped, nor a signal arrived, within the first
        posted, post = world(Approval(timeout=timeout, on_timeout=on_timeout))
        agent = Agent("a", tools=[post])
        async with temporal.worker(agent, llm=posts("hi")):
            handle = await temporal.start("a", session=str(timeout))
            (shown,) = await pending(handle)
        await handle.signal(decision, {"gate": "c1", "by": "ada", "digest": shown["digest"]})
        if datetime.now(UTC) < datetime.fromisoformat(shown["deadline"]):
            break
    await until_over(shown)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == (["hi"] if decision == "approve" else [])


# --- agents below ---


async def test_an_agent_that_is_a_tool_waits_at_its_own_gate(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    inner = Agent("inner", tools=[post])
    outer = Agent("outer", tools=[inner])

    def model(messages: Any, tools: Any) -> Any:
        if messages[-1].role == "tool":
            return "done"
        if tools[0].name == "inner":
            return asks_for(call("inner", "d1", message="post it"))
        return asks_for(call("post", "c1", text="hi"))

    async with temporal.worker(outer, inner, llm=ScriptedModel(model)):
        handle = await temporal.start("outer")
        child: Run = temporal.client.get_workflow_handle(f"{handle.id}/d1")

        async def waits_below() -> bool:
            query = f"StandfastWaiting = 'approval' AND TaskQueue = '{temporal.name}'"
            return [item.id async for item in temporal.client.list_workflows(query)] == [child.id]

        await until(waits_below)
        await temporal.people.decide(child.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["hi"]


async def test_a_call_of_a_step_waits_in_the_workflow_of_the_step(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    writer = Agent("writer", tools=[post])
    made = pipeline("w").step("write", agent=writer).build()
    async with temporal.worker(writer, pipelines=[made], llm=posts("hi")):
        key = temporal.session()
        handle = await start_pipeline(temporal.client, made, task_queue=temporal.name, run_key=key)
        child: Run = temporal.client.get_workflow_handle(f"{handle.id}/write")
        await until(lambda: _there(child))
        with pytest.raises(InputError, match=f"calls of step write wait in workflow w/{key}/write"):
            await temporal.people.decide(handle.id, "write/c1", "approve", by="ada")
        await temporal.people.decide(child.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"
    assert posted == ["hi"]


async def _there(run: Run) -> bool:
    try:
        return bool(await pending(run))
    except RPCError:
        return False


# --- what it costs ---


async def test_an_approval_costs_what_the_table_says(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, _):
        pass
    history = await events(handle)
    assert scheduled(history) == ["call_model", "standfast.decide", "post", "call_model"]
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history]
    assert kinds.count("TIMER_STARTED") == 1
    assert kinds.count("MARKER_RECORDED") == 3  # the opening; the call is put on the board, and taken out


async def test_a_call_that_needs_nobody_costs_nothing_more(temporal: Temporal) -> None:
    _, post = world(lambda call: None)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await result(handle)
    assert scheduled(await events(handle)) == ["call_model", "post", "call_model"]
