"""An operator fails, completes, pauses, resets or times out each activity of a run, in each of its states.

No run hangs, no effect happens twice, senders learn the outcome, and the model reads what happened.
"""

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.held_activities import Hold, Holding
from support.operators import OperatedActivity
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, check_healthy, events, last_words, until, waiting
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.service import RPCError
from temporalio.worker import Worker

from standfast import Agent, Approval, InterruptError, Loop, Message, pipeline, tool
from standfast.temporal import StandfastPlugin, start_pipeline
from standfast.testing import ScriptedModel

ENDED = 90  # seconds after which a run hangs
effects: dict[str, int] = {}


@dataclass
class Scene:
    """A run, the activity of it that an operator acts on, and what people have sent it."""

    temporal: Temporal
    name: str
    hold: Hold
    run: Run | None = None
    sent: dict[str, str] = field(default_factory=dict)
    acted: bool = False

    @property
    def key(self) -> str:
        return f"{self.temporal.name}.{self.name}"


# --- what runs: every activity type of ours is reached by one of these ---


@tool(approval=Approval(approvers=["ada", "bob"]))
async def pay(order: str) -> str:
    """Pay."""
    effects[order] = effects.get(order, 0) + 1
    return "paid"


@tool
async def charge(order: str) -> str:
    """Charge."""
    effects[order] = effects.get(order, 0) + 1
    return "charged"


@tool
async def ask(order: str) -> str:
    """Ask a person."""
    raise InterruptError(f"Who gets {order}?")


helper = Agent("helper", model="helper")


def hook(context: Any) -> None:
    """Does nothing; that it is there makes an activity."""


boss = Agent(
    "boss", model="boss", tools=[pay, ask, helper], on_start=hook, on_complete=hook, loop=Loop(on_unknown="ask"),
)  # fmt: skip
flow = (
    pipeline("flow", input=str)
    .step("allow", approval=Approval(approvers=["ada", "bob"]))
    .step("charge", run=charge, input=lambda ctx: {"order": ctx.input})
    .step("say", agent=helper, input=lambda ctx: "say")
    .build()
)


def answer(messages: Any, tools: Any) -> Any:
    """Answer as the model of either agent."""
    said = next(message.content for message in messages if message.role == "user")
    if not said.startswith("order "):
        return "said"
    if any(message.role == "tool" for message in messages):
        return "done"
    order = said.removeprefix("order ")
    return asks_for(call("pay", "p1", order=order), call("ask", "q1", order=order), call("helper", "h1", message="say"))


async def start(scene: Scene) -> Run:
    if scene.name.startswith("flow"):
        options: Any = {"run_key": scene.key, "task_queue": scene.temporal.name}
        return await start_pipeline(scene.temporal.client, flow, input=scene.key, **options)
    return await scene.temporal.start(boss, f"order {scene.key}", session=scene.name)


# --- what operators do ---


def operated(scene: Scene, hold: Hold | None = None) -> OperatedActivity:
    """Return the activity that is held."""
    assert scene.run is not None
    return OperatedActivity(scene.temporal.client, scene.run.id, (hold or scene.hold).activity_id)


async def fails(scene: Scene) -> None:
    await operated(scene).fail()


async def fails_to_be_retried(scene: Scene) -> None:
    await operated(scene).fail_to_be_retried()


async def completes_with_null(scene: Scene) -> None:
    await operated(scene).complete()


async def completes_with_junk(scene: Scene) -> None:
    await operated(scene).complete_with_junk()


async def pauses(scene: Scene) -> None:
    await operated(scene).pause()
    await asyncio.sleep(0.5)
    scene.hold.go_on.set()
    await asyncio.sleep(0.5)
    await operated(scene).unpause()


async def resets(scene: Scene) -> None:
    await operated(scene).reset()


async def times_out(scene: Scene) -> None:
    await operated(scene).time_out()
    await asyncio.sleep(1)


async def cancels(scene: Scene) -> None:
    assert scene.run is not None
    await scene.run.cancel()


