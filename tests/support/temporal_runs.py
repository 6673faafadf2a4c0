"""Runs on the shared Temporal server: a worker for some agents, and ways to start, watch and check their runs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from standfast import Agent, InputError, Message
from standfast.agents import Lane
from standfast.stores import SQLiteStore
from standfast.temporal import StandfastClient, StandfastPlugin, connect, start_agent
from standfast.temporal.client.runs.descriptions import NoWorkerError, answer
from standfast.temporal.workflows.calls import model_calls
from standfast.temporal.workflows.gates import gate_keeper
from standfast.temporal.workflows.run import agent_workflows, pipeline_workflows
from standfast.testing import ScriptedModel
from support.questions import ask
from support.transcripts import asks_for, call

SECONDS = 60  # after which a test that waits has failed; several run at once, on few cores
Run = WorkflowHandle[Any, dict[str, Any]]


class People(StandfastClient):
    """People who look at what waits before they decide on it, and so have its digest."""

    async def decide(self, workflow_id: str, gate: str, decision: Any, **given: Any) -> None:
        if "digest" not in given:
            digest = None
            for _ in range(5):  # a run that is just continuing as new shows nothing for a moment
                if (digest := await self.digest(workflow_id, gate)) is not None:
                    break
                await asyncio.sleep(0.05)
            given["digest"] = digest
        await super().decide(workflow_id, gate, decision, **given)

    async def digest(self, workflow_id: str, gate: str) -> str | None:
        """Return the digest that a gate shows now."""
        try:
            shown = await self.pending(workflow_id)
        except InputError:  # an unknown run
            return None
        return next((item["digest"] for item in shown if item["kind"] == "approval" and item["name"] == gate), None)


@dataclass(frozen=True)
class Temporal:
    """A client of the server, a store and a task queue of the test's own, and the lane of its agents."""

    client: Client
    store: SQLiteStore
    name: str
    lane: Lane = "each"

    @property
    def people(self) -> "People":
        return self.people_who_wait(SECONDS)

    def people_who_wait(self, seconds: float) -> "People":
        """Return people who wait no longer for a worker to answer."""
        return People(self.client, timeout=seconds)

    def session(self, name: str = "s") -> str:
        """Return a session id that no other test has."""
        return f"{self.name}.{name}"

    @contextlib.asynccontextmanager
    async def worker(self, *agents: Agent, llm: Any = None, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker for these agents as long as the block."""
        options = {"store": self.store, "lane": self.lane, **options}
        plugin = StandfastPlugin(agents=agents, llm=llm, **options)
        async with Worker(self.client, task_queue=self.name, plugins=[plugin]) as worker:
            await until(lambda: worker.is_running)  # it has looked whether it can use its store
            yield worker

    async def elsewhere(self) -> "Temporal":
        """Return the same for a worker beside the first: a client has one worker of a task queue."""
        return replace(self, client=await connect(self.client.service_client.config.target_host))

    async def move_queue(self) -> None:
        """Let the next worker bring another store, as an operator does."""
        with contextlib.suppress(RPCError):
            await self.client.get_workflow_handle(f"standfast-store/{self.name}").terminate("another store")

    async def start(self, agent: Agent | str, message: str | None = "go", *, session: str = "s", **options: Any) -> Run:
        """Start an agent in a session of this test."""
        return await start_agent(
            self.client, agent, message=message, session_id=self.session(session), task_queue=self.name, **options
        )

    async def start_raw(self, agent: str, *arguments: Any, **options: Any) -> Run:
        """Start an agent's workflow with any input, as another program would."""
        workflow_id = options.pop("id", f"{agent}/{self.session(uuid4().hex[:8])}")
        started: Run = await self.client.start_workflow(
            agent, args=arguments, id=workflow_id, task_queue=self.name, result_type=dict[str, Any], **options
        )
        return started

    async def run(self, agent: Agent, message: str | None = "go", **options: Any) -> dict[str, Any]:
        """Start an agent and return its result."""
        return await result(await self.start(agent, message, **options))

    async def end_all(self) -> None:
        """End this test's leftover runs."""
        await self.move_queue()
        async for left in self.client.list_workflows(f"TaskQueue = '{self.name}' AND ExecutionStatus = 'Running'"):
            with contextlib.suppress(RPCError):  # it has ended in the meantime
                await self.client.get_workflow_handle(left.id).terminate("its test is over")

    async def messages(self, session: str = "s") -> list[Message]:
        return await self.store.load_messages(self.session(session))


async def result(handle: Run) -> dict[str, Any]:
    """Return a run's result when there is one.

    Asked again every few seconds: of some thousand long polls, the server forgets to answer one when the run ends.
    """
    for _ in range(SECONDS // 4):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4):
                return await handle.result()
    raise AssertionError(f"the run did not end: {await last_words(handle)}")


async def last_words(handle: Run) -> str:
    """Return where a run stands that does not end."""
    described = (await handle.describe()).raw_description
    names = [EventType.Name(event.event_type) for event in (await events(handle))[-5:]]
    activities = [
        f"{item.activity_type.name} attempt {item.attempt} {item.last_failure.message}"
        for item in described.pending_activities
    ]
    return f"{names}, pending: {activities}, task: {described.pending_workflow_task}"


async def failure(handle: Run) -> ApplicationError:
    """Return what a run failed with."""
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError), cause
    return cause


async def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until a condition, plain or async, gives something true, and return it."""
    pause = 0.01
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
                # A query costs the server, the worker and us some milliseconds, which the other tests could use.
                pause = max(pause, 0.03)
            if found:
                return found
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, 0.15)


async def pending(handle: Run, count: int = 1) -> list[dict[str, Any]]:
    """Return what waits for a person, as soon as there is that much."""

    async def enough() -> list[dict[str, Any]]:
        found = await waiting(handle)
        return found if len(found) >= count else []

    return cast("list[dict[str, Any]]", await until(enough))


async def waiting(handle: Run) -> list[dict[str, Any]]:
    """Return what waits for a person now."""
    found: list[dict[str, Any]] = await _answered(handle, "pending")
    return found


async def forget(temporal: Temporal, run: Run) -> None:
    """Make the server forget a run, as it does when its retention is over."""
    execution = WorkflowExecution(workflow_id=run.id)
    await temporal.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
    )

    async def is_gone() -> bool:
        try:
            await temporal.client.get_workflow_handle(run.id).describe()
        except RPCError:
            return not [one async for one in temporal.client.list_workflows(f"WorkflowId = '{run.id}'")]
        return False

    await until(is_gone)


async def goes_on_as_new(handle: Run, gate: str) -> None:
    """Let a run that waits at a gate continue as new: its history must be as long as `running.EVENTS` says."""
    latest = handle._client.get_workflow_handle(handle.id)
    before = (await latest.describe()).run_id

    async def has_moved() -> bool:
        return (await latest.describe()).run_id != before

    for number in range(12):
        await latest.signal("reject", {"gate": gate, "by": f"nobody {number}"})
    await until(has_moved)


def continue_after(monkeypatch: pytest.MonkeyPatch, events: int) -> None:
    """Let runs continue as new when their history has grown by some events since they could have done so at first.

    A limit for the whole history may be below what a run needs on a busy machine before it judges anything. It would
    continue as new for ever.
    """
    first = dict[str, int]()

    def is_long() -> bool:
        info = workflow.info()
        length = info.get_current_history_length()
        return length > first.setdefault(info.run_id, length) + events

    for module in (gate_keeper, agent_workflows, pipeline_workflows):
        monkeypatch.setattr(module, "is_long", is_long)


async def until_over(item: dict[str, Any], seconds: float = 0.3) -> None:
    """Wait until the deadline of the waiting item has passed, by the clock, whether a worker runs or not."""
    deadline = datetime.fromisoformat(item["deadline"]) + timedelta(seconds=seconds)
    await until(lambda: datetime.now(UTC) > deadline)


async def status(handle: Run) -> dict[str, Any]:
    described: dict[str, Any] = await _answered(handle, "status")
    return described


async def _answered(handle: Run, query: str) -> Any:
    """Return the answer to a query, which is repeated every few seconds, since the server loses some answers.

    A worker in a separate process may not have begun to poll yet.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(TimeoutError, NoWorkerError):
                    async with asyncio.timeout(10):
                        return await answer(handle._client, handle, query, timedelta(seconds=SECONDS))
    raise AssertionError(f"no answer to {query!r}: {await last_words(handle)}")


async def has_ended(handle: Run) -> bool:
    return (await status(handle))["status"] not in ("starting", "running", "waiting", "paused")


async def refusals(handle: Run) -> list[str]:
    """Return why the run could not use what it was sent."""
    return [refused["reason"] for refused in (await status(handle))["refused"]]


# --- histories ---


async def events(handle: Run) -> list[HistoryEvent]:
    """Return the events of one run of a chain, those of the handle."""
    return list((await handle.fetch_history()).events)


async def chain(client: Client, handle: Run) -> list[list[HistoryEvent]]:
    """Return the events of all runs of a chain that continued as new."""
    runs = []
    run_id = handle.first_execution_run_id or handle.result_run_id
    while run_id:
        one = await events(client.get_workflow_handle(handle.id, run_id=run_id))
        runs.append(one)
        run_id = one[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return runs


def wedges(history: Sequence[HistoryEvent]) -> list[str]:
    """Return why workflow tasks failed.

    Four causes are nobody's fault: a message that arrived while the task ended the run, more messages during a task
    than the server buffers, a reset, and what a worker begins again in the order of the history.
    """
    failed = [
        event.workflow_task_failed_event_attributes
        for event in history
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    usual = (
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
    )
    return [
        f"{WorkflowTaskFailedCause.Name(item.cause)}: {item.failure.message}"
        for item in failed
        if item.cause not in usual
    ]


async def check_healthy(handle: Run) -> None:
    """Check that no workflow task has failed, in this run or those before it."""
    failed = wedges(await events(handle))
    assert not failed, failed


def scheduled(history: Sequence[HistoryEvent]) -> list[str]:
    """Return the types of the activities, in the order in which they were asked for."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


def raw_payload(data: bytes, encoding: str = "json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding.encode()}, data=data)


def plain(value: Any) -> Any:
    """Return a value as another program reads it."""
    return json.loads(json.dumps(value))


# --- an agent that asks a person once ---


def ask_once(messages: Sequence[Message], tools: Any) -> Any:
    """Answer as a model that asks a person one question and then is done."""
    if any(message.role == "tool" for message in messages):
        return "done"
    return asks_for(call("ask", "c1", question="Who?"))


clerk = Agent("clerk", tools=[ask])


@contextlib.asynccontextmanager
async def question(temporal: Temporal, agent: Agent = clerk, **options: Any) -> AsyncIterator[Run]:
    """Give a run that waits for the answer to call c1; it must still be healthy and able to end when the block ends."""
    async with temporal.worker(agent, llm=ScriptedModel(ask_once), **options):
        handle = await temporal.start(agent)
        await pending(handle)
        yield handle
        with contextlib.suppress(WorkflowUpdateFailedError, RPCError):  # answered already, or ended
            await handle.execute_update("answer", {"text": "Ada", "tool_call_id": "c1"})
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)


def ask_models_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run pause as soon as its model could not be called; an agent's own limit would end it."""
    usual = model_calls.model_options
    monkeypatch.setattr(
        model_calls, "model_options", lambda retry, asks: usual(replace(retry, maximum_attempts=1), asks)
    )
