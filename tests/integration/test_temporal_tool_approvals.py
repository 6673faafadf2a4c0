"""Tools that people must let run, on Temporal: signals, time, cancels, long waits, other drivers, and what it costs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from holdfast import Agent, Approval, InputError, assert_complete, is_interrupted, pipeline, run, sqlite_store, tool
from holdfast.temporal import HoldfastPlugin, start_agent, start_pipeline, waits
from holdfast.testing import ScriptedModel, time_skipping_server
from integration.temporal_runs import (
    Run,
    Temporal,
    chain,
    check_healthy,
    events,
    pending,
    refusals,
    result,
    scheduled,
    status,
    until,
)
from integration.test_temporal_junk import JUNK, UNDECODABLE
from integration.test_tool_approvals import approve, posts, reject, world
from integration.transcripts import asks_for, call, error_of, kind_of, shape, tool_results

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
            "kind": "approval", "name": "c1", "message": "ok?", "tool": "post", "arguments": {"text": "hi"},
            "approvers": ["ada", "bob"],
        }  # fmt: skip
        now = await status(handle)
        assert (now["status"], now["running"]) == ("waiting", [])

        async def found() -> bool:
            query = f"HoldfastWaiting = 'approval' AND HoldfastGroup = 'ops' AND TaskQueue = '{temporal.name}'"
            return [item.id async for item in temporal.client.list_workflows(query)] == [handle.id]

        await until(found)


async def test_of_large_arguments_the_beginning_is_shown(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000, "small") as (handle, _):
        large, small = await pending(handle, 2)
        assert large["arguments"] == '{"text": "' + "x" * 30 + "…"
        assert small["arguments"] == {"text": "small"}


# --- signals and updates, at any time ---


@pytest.mark.parametrize(("name", "runs"), [("approve", ["hi"]), ("reject", [])])
async def test_a_signal_decides(temporal: Temporal, name: str, runs: list[str]) -> None:
    async with at_gate(temporal) as (handle, posted):
        await handle.signal(name, {"gate": "c1", "by": "ada", "comment": "as you like"})
        await result(handle)
        assert posted == runs
    rows = await temporal.store.load_decisions((await handle.describe()).run_id)
    assert [(row.gate, row.by, row.decision, row.comment) for row in rows] == [("c1", "ada", name, "as you like")]


async def test_an_early_signal_is_kept_for_the_call_that_it_names(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        given = {"gate": "c1", "by": "ada"}
        handle = await temporal.start("a", start_signal="approve", start_signal_args=[given])
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["hi"]


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


async def test_an_answer_is_no_approval(temporal: Temporal) -> None:
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
        ({"timeout": "7d", "on_timeout": "reject"}, 7, "Not run: nobody approved it in time"),
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
        plugin = HoldfastPlugin(agents=[agent], store=store, llm=posts("hi"))
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


# --- what ends or moves a run that waits ---


async def test_a_run_that_is_cancelled_at_a_gate_answers_its_calls(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two")):
        handle = await temporal.start("a")
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        await check_healthy(handle)
    assert posted == []
    one, two = tool_results(await temporal.messages())
    assert error_of(one) == "Not run: the run was cancelled before people had decided"
    assert error_of(two) == "Not run: the run was cancelled before this call started"


async def test_a_gate_outlives_its_worker(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
    await handle.signal("approve", {"gate": "c1", "by": "ada", "edit": {"text": "ho"}})
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["ho"]


async def test_a_run_that_grows_long_at_a_gate_goes_on_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "EVENTS", 60)
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two")):
        handle = await temporal.start("a")
        edit = {"text": "ONE"}
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", edit=edit)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        await temporal.people.decide(handle.id, "c2", "approve", by="bob")
        for number in range(40):
            await handle.signal("reject", {"gate": "c1", "by": f"nobody {number}"})

        async def moved() -> bool:
            return (await temporal.client.get_workflow_handle(handle.id).describe()).run_id != handle.result_run_id

        await until(moved)
        latest: Run = temporal.client.get_workflow_handle(handle.id)
        (left,) = await pending(latest)
        assert (left["name"], left["approved_by"], left["arguments"]) == ("c1", ["ada"], {"text": "one"})
        with pytest.raises(InputError, match="gate c2 was approved already"):
            await temporal.people.decide(handle.id, "c2", "reject", by="ada")
        await temporal.people.decide(handle.id, "c1", "approve", by="bob", edit=edit)
        assert (await result(handle))["status"] == "complete"
        assert not any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
                       for one in await chain(temporal.client, handle) for event in one)  # fmt: skip
    assert posted == ["ONE", "two"]


async def test_a_run_that_is_reset_behind_its_gate_repeats_no_effect(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        await result(handle)
        before_decision = [
            event.event_id
            for event in await events(handle)
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ][1]
        again = await temporal.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace="default",
                workflow_execution={"workflow_id": handle.id, "run_id": handle.result_run_id},
                workflow_task_finish_event_id=before_decision,
                request_id="once",
                reset_reapply_exclude_types=[ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE],
            )
        )
        anew: Run = temporal.client.get_workflow_handle(handle.id, run_id=again.run_id)
        for item in await pending(anew):  # other arguments than before: the effect is there, and stays what it is
            await temporal.people.decide(handle.id, item["name"], "approve", by="ada", edit={"text": "ho"})
        assert (await result(anew))["status"] == "complete"
    assert posted == ["hi"]


# --- the other driver ---


async def test_a_run_is_exported_at_its_gate_and_goes_on_in_process(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("one", "two")):
        handle = await temporal.start("a")
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada", edit={"text": "TWO"})
        checkpoint = await temporal.people.export(handle.id)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
    waiting = await run(agent, checkpoint=checkpoint, llm=ScriptedModel(["done"]))
    assert is_interrupted(waiting)
    assert [item.gate for item in waiting.approvals] == ["c1"]
    ended = await run(agent, checkpoint=waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve(by="bob")])
    assert assert_complete(ended).status == "complete"
    assert posted == ["one", "TWO"]


async def test_a_session_that_waits_in_process_goes_on_on_temporal(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("one", "two", "three")}
    await run(agent, message="go", **given)
    edit = {"text": "TWO"}
    decisions = [approve("c1", by="ada"), reject("c3", by="ada", comment="no"),
                 *(approve("c2", by=by, edit=edit) for by in ("ada", "bob"))]  # fmt: skip
    await run(agent, decisions=decisions, **given)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        (left,) = await pending(handle)
        assert (left["name"], left["approved_by"], left["arguments"]) == ("c1", ["ada"], {"text": "one"})
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["one", "TWO"]
    assert error_of(tool_results(await temporal.messages())[2]) == "Not run: it was rejected by ada: no"


async def test_a_gate_that_temporal_took_over_is_not_open_in_process_any_more(temporal: Temporal) -> None:
    """Else the call could be approved on Temporal and, when that run is terminated while it runs, once more here."""
    started = asyncio.Event()
    posted: list[str] = []

    @tool(approval=Approval())
    async def post(text: str) -> str:
        """Post."""
        posted.append(text)
        started.set()
        await asyncio.sleep(60)
        return "posted"

    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("hi")}
    await run(agent, message="go", **given)
    async with temporal.worker(agent, llm=posts()):
        handle = await temporal.start("a", message=None)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve")
        await started.wait()
        await handle.terminate()
    ended = assert_complete(await run(agent, **{**given, "llm": ScriptedModel(["done"])}))
    assert kind_of(ended.messages, "c1") == "tool-durability-error"
    assert posted == ["hi"]


async def test_a_run_that_was_terminated_at_its_gate_is_not_run_without_approval(temporal: Temporal) -> None:
    """The ledger of the run that was terminated says that the call never ran; but it was not approved either."""
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1", text="hi")), "done"])):
        handle = await temporal.start("a")
        await pending(handle)
        await handle.terminate()
        again = await temporal.start("a", message=None)
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert posted == []
    assert "needs approval, which this call has not" in error_of(tool_results(await temporal.messages())[0])


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
            query = f"HoldfastWaiting = 'approval' AND TaskQueue = '{temporal.name}'"
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
    assert scheduled(history) == ["call_model", "holdfast.decide", "post", "call_model"]
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history]
    assert kinds.count("TIMER_STARTED") == 1
    assert kinds.count("MARKER_RECORDED") == 1


async def test_a_call_that_needs_nobody_costs_nothing_more(temporal: Temporal) -> None:
    _, post = world(lambda call: None)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await result(handle)
    assert scheduled(await events(handle)) == ["call_model", "post", "call_model"]