ACTS: dict[str, Any] = {
    "fails": fails, "fails to be retried": fails_to_be_retried, "completes with null": completes_with_null,
    "completes with junk": completes_with_junk, "pauses": pauses, "resets": resets, "times out": times_out,
    "cancels the run": cancels,
}  # fmt: skip

# --- the people of a run ---


async def look_after(scene: Scene) -> None:
    """Decide, answer and resume until the run has ended. Each item is decided on by two at once."""
    run = scene.run
    assert run is not None
    done: dict[str, float] = {}
    numbers = itertools.count()
    while (await run.describe()).status == WorkflowExecutionStatus.RUNNING:
        with contextlib.suppress(RPCError, WorkflowQueryFailedError, TimeoutError):
            async with asyncio.timeout(5):
                for item in await run.query("pending"):
                    key = f"{item['kind']}/{item['name']}/{item['since']}"
                    if time.monotonic() - done.get(key, 0) > 5:  # a run that was reset may ask to try again
                        done[key] = time.monotonic()
                        await react(scene, item, numbers)
        await asyncio.sleep(0.4)


async def react(scene: Scene, item: dict[str, Any], numbers: Any) -> None:
    name = item["name"]
    match item["kind"]:
        case "approval":
            for who in ("ada", "bob"):
                await send(scene, "approve", numbers, gate=name, by=who, digest=item["digest"])
        case "question":
            await send(scene, "answer", numbers, text="Eve", tool_call_id=name)
            await send(scene, "message", numbers, text="and hurry")
        case "unknown":
            await send(scene, "resolve", numbers, tool_call_id=name, decision="leave")
        case "pause":
            await send(scene, "resume", numbers, action="retry")


async def send(scene: Scene, name: str, numbers: Any, **data: Any) -> None:
    assert scene.run is not None
    sent_id = f"{name}-{next(numbers)}"
    scene.sent[sent_id] = name
    await scene.run.signal(name, {**data, "id": sent_id})


# --- the table ---

OF_AGENTS = [
    "standfast.open", "standfast.start", "call_model", "standfast.decide", "pay", "ask", "standfast.commit",
    "standfast.keep", "standfast.finish", "standfast.show", "standfast.settle", "standfast.recall",
    "standfast.answered", "standfast.attach", "standfast.export", "call_model#2", "standfast.decide#2",
    "standfast.commit#2", "standfast.refused",
]  # fmt: skip
OF_PIPELINES = ["standfast.open_pipeline", "standfast.step", "standfast.decide", "charge", "standfast.show",
    "standfast.decide#2", "standfast.step#2", "standfast.step#3",
]  # fmt: skip
LOCAL = ("standfast.open", "standfast.open_pipeline", "standfast.show")


def held(activity: str, is_done: bool) -> Hold:
    name, _, number = activity.partition("#")
    return Hold(name, is_done, name in LOCAL, int(number or 1) - 1)


async def prepare(scene: Scene, holding: Holding) -> None:
    """Bring a run to where it asks for the activity, if people alone do not."""
    run, numbers = scene.run, itertools.count(100)
    assert run is not None
    match scene.hold.activity:
        case "standfast.settle":
            lost = holding.holds[run.id, "pay"] = Hold("pay")
            await react(scene, await waits_for(run, "approval"), numbers)
            await until(lost.inside.is_set)
            await operated(scene, lost).fail(kind="ActivityReset")
            lost.go_on.set()
        case "standfast.export":
            scene.sent["export"] = "export"
            await run.signal("export", {"id": "export"})
        case "standfast.recall":
            await waits_for(run, "approval")
            scene.run = await reset(scene.temporal, run, len(await tasks(run)) - 1)
        case "standfast.answered" | "standfast.attach" | "standfast.refused":
            await react(scene, await waits_for(run, "approval"), numbers)
            await waits_for(run, "question")
            at = await first_child(run) if scene.hold.activity == "standfast.attach" else len(await tasks(run)) - 1
            scene.run = await reset(scene.temporal, run, at)


