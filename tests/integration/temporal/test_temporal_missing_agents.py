"""Workers that lack some agents: a run reports what it waits for, loses nothing, and continues where its agent is."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from support.questions import ask
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    events,
    failure,
    pending,
    result,
    status,
    until,
    waiting,
    wedges,
)
from support.transcripts import asks_for, call
from temporalio import workflow
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from standfast import Agent, Approval, Loop, Message, tool
from standfast.temporal import StandfastPlugin, connect, start_agent, start_pipeline
from standfast.temporal.client.runs.descriptions import runs_query
from standfast.temporal.wire import names
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel

other, support = Agent("other"), Agent("support")


@workflow.defn
class Order:
    """A workflow of the user's own."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


@workflow.defn
class Shipment:
    """Another one, that any input will do for."""

    @workflow.run
    async def run(self, *values: Any) -> dict[str, bool]:
        return {"shipped": True}


@workflow.defn(dynamic=True)
class Anything:
    """One for all types that the worker does not know."""

    @workflow.run
    async def run(self, values: Sequence[RawValue]) -> dict[str, str]:
        return {"taken": workflow.info().workflow_type}


async def waits_for_a_worker(run: Run) -> dict[str, Any]:
    """Return how a run shows itself that waits for a worker."""
    assert [item["kind"] for item in await pending(run)] == ["worker"]
    return await status(run)


async def attempts(run: Run) -> int:
    """Return how often the activity that waits was tried."""
    return max((item.attempt for item in (await run.describe()).raw_description.pending_activities), default=0)


async def test_a_run_of_an_unknown_agent_says_so_and_takes_what_is_sent_to_it(temporal: Temporal) -> None:
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start("suport", "hello")
        shown = await waits_for_a_worker(run)
        assert shown["status"] == "waiting"
        (waiting,) = shown["waiting"]
        assert waiting["name"] == "suport"
        assert waiting["message"] == "This worker has no agent 'suport'; it has other"
        await temporal.people.message(run.id, "are you there?")
        await until(partial(_waits_in_a_search, temporal, run))
        await check_healthy(run)


async def _waits_in_a_search(temporal: Temporal, run: Run) -> bool:
    return any((item["workflow_id"], item["kind"]) == (run.id, "worker") for item in await temporal.people.waiting())


async def test_a_run_continues_with_all_it_was_told_when_a_worker_has_its_agent(temporal: Temporal) -> None:
    model = ScriptedModel(["hi"])
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start(support, "hello", start_signal="message", start_signal_args=[{"text": "first"}])
        await waits_for_a_worker(run)
        await run.signal("message", {"text": "second"})
        await run.signal("message", {"text": 5})
        await run.execute_update("message", {"text": "third"})
        async with (await temporal.elsewhere()).worker(support, llm=model):
            assert (await result(run))["response"] == "hi"
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["hello", "first", "second", "third"]
    await check_healthy(run)


async def test_a_run_waits_for_a_worker_without_a_trace_in_its_history(temporal: Temporal) -> None:
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start(support)
        await waits_for_a_worker(run)
        length = len(await events(run))
        await until(partial(_tried, run, 3))
        assert len(await events(run)) == length


async def _tried(run: Run, times: int) -> bool:
    return await attempts(run) >= times


