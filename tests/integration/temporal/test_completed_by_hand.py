"""An operator completes an activity by hand with any value: no run hangs, and nothing is lost."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doubles import echo
from support.resets import reset
from support.temporal_runs import SECONDS, Run, Temporal, check_healthy, pending, question, result, until, waiting
from support.transcripts import asks_for, call, error_of, tool_results
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError, Tool, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.activities.runs.run_activities import ExportActivities
from standfast.testing import ScriptedModel

DEEP: Any = json.loads("[" * 90 + "]" * 90)
RESULTS: dict[str, tuple[Any, str]] = {
    "text": ("paid in cash", "paid in cash"),
    "list": ([1, "two"], '[1, "two"]'),
    "number": (7, "7"),
    "null": (None, "null"),
    "object": ({"paid": True}, '{"paid": true}'),
    "what-another-call-reported": ({"returned": "charged", "call": "0/other"}, '{"returned": "charged", '),
    "what-tools-once-reported": ({"returned": "charged"}, '{"returned": "charged"}'),
    "half-of-it": ({"returned": 5, "call": "0/c1"}, '{"returned": 5, '),
    "deep": (DEEP, "An operator entered an unusable result: nested deeper than 64 levels"),
    "many": ([1] * 900_000, "An operator entered an unusable result: more than 131,072 values"),
    "large": ("x" * 300_000, "An operator entered a result of 300,000 bytes, more than 262,144"),
}


def payer(inside: threading.Event, go_on: threading.Event, ends: list[str]) -> Tool[..., Any]:
    @tool
    async def pay() -> str:
        """Pay, and take long."""
        inside.set()
        try:
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        finally:
            ends.append("ended")
        return "paid by card"

    return pay


async def activity_id(run: Run, name: str) -> str:
    async def find() -> str:
        described = (await run.describe()).raw_description
        return next((one.activity_id for one in described.pending_activities if one.activity_type.name == name), "")

    return str(await until(find))


async def complete(temporal: Temporal, run: Run, name: str, value: Any) -> None:
    found = await activity_id(run, name)
    described = await run.describe()
    handle = temporal.client.get_async_activity_handle(workflow_id=run.id, run_id=described.run_id, activity_id=found)
    await (handle.fail(value) if isinstance(value, Exception) else handle.complete(value))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", RESULTS)
async def test_what_is_put_in_as_the_result_of_a_tool_is_read_by_the_model(temporal: Temporal, kind: str) -> None:
    inside, go_on, ends = threading.Event(), threading.Event(), list[str]()
    agent = Agent("payer", tools=[payer(inside, go_on, ends)])
    value, read = RESULTS[kind]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1")), "done"])):
        run = await temporal.start(agent)
        await until(inside.is_set)
        await complete(temporal, run, "pay", value)
        assert (await result(run))["status"] == "complete"
        go_on.set()
        await until(lambda: ends)
        await check_healthy(run)
    shown = next(message.content for message in await temporal.messages() if message.role == "tool")
    assert read in shown if read.startswith("An") else shown.startswith(read)
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    scope = f"{session.id}@{session.created_at:%Y%m%dT%H%M%S%f}/2"
    entry = (await temporal.store.load_entries(scope, ["0/c1"]))["0/c1"]
    assert entry.result is not None
    [text] = json.loads(entry.result).values()
    assert text == shown or text == json.loads(shown)["error"]


async def test_what_is_put_in_as_the_result_of_a_pipelines_tool_is_its_output(temporal: Temporal) -> None:
    inside, go_on, ends = threading.Event(), threading.Event(), list[str]()
    flow = pipeline("payments", input=str).step("pay", run=payer(inside, go_on, ends), input=lambda ctx: {}).build()
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, input="x", run_key=temporal.name, task_queue=temporal.name)
        await until(inside.is_set)
        await complete(temporal, run, "pay", "paid in cash")
        found = await result(run)
        go_on.set()
    assert (found["status"], found["outputs"]) == ("complete", {"pay": "paid in cash"})


JUNK: list[Any] = [
    "a text", 7, None, [], {}, {"seq": "x"}, {"seq": 1, "calls": [3]}, {"seq": 1, "untold": [9]},
    {"seq": 1, "declared": {"tools": {"echo": 5}}}, {"seq": 1, "declared": {"tools": {"echo": {"swift": True}}}},
    {"seq": 1, "declared": {"available": 3}}, {"seq": 1, "gates": [{}]},
    {"seq": 1, "gates": [{"question": "?", "tool_call_id": "c1", "gate": {"name": "c1"}}]},
]  # fmt: skip


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", JUNK, ids=str)
async def test_junk_instead_of_a_models_answer_waits_for_a_person_and_is_asked_again(
    temporal: Temporal, value: Any
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def answer(messages: Any, tools: Any) -> str:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return "done"

    agent = Agent("helper", tools=[echo])
    async with temporal.worker(agent, llm=ScriptedModel(answer)):
        run = await temporal.start(agent)
        await until(inside.is_set)
        await complete(temporal, run, "call_model", value)
        waits = (await pending(run))[0]
        assert (waits["kind"], waits["name"]) == ("pause", "model")
        assert "completed by hand" in waits["message"]
        go_on.set()
        await run.signal("resume", {"action": "retry"})
        assert (await result(run))["response"] == "done"
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "value", ["a text", 7, None, [], {}, {"dispatch": "x"}, {"claimed": 1, "dispatch": 1}], ids=str
)
async def test_junk_instead_of_a_hook_or_a_step_waits_for_a_person(temporal: Temporal, value: Any) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def slow(context: Any) -> None:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    agent = Agent("helper", on_complete=slow)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        run = await temporal.start(agent)
        await until(inside.is_set)
        await complete(temporal, run, "standfast.finish", value)
        waits = (await pending(run))[0]
        assert (waits["kind"], waits["name"]) == ("pause", "standfast.finish")
        go_on.set()
        await run.signal("resume", {"action": "retry"})
        assert (await result(run))["response"] == "done"
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", ["a text", 7, [], [1, "a text"], ["x", "{}"], {}], ids=str)
async def test_junk_instead_of_a_start_hook_takes_no_state_away(temporal: Temporal, value: Any) -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def slow(context: Any) -> None:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        context.state["begun"] = True

    agent = Agent("helper", state=dict[str, bool], on_start=slow)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        run = await temporal.start(agent)
        await until(inside.is_set)
        await complete(temporal, run, "standfast.start", value)
        waits = (await pending(run))[0]
        assert (waits["kind"], waits["name"]) == ("pause", "standfast.start")
        go_on.set()
        await run.signal("resume", {"action": "retry"})
        assert (await result(run))["response"] == "done"
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    assert session.state == '{"begun":true}'


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", [7, None, {}, {"session": "s", "facts": 5, "seq": 0}], ids=str)
@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_junk_instead_of_an_opening_that_waits_for_a_worker_is_shown_and_the_run_continues(
    temporal: Temporal, kind: str, value: Any
) -> None:
    agent = Agent("helper", tools=[echo])
    flow = pipeline("notes", input=str).step("say", agent=agent, input=lambda ctx: "hi").build()
    opening = "standfast.open" if kind == "agent" else "standfast.open_pipeline"
    async with temporal.worker(Agent("other"), llm=ScriptedModel([])):
        if kind == "agent":
            run = await temporal.start(agent)
        else:
            keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
            run = await start_pipeline(temporal.client, flow, input="x", **keyed)
        assert (await pending(run))[0]["kind"] == "worker"
        await complete(temporal, run, opening, value)

        async def paused() -> list[dict[str, Any]]:
            return [one for one in await pending(run) if one["kind"] == "pause"]

        (waits,) = await until(paused)
        assert (waits["name"], "completed by hand" in waits["message"]) == (opening, True)
    async with temporal.worker(agent, pipelines=[flow], llm=ScriptedModel(["done"])):
        await run.signal("resume", {"action": "retry"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


async def test_a_run_whose_activity_nobody_wants_tried_again_fails_in_words(temporal: Temporal) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def make(ctx: Any) -> dict[str, Any]:
        inside.set()
        while not go_on.is_set():
            time.sleep(0.01)
        return {"text": "x"}

    flow = pipeline("notes", input=str).step("note", run=echo, input=make).build()
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, input="x", run_key=temporal.name, task_queue=temporal.name)
        await until(inside.is_set)
        await complete(temporal, run, "standfast.step", "junk")
        assert (await pending(run))[0]["name"] == "standfast.step"
        go_on.set()
        await run.signal("resume", {"action": "abort"})
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
        assert "completed by hand" in str(failed.value.cause)
        await check_healthy(run)


@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_a_run_that_is_cancelled_while_it_shows_junk_is_cancelled(temporal: Temporal, kind: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(context: Any) -> Any:
        inside.set()
        go_on.wait()
        return {"text": "x"}

    agent = Agent("helper", on_complete=slow)
    flow = pipeline("notes", input=str).step("note", run=echo, input=slow).build()
    activity = "standfast.finish" if kind == "agent" else "standfast.step"
    async with temporal.worker(agent, pipelines=[flow], llm=ScriptedModel(["done"])):
        try:
            if kind == "agent":
                run = await temporal.start(agent)
            else:
                keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
                run = await start_pipeline(temporal.client, flow, input="x", **keyed)
            await until(inside.is_set)
            await complete(temporal, run, activity, "junk")
            await pending(run)
            await run.cancel()
            with pytest.raises(WorkflowFailureError) as ended:
                await result(run)
        finally:
            go_on.set()
        assert isinstance(ended.value.cause, CancelledError)
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("way", ["signal", "update"])
@pytest.mark.parametrize("which", [1, 2], ids=["the first decision", "one that waits behind it"])
@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_a_run_whose_decision_could_not_be_recorded_ends_and_whoever_decided_is_told(
    temporal: Temporal, kind: str, which: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, original = asyncio.Event(), asyncio.Event(), type(temporal.store).record_decision
    records = itertools.count(1)

    async def record(self: Any, record: Any) -> None:
        if next(records) == which:
            inside.set()
            await go_on.wait()
        return await original(self, record)

    monkeypatch.setattr(type(temporal.store), "record_decision", record)
    ran, post = world(Approval())
    agent = Agent("poster", tools=[post])
    flow = pipeline("notes", input=str).step("c1", approval=Approval()).build()
    async with temporal.worker(agent, pipelines=[flow], llm=posts("hi")):
        if kind == "agent":
            run = await temporal.start(agent)
        else:
            keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
            run = await start_pipeline(temporal.client, flow, input="x", **keyed)
        (item,) = await pending(run)

        async def decide(by: str) -> Any:
            if way == "update":
                given = {"gate": "c1", "decision": "approve", "by": by, "digest": item["digest"]}
                return await run.execute_update("decide", given)
            return await temporal.people.decide(run.id, "c1", "approve", by=by, digest=item["digest"])

        deciding = [asyncio.create_task(decide(by)) for by in ("ada", "bob", "cleo")]
        await inside.wait()
        await complete(temporal, run, "standfast.decide", ApplicationError("by hand", non_retryable=True))
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(run.result(), SECONDS)
        assert "by hand" in str(failed.value.cause)
        told = await asyncio.gather(*deciding, return_exceptions=True)
        go_on.set()
        await check_healthy(run)
    refused = [str(getattr(one, "cause", one)) for one in told if isinstance(one, Exception)]
    assert sum("may count" in one or "may have counted" in one for one in refused) == 1  # the one that was recorded
    assert len(told) - len(refused) == (0 if which == 1 else 1)
    assert ran == []


async def test_an_export_that_is_failed_by_hand_fails_nothing_else(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, over = asyncio.Event(), asyncio.Event()

    async def whole(self: Any, reference: Any, question: Any) -> None:
        inside.set()
        await over.wait()

    monkeypatch.setattr(ExportActivities, "_whole", whole)
    async with question(temporal) as run:
        exporting = asyncio.create_task(temporal.people.export(run.id))
        await inside.wait()
        await complete(temporal, run, "standfast.export", ApplicationError("by hand", non_retryable=True))
        with pytest.raises(InputError, match="export: by hand"):
            await exporting
        over.set()  # else its worker waits for it when it stops


# --- agents that are reached again after a reset ---


@contextlib.asynccontextmanager
async def reached_again(temporal: Temporal, kind: str) -> AsyncIterator[tuple[Run, Run, list[str]]]:
    """Give a run that was reset while its agent waits for an approval, that of the agent, and what was posted."""
    posted, post = world(Approval())
    poster = Agent("poster", model="poster", description="Posts.", tools=[post])
    boss = Agent("boss", model="boss", tools=[poster])
    flow = pipeline("notes", input=str).step("p1", agent=poster, input=lambda ctx: "post").build()
    models = {"poster": posts("hi"), "boss": ScriptedModel([asks_for(call("poster", "p1", message="post")), "done"])}
    async with temporal.worker(boss, poster, pipelines=[flow], llm=models.__getitem__):
        if kind == "agent":
            run = await temporal.start(boss)
        else:
            keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
            run = await start_pipeline(temporal.client, flow, input="x", **keyed)
        inner: Run = temporal.client.get_workflow_handle(f"{run.id}/p1", result_type=dict)

        async def asks() -> bool:
            with contextlib.suppress(RPCError):  # it has not begun
                return bool(await waiting(inner))
            return False

        await until(asks)
        yield await reset(temporal, run, 1 if kind == "agent" else 0), inner, posted


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_nothing_instead_of_an_agents_result_begins_no_second_one(temporal: Temporal, kind: str) -> None:
    async with reached_again(temporal, kind) as (run, inner, posted):
        await complete(temporal, run, "standfast.attach", None)
        (waits,) = await pending(run)
        assert (waits["kind"], waits["name"]) == ("pause", "standfast.attach")
        await temporal.people.resume(run.id)
        await temporal.people.decide(inner.id, "c1", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
        assert posted == ["hi"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_the_answer_of_an_agent_that_is_said_to_have_ended_is_not_what_it_said_on_its_way(
    temporal: Temporal, kind: str
) -> None:
    async with reached_again(temporal, kind) as (run, _, _):
        ended = {"status": "complete", "response": "fine", "iterations": 1, "usage": None}
        await complete(temporal, run, "standfast.attach", ended)
        found = await result(run)
        why = "It is reported to have ended, but its answer is not in the store"
        if kind == "agent":
            assert why in error_of(tool_results(await temporal.messages())[0])
        else:
            assert (found["failed_step"], found["error_reason"]) == ("p1", "agent-failed")
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["agent", "pipeline"])
async def test_a_cancel_while_junk_is_shown_reaches_the_agent(temporal: Temporal, kind: str) -> None:
    async with reached_again(temporal, kind) as (run, inner, posted):
        await complete(temporal, run, "standfast.attach", "junk")
        await pending(run)
        await run.cancel()
        for one in (run, inner):
            with pytest.raises(WorkflowFailureError) as ended:
                await result(one)
            assert isinstance(ended.value.cause, CancelledError)
        assert posted == []