async def waits_for(run: Run, kind: str) -> dict[str, Any]:
    async def item() -> dict[str, Any] | None:
        return next((one for one in await waiting(run) if one["kind"] == kind), None)

    found: dict[str, Any] = await until(item)
    return found


async def first_child(run: Run) -> int:
    """Return the workflow task that has started the first child."""
    completed = [
        one.start_child_workflow_execution_initiated_event_attributes.workflow_task_completed_event_id
        for one in await events(run)
        if one.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
    ]
    return (await tasks(run)).index(completed[0])


async def play(scene: Scene, act: Any, holding: Holding) -> str:
    """Play a scene to its end; return what went wrong."""
    hold = scene.hold
    run_id = f"flow/{scene.key}" if scene.name.startswith("flow") else f"boss/{scene.key}"
    holding.holds[run_id, hold.activity] = hold
    scene.run = await start(scene)
    assert scene.run.id == run_id
    await prepare(scene, holding)
    people = asyncio.create_task(look_after(scene))
    try:
        await until(hold.inside.is_set, ENDED)
        await act(scene)
        scene.acted = True
        await asyncio.sleep(0.3)
        hold.go_on.set()
        async with asyncio.timeout(ENDED):
            try:
                ended = (await scene.run.result())["status"]
            except WorkflowFailureError as error:
                ended = f"failed: {error.cause}"
        await people
        return await problems(scene, ended)
    except (TimeoutError, RPCError) as error:
        where = "hangs" if scene.acted else "was never there"
        return f"{where}: {error!r} {await last_words(scene.run)}"
    finally:
        people.cancel()
        hold.go_on.set()


async def problems(scene: Scene, ended: str) -> str:
    """Say what people or the model were told that is not so."""
    run, found = scene.run, list[str]()
    assert run is not None
    await check_healthy(run)
    if not ended.startswith("failed"):  # else senders learn that what they sent does not count, or may count
        outcomes = {one: await run.query("standfast.outcome", one) for one in scene.sent}
        found += [f"the sender of {one} is not told" for one, outcome in outcomes.items() if not outcome]
    count = effects.get(scene.key, 0)
    if count > 1:
        found.append(f"paid {count} times")
    for message in await scene.temporal.store.load_messages(scene.key):
        if message.tool_call_id == "p1" and (what := contradiction(message, count)):
            found.append(what)
    return "; ".join(found) + (f" (ended: {ended})" if found else "")


def contradiction(message: Message, count: int) -> str:
    """Say how the result of a payment contradicts what happened."""
    if message.content == "paid" and not count:
        return "told that it paid, and it did not"
    if "Not run" in message.content and count:
        return "told that it did not pay, and it did"
    return ""


BEFORE_ITS_REPORT = ("fails", "completes with junk", "times out")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("kind", "activities"), [("flow", OF_PIPELINES), ("boss", OF_AGENTS)], ids=["flow", "boss"])
@pytest.mark.parametrize(
    ("act", "is_done"), [*((act, False) for act in ACTS), *((act, True) for act in BEFORE_ITS_REPORT)]
)
async def test_an_operator_may_act_on_any_activity_at_any_time(
    temporal: Temporal, act: str, is_done: bool, kind: str, activities: list[str]
) -> None:
    holding = Holding()
    scenes = [
        Scene(temporal, f"{kind}-{activity.replace('#', '-')}", held(activity, is_done)) for activity in activities
    ]
    plugin = StandfastPlugin(
        agents=[boss, helper], pipelines=[flow], store=temporal.store, llm=lambda name: ScriptedModel(answer)
    )
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], interceptors=[holding]):
        slots = asyncio.Semaphore(8)

        async def one(scene: Scene) -> str:
            async with slots:
                return await play(scene, ACTS[act], holding)

        found = await asyncio.gather(*map(one, scenes))
    assert {scene.name: one for scene, one in zip(scenes, found, strict=True) if one} == {}