async def test_a_run_that_waits_for_a_worker_can_be_cancelled(temporal: Temporal) -> None:
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start(support)
        await waits_for_a_worker(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await result(run)
        assert isinstance(failed.value.cause, CancelledError)
    assert await temporal.messages() == []


async def test_a_run_that_waits_is_refused_by_its_agent_for_what_is_wrong_with_it(temporal: Temporal) -> None:
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start(support, None)
        await waits_for_a_worker(run)
        async with (await temporal.elsewhere()).worker(support, llm=ScriptedModel([])):
            assert "no message was given" in str(await failure(run))
            assert await waiting(run) == []


@tool
def post(text: str) -> str:
    """Post it."""
    return f"posted {text}"


poster = Agent("poster", tools=[post])
posts = [asks_for(call("post", "c1", text="x")), "done"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("first", ["with", "without"])
async def test_workers_with_and_without_an_agent_carry_its_run_together(temporal: Temporal, first: str) -> None:
    has = temporal.worker(poster, llm=ScriptedModel(posts))
    has_not = (await temporal.elsewhere()).worker(other, llm=ScriptedModel([]))
    async with has if first == "with" else has_not, has_not if first == "with" else has:
        run = await temporal.start(poster)
        assert (await result(run))["status"] == "complete"
    assert [message.content for message in await temporal.messages() if message.role == "tool"] == ["posted x"]
    await check_healthy(run)


@pytest.mark.slow
async def test_a_worker_without_its_agent_carries_a_run_that_waits_for_a_person(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    async with worker_with(await temporal.elsewhere(), []):
        assert [item["name"] for item in await pending(run)] == ["c1"]
        await run.execute_update("answer", {"text": "Ada", "tool_call_id": "c1"})
        await until(partial(_waits_for_a_worker, run))
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        assert (await result(run))["response"] == "done"
    await check_healthy(run)


async def _waits_for_a_worker(run: Run) -> bool:
    return [item["kind"] for item in await waiting(run)] == ["worker"]


async def test_a_wait_in_the_middle_of_a_run_does_not_carry_its_input_again(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk, "x" * 100_000)
        await pending(run)
    async with worker_with(await temporal.elsewhere(), []):
        before = sum(event.ByteSize() for event in await events(run))
        await run.execute_update("answer", {"text": "Ada"})
        await until(partial(_waits_for_a_worker, run))
        assert sum(event.ByteSize() for event in await events(run)) - before < 50_000


async def test_a_run_that_continues_as_new_remains_an_agents(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    agent = Agent("clerk", tools=[ask])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("ask", "c1", question="Who?"))])):
        run = await temporal.start(agent)
        await pending(run)
        await until(partial(_has_continued, temporal, run))
    latest: Run = temporal.client.get_workflow_handle(run.id)
    async with worker_with(await temporal.elsewhere(), [Order]):
        assert [item["name"] for item in await pending(latest)] == ["c1"]
    await check_healthy(latest)


async def _has_continued(temporal: Temporal, run: Run) -> bool:
    return (await temporal.client.get_workflow_handle(run.id).describe()).run_id != run.result_run_id


def worker_with(temporal: Temporal, workflows: list[type]) -> Worker:
    """Return a worker of workflows and of an agent."""
    plugin = StandfastPlugin(agents=[other], store=temporal.store, llm=ScriptedModel([]))
    return Worker(temporal.client, task_queue=temporal.name, workflows=workflows, plugins=[plugin])


@tool(name="post", approval=Approval(message="May it?"))
def post_when_approved(text: str) -> str:
    """Post it."""
    return f"posted {text}"


async def test_a_run_waits_for_a_worker_that_has_its_tool(temporal: Temporal) -> None:
    """The tool was there when the model asked for it; a new call of it would be told that it is not found."""
    async with temporal.worker(Agent("poster", tools=[post_when_approved]), llm=ScriptedModel(posts[:1])):
        run = await temporal.start("poster")
        await pending(run)
    async with temporal.worker(Agent("poster", tools=[ask]), llm=ScriptedModel([])):
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await until(partial(_waits_for_a_worker, run))
        (waits,) = await pending(run)
        assert waits["name"] == "post"
        assert waits["message"] == "This worker has no tool 'post'"
    async with temporal.worker(Agent("poster", tools=[post_when_approved]), llm=ScriptedModel(posts[1:])):
        assert (await result(run))["response"] == "done"
    assert [message.content for message in await temporal.messages() if message.role == "tool"] == ["posted x"]
    await check_healthy(run)


