"""Runs that `record.py` records beside the plain ones: that wait, lose something, are reset, or tell people."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.worker import Worker

from standfast import (
    Agent,
    AgentContext,
    Approval,
    InterruptError,
    Loop,
    Step,
    StoreError,
    pipeline,
    sqlite_store,
    tool,
)
from standfast.pipelines import StepContext
from standfast.temporal import StandfastClient, StandfastPlugin, Webhook, approval, connect, start_agent, start_pipeline
from standfast.testing import ModelServer, Reply, ScriptedModel

Saved = list[tuple[str, str]]  # ids of workflows and runs


@dataclass(frozen=True)
class World:
    """Where a run is recorded: a server, a queue and a store of its own."""

    client: Client
    name: str
    folder: Path

    @property
    def people(self) -> StandfastClient:
        return StandfastClient(self.client)

    @contextlib.asynccontextmanager
    async def worker(self, *agents: Agent, model: Any = None, **options: Any) -> AsyncIterator[None]:
        client = await connect(self.client.service_client.config.target_host)  # which has one worker of a queue
        workflows = options.pop("workflows", ())
        async with sqlite_store(self.folder / f"{self.name}.db") as store:
            around = options.pop("around", lambda store: store)
            plugin = StandfastPlugin(agents=agents, store=around(store), llm=model, **options)
            async with Worker(client, task_queue=self.name, workflows=workflows, plugins=[plugin]):
                yield

    async def start(self, agent: Agent) -> Any:
        return await start_agent(self.client, agent, message="Go", session_id=self.name, task_queue=self.name)

    async def waits_for(self, run: Any, kind: str, name: str | None = None) -> None:
        while not any(
            item["kind"] == kind and name in (None, item["name"]) for item in await self.people.pending(run.id)
        ):
            await asyncio.sleep(0.02)


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def ended(run: Any) -> Saved:
    await run.result()
    return [(run.id, run.result_run_id)]


# --- calls that are lost ---

_slow = [True]


@tool(timeout=timedelta(milliseconds=200))
async def vanish(what: str) -> str:
    """Take too long, the first time."""
    await asyncio.sleep(5 if _slow.pop() else 0)
    _slow.append(False)
    return "done"


risky = Agent("risky", tools=[vanish], loop=Loop(on_unknown="ask"))


async def unknown(world: World) -> Saved:
    """A call of unknown outcome, which a person has run again."""
    async with world.worker(risky, model=ScriptedModel([asks("vanish", what="x"), "done"])):
        run = await world.start(risky)
        await world.waits_for(run, "unknown")
        call = (await world.people.pending(run.id))[0]["name"]
        await world.people.resolve(run.id, call, "not-happened", by="ada", reason="looked")
        return await ended(run)


@tool
async def inquire(what: str) -> str:
    """Ask a person."""
    raise InterruptError(what)


@tool
async def stumble(what: str) -> str:
    """Fail."""
    raise ValueError(what)


modest = Agent("modest", tools=[inquire, stumble], loop=Loop(stuck_threshold=1, on_stuck="escalate"))


async def answered(world: World) -> Saved:
    """Answers to a call and to the agent itself, whose senders are told when the store has them."""
    turns = [asks("inquire", what="which"), asks("stumble", what="x"), "done"]
    async with world.worker(modest, model=ScriptedModel(turns)):
        run = await world.start(modest)
        for text in ("red", "skip it"):
            await world.waits_for(run, "question")
            await world.people.answer(run.id, text, by="ada")
        return await ended(run)


class Refusing:
    """A store that refuses some methods while it is told to."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.refuses: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in self.refuses:
            return method

        async def while_refused(*arguments: Any, **options: Any) -> Any:
            if name in self.refuses:
                raise StoreError("the database is away")
            return await method(*arguments, **options)

        return while_refused


@tool
async def put(what: str) -> str:
    """Put something."""
    return "there"


putter = Agent("putter", tools=[put])


async def storeless(world: World) -> Saved:
    """A call that could not be claimed, and a run that waits for its store in sight of people."""
    made: list[Refusing] = []

    def around(store: Any) -> Refusing:
        made.append(Refusing(store))
        return made[0]

    model = ScriptedModel([asks("put", what="x"), "done"])
    async with world.worker(putter, model=model, around=around, store_patience=0.2):
        made[0].refuses = {"claim", "settle"}
        run = await world.start(putter)
        await world.waits_for(run, "store")
        made[0].refuses = set()
        return await ended(run)


# --- hooks, pauses, workers, webhooks ---


def note(context: AgentContext) -> None:
    """A hook that does nothing."""


hooked = Agent("hooked", on_start=note, on_complete=note)


async def hooks(world: World) -> Saved:
    """Hooks at the start and at the end."""
    async with world.worker(hooked, model=ScriptedModel(["done"])):
        return await ended(await world.start(hooked))


async def paused(world: World) -> Saved:
    """A hook that raises until it is fixed and the run resumed."""
    fails = iter([True])

    def on_start(context: AgentContext) -> None:
        if next(fails, False):
            raise RuntimeError("no desk")

    anxious = Agent("anxious", on_start=on_start)
    async with world.worker(anxious, model=ScriptedModel(["done"])):
        run = await world.start(anxious)
        await world.waits_for(run, "pause")
        await world.people.resume(run.id, by="ada")
        return await ended(run)


absent, present = Agent("absent"), Agent("present")


async def awaited(world: World) -> Saved:
    """A run whose agent no worker has at first."""
    async with world.worker(present, model=ScriptedModel([])):
        run = await world.start(absent)
        await world.waits_for(run, "worker")
    async with world.worker(absent, model=ScriptedModel(["done"])):
        return await ended(run)