async def test_a_run_continues_beside_a_worker_that_has_its_agent_but_not_its_tool(temporal: Temporal) -> None:
    def posts_once(messages: Sequence[Message], tools: Any) -> Any:
        return posts[any(message.role == "tool" for message in messages)]

    has_not = temporal.worker(Agent("poster", tools=[ask]), llm=ScriptedModel(posts_once))
    has = (await temporal.elsewhere()).worker(poster, llm=ScriptedModel(posts_once))
    async with has_not, has:
        for number in range(4):
            run = await temporal.start(poster, session=f"s{number}")
            assert (await result(run))["response"] == "done"
            await check_healthy(run)


async def test_a_call_that_waits_for_a_worker_when_its_run_is_cancelled_was_not_run(temporal: Temporal) -> None:
    both = asks_for(call("post", "c2", text="x"), call("post", "c3", text="x"))
    async with temporal.worker(Agent("poster", tools=[post_when_approved]), llm=ScriptedModel([both])):
        run = await temporal.start("poster")
        await pending(run, 2)
    async with temporal.worker(Agent("poster", tools=[ask]), llm=ScriptedModel([])):
        for gate in ("c2", "c3"):
            await temporal.people.decide(run.id, gate, "approve", by="ada")
        await until(partial(_waits_for_a_worker, run))
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(run)
    last = (await temporal.messages())[-2:]
    assert [(message.tool_call_id, message.status) for message in last] == [("c2", "cancelled"), ("c3", "cancelled")]
    assert "Not run" in last[0].content


async def test_nobody_else_decides_on_a_call_that_waits_to_be_run_again(temporal: Temporal) -> None:
    @tool(timeout=timedelta(milliseconds=1))
    async def pay() -> str:
        """Pay."""
        paid.append("x")
        await asyncio.sleep(len(paid) < 2)
        return "paid"

    paid: list[str] = []
    loop = Loop(on_unknown="ask")
    model = [asks_for(call("pay", "p1")), "done"]
    async with temporal.worker(Agent("payer", tools=[pay], loop=loop), llm=ScriptedModel(model)):
        run = await temporal.start("payer")
        assert [item["kind"] for item in await pending(run)] == ["unknown"]
    async with temporal.worker(Agent("payer", loop=loop), llm=ScriptedModel(model)):
        await run.execute_update("resolve", {"tool_call_id": "p1", "decision": "not-happened", "by": "ada"})
        await until(partial(_waits_for_a_worker, run))
        for name, data in (("resolve", {"decision": "happened", "result": "receipt"}), ("answer", {"text": "paid"})):
            with pytest.raises(WorkflowUpdateFailedError):
                await run.execute_update(name, {"tool_call_id": "p1", **data})
    async with temporal.worker(Agent("payer", tools=[pay], loop=loop), llm=ScriptedModel(model[1:])):
        assert (await result(run))["response"] == "done"
    assert paid == ["x", "x"]