@tool(approval=Approval(message="Pay?", remind_every="1s"))
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


payer = Agent("payer", tools=[pay])


async def told(world: World) -> Saved:
    """People are told by a webhook, and reminded."""
    async with ModelServer(lambda request: Reply(b"ok")) as server:
        hook = Webhook(name="people", url=server.url)
        model = ScriptedModel([asks("pay", amount=5), "done"])
        async with world.worker(payer, model=model, webhooks=[hook]):
            run = await world.start(payer)
            while len(server.requests) < 2:
                await asyncio.sleep(0.02)
            gate = (await world.people.pending(run.id))[0]
            await world.people.decide(run.id, gate["name"], "approve", by="ada", digest=gate["digest"])
            return await ended(run)


# --- agents of agents, after a reset ---


async def reset(world: World, run: Any, task: int = 0, *, with_signals: bool = False) -> Any:
    """Reset a run to a workflow task, and return the new one, which is sent nothing again unless `with_signals`."""
    events = (await run.fetch_history()).events
    tasks = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
    again = await world.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=world.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.result_run_id),
            workflow_task_finish_event_id=tasks[task],
            request_id=uuid4().hex,
            reason="to be recorded",
            reset_reapply_exclude_types=[
                *([] if with_signals else [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL]),
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
            ],
        )
    )
    return world.client.get_workflow_handle(run.id, run_id=again.run_id)


inner = Agent("inner")
outer = Agent("outer", tools=[inner])


async def attached(world: World) -> Saved:
    """A run that is reset to before it called an agent, and finds what that did."""
    model = ScriptedModel([asks("inner", message="Look!"), "seen", "done"])
    async with world.worker(inner, outer, model=model):
        first = await world.start(outer)
        await first.result()
        run = await reset(world, first)
        await run.result()
        return [(run.id, run.run_id)]


# --- pipelines and workflows of the user's ---


def is_enough(context: StepContext) -> bool:
    """Whether the loop ends."""
    return "enough" in str(context.prev)


speaker = Agent("speaker")
part = pipeline("part").step("deep", agent=speaker).step("keep", run=put, input=lambda ctx: {"what": "deep"}).build()
staged = (
    pipeline("staged")
    .branch("route", on=lambda ctx: "left", cases={"left": Step("left", run=put, input=lambda ctx: {"what": "left"})})
    .loop("again", Step("round", agent=speaker), until=is_enough, max=3, on_limit="continue")
    .step("below", pipeline=part)
    .build()
)


async def stages(world: World) -> Saved:
    """A branch, a loop and a pipeline in a pipeline."""
    model = ScriptedModel(["once", "more", "enough", "deep"])
    async with world.worker(speaker, model=model, pipelines=[staged, part]):
        run = await start_pipeline(world.client, staged, run_key=world.name, user_id="zoe", task_queue=world.name)
        return await ended(run)


def sayer(say: Callable[[StepContext], str]) -> Any:
    return pipeline("sayer").step("say", agent=speaker, input=say).build()


def raises(context: StepContext) -> str:
    raise RuntimeError("no words")


async def raised(world: World) -> Saved:
    """A function of a pipeline that raises until the run is resumed; deploys did not fix runs then."""
    fails = iter([True])
    async with world.worker(
        speaker,
        model=ScriptedModel(["said"]),
        pipelines=[sayer(lambda ctx: raises(ctx) if next(fails, False) else "go")],
    ):
        run = await start_pipeline(world.client, "sayer", run_key=world.name, task_queue=world.name)
        await world.waits_for(run, "pause")
        await world.people.resume(run.id, by="ada")
        return await ended(run)


async def mended(world: World) -> Saved:
    """A function of a pipeline that raises, raises again when resumed, and is mended by a deploy."""
    async with world.worker(speaker, model=ScriptedModel([]), pipelines=[sayer(raises)]):
        run = await start_pipeline(world.client, "sayer", run_key=world.name, task_queue=world.name)
        await world.waits_for(run, "pause")
        (before,) = await world.people.pending(run.id)
        await world.people.resume(run.id, by="ada")
        while (await world.people.pending(run.id)) in ([], [before]):
            await asyncio.sleep(0.02)
    async with world.worker(speaker, model=ScriptedModel(["said"]), pipelines=[sayer(lambda ctx: "go")]):
        return await ended(run)


@workflow.defn(name="Release", sandboxed=False)
class Release:
    """A workflow of a user's that asks twice."""

    @workflow.run
    async def run(self) -> list[dict[str, Any]]:
        first = await approval("test", message="Tested?", approvers=["ada", "bob"], quorum=2)
        second = await approval("ship", requester="ada", exclude_requester=True, timeout="1s", on_timeout="approve")
        return [first, second]


async def asked(world: World) -> Saved:
    """Gates in a workflow of the user's."""
    async with world.worker(present, model=ScriptedModel([]), workflows=[Release]):
        run = await world.client.start_workflow("Release", id=world.name, task_queue=world.name)
        await world.waits_for(run, "approval", "test")
        await run.signal("approve", {"gate": "test", "by": "mallory"})
        await world.people.decide(run.id, "test", "approve", by="ada")
        await run.execute_update("decide", {"gate": "test", "decision": "approve", "by": "bob"})  # as others do
        return await ended(run)


RECORDINGS: dict[str, Callable[[World], Awaitable[Saved]]] = {
    one.__name__: one
    for one in (unknown, answered, storeless, hooks, paused, awaited, told, attached, stages, raised, mended, asked)
}