async def test_a_run_that_has_begun_and_waits_for_a_worker_can_be_cancelled(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    async with worker_with(await temporal.elsewhere(), []):
        await run.execute_update("answer", {"text": "Ada"})
        await until(partial(_waits_for_a_worker, run))
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await result(run)
        assert isinstance(failed.value.cause, CancelledError)
        assert (await status(run))["status"] == "cancelled"
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        assert (await temporal.run(clerk, "again"))["status"] == "complete"
    assert [message.content for message in await temporal.messages()][-4:] == ["", "Ada", "again", "done"]


# --- workflows of the user's ---


async def test_a_worker_with_workflows_of_the_users_takes_what_was_started_as_an_agent(temporal: Temporal) -> None:
    async with worker_with(temporal, [Order]):
        run = await temporal.start("suport")
        await waits_for_a_worker(run)
        await check_healthy(run)


async def test_what_does_not_look_like_a_run_of_an_agent_is_left_to_other_workers(temporal: Temporal) -> None:
    plugin = StandfastPlugin(agents=[other], store=temporal.store, llm=ScriptedModel([]))
    async with Worker(
        temporal.client, task_queue=temporal.name, plugins=[plugin], workflow_failure_exception_types=[Exception]
    ):
        session = temporal.session()
        for kind, workflow_id in (("Shipment", f"Shipment/{session}"), ("shipment", session)):
            run = await temporal.start_raw(kind, {"message": "x"}, id=workflow_id, memo={"agent": "Mrs Smith"})
            assert f"no agent and no workflow type '{kind}'" in (await until(partial(_wedges, run)))[0]


@pytest.mark.slow
async def test_a_worker_with_workflows_of_the_users_leaves_those_that_it_has_not(temporal: Temporal) -> None:
    async with worker_with(temporal, [Order]):
        run = await temporal.start_raw("Shipment", {"message": "x"}, id=temporal.session())
        assert "no agent and no workflow type 'Shipment'" in (await until(partial(_wedges, run)))[0]
    async with Worker((await temporal.elsewhere()).client, task_queue=temporal.name, workflows=[Shipment]):
        assert await result(run) == {"shipped": True}


async def _wedges(run: Run) -> list[str]:
    return wedges(await events(run))


async def test_a_dynamic_workflow_of_the_users_stays_what_takes_unknown_types(temporal: Temporal) -> None:
    async with worker_with(temporal, [Anything]):
        assert await result(await temporal.start("suport")) == {"taken": "suport"}
        assert await result(await temporal.start_raw("shipment")) == {"taken": "shipment"}


async def test_a_run_that_waited_for_a_worker_replays(temporal: Temporal) -> None:
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start(support)
        await waits_for_a_worker(run)
    async with temporal.worker(support, llm=ScriptedModel(["hi"])):  # alone: beside the other it may wait for its turn
        await result(run)
    history = await run.fetch_history()
    for agent in (support, other):
        plugin = StandfastPlugin(agents=[agent], store=temporal.store, llm=ScriptedModel([]))
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)


# --- runs that no worker has begun ---


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_run_is_listed_before_a_worker_has_begun_it(temporal: Temporal, tenant: str | None) -> None:
    key = SearchAttributeKey.for_keyword_list(names.GROUP_ATTRIBUTE)
    own = TypedSearchAttributes([SearchAttributePair(key, ["kept"])])
    run = await temporal.start(other, tenant_id=tenant, search_attributes=own)
    assert (await run.describe()).typed_search_attributes.get(key) == ["kept"]
    found = [{}, {"status": "running"}, {"session": temporal.session()}, *([{"tenant": tenant}] if tenant else [])]
    for wanted in found:
        await until(lambda: _listed(temporal, run, **wanted))  # noqa: B023
    reviewed = await start_pipeline(temporal.client, "review", run_key=temporal.name, task_queue=temporal.name)
    await until(lambda: _listed(temporal, reviewed))
    async with temporal.worker(other, llm=ScriptedModel(["hi"])):
        assert (await result(run))["status"] == "complete"
        await until(lambda: _listed(temporal, run, status="complete"))


async def _listed(temporal: Temporal, run: Run, **wanted: Any) -> bool:
    found = [one.id async for one in temporal.client.list_workflows(runs_query(**wanted))]
    return run.id in found


async def test_a_run_starts_in_a_namespace_without_the_search_attributes(temporal: Temporal) -> None:
    bare = f"bare-{uuid4().hex[:8]}"
    keep = Duration(seconds=86_400)
    asked = RegisterNamespaceRequest(namespace=bare, workflow_execution_retention_period=keep)
    await temporal.client.workflow_service.register_namespace(asked)
    client = await connect(temporal.client.service_client.config.target_host, namespace=bare)

    async def start() -> Any:
        with contextlib.suppress(RPCError):  # the server does not know the namespace yet
            return await start_agent(client, other, message="go", session_id="s", task_queue=temporal.name)

    run = await until(start)
    assert (await run.describe()).status is WorkflowExecutionStatus.RUNNING
