"""Runs wedged by a raw update beside a query: the doctor finds them, and its advice frees them."""

import asyncio
import json
import shlex
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from support.commands import standfast
from support.temporal_runs import Run, Temporal, check_healthy, events, result, until
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType
from temporalio.worker import Worker, WorkerConfig

from standfast import Agent, Message, ToolContext, tool
from standfast.temporal import StandfastPlugin
from standfast.temporal import plugin as plugins
from standfast.temporal.client.queues.servers import temporal_binary
from standfast.temporal.client.runs.stuck import find_stuck
from standfast.testing import ScriptedModel

_SOON = timedelta(seconds=20)
_RUNS, _ROUNDS = 8, 6


class ActivitiesAlone(StandfastPlugin):
    """Makes a worker that carries no workflow."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        return {**super().configure_worker(config), "workflows": []}


class WorkflowsAlone(StandfastPlugin):
    """Makes a worker that runs no activity but local ones."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        return {**super().configure_worker(config), "no_remote_activities": True}


class Till:
    """An agent that charges three times, and what holds its calls up."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.open: dict[str, threading.Event] = {"c1": threading.Event(), "c3": threading.Event()}

        @tool
        def charge(ctx: ToolContext) -> str:
            """Charge."""
            self.charged.append(f"{ctx.session_id} {ctx.tool_call_id}")
            if ctx.tool_call_id in self.open:
                assert self.open[ctx.tool_call_id].wait(20)
            return "charged"

        self.agent = Agent("teller", tools=[charge])

    def model(self, messages: Sequence[Message], tools: Any) -> Any:
        done = sum(message.role == "tool" for message in messages)
        return asks_for(call("charge", f"c{done + 1}")) if done < 3 else "done"

    def plugin(self, temporal: Temporal, kind: type[StandfastPlugin]) -> StandfastPlugin:
        return kind(agents=[self.agent], store=temporal.store, llm=ScriptedModel(self.model))

    def has_charged(self, call_id: str) -> bool:
        return sum(one.endswith(f" {call_id}") for one in self.charged) == _RUNS


async def say_by_update(run: Run) -> None:
    await run.execute_update("message", {"text": "hello"}, rpc_timeout=_SOON)


async def say_beside_queries(
    temporal: Temporal,
    till: Till,
    elsewhere: Temporal,
    say: Callable[[Run], Awaitable[None]],
) -> list[Run]:
    """Return runs that were asked and told something while no worker had their workflows; updates wedge some."""

    def workflows() -> Worker:
        plugin = till.plugin(temporal, WorkflowsAlone)
        return Worker(elsewhere.client, task_queue=temporal.name, plugins=[plugin])

    async with workflows():
        handles = [await temporal.start(till.agent, session=f"{id(till)}.{number}") for number in range(_RUNS)]
        await until(lambda: till.has_charged("c1"))
    asked: list[asyncio.Future[Any]] = []
    for one in handles:
        asked.append(asyncio.ensure_future(one.query("status", rpc_timeout=_SOON)))
        await asyncio.sleep(0.01)  # the order in which they reach the server matters
        asked.append(asyncio.ensure_future(say(one)))
        await asyncio.sleep(0.01)
    till.open["c1"].set()

    async def is_reported(one: Run) -> bool:
        kinds = [event.event_type for event in await events(one)]
        return kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED) == 2

    for one in handles:
        await until(lambda one=one: is_reported(one))
    async with workflows():
        await asyncio.gather(*asked)
        await until(lambda: till.has_charged("c3"))
    return handles


@pytest.mark.slow
async def test_the_doctor_finds_a_run_that_an_update_has_wedged_and_its_rescue_doubles_nothing(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "keep_order_beside_queries", lambda worker: None)
    elsewhere = await temporal.elsewhere()
    for _ in range(_ROUNDS):
        till = Till()
        hands = Worker(temporal.client, task_queue=temporal.name, plugins=[till.plugin(temporal, ActivitiesAlone)])
        async with hands:
            handles = await say_beside_queries(temporal, till, elsewhere, say_by_update)
            plugin = till.plugin(temporal, WorkflowsAlone)
            async with Worker(elsewhere.client, task_queue=temporal.name, plugins=[plugin]):
                till.open["c3"].set()
                stuck = await settled(temporal, handles)
                if stuck:
                    await check_doctor(temporal, stuck)
                    for one in stuck:
                        await rescue(temporal, one.rescue)
                for handle in handles:
                    latest: Run = temporal.client.get_workflow_handle(handle.id)
                    assert (await result(latest))["status"] == "complete"
                assert sorted(till.charged) == sorted(set(till.charged))
                assert len(till.charged) == 3 * _RUNS
        if stuck:
            return
    raise AssertionError("no run was wedged: has the SDK mended updates beside queries? Then the doctor need not know")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("door", ["signal", "update"])
async def test_what_is_said_beside_a_query_wedges_nothing(temporal: Temporal, door: str) -> None:
    till, elsewhere = Till(), await temporal.elsewhere()

    async def say(run: Run) -> None:
        await (say_by_update(run) if door == "update" else temporal.people.message(run.id, "hello"))

    async with Worker(temporal.client, task_queue=temporal.name, plugins=[till.plugin(temporal, ActivitiesAlone)]):
        handles = await say_beside_queries(temporal, till, elsewhere, say)
        plugin = till.plugin(temporal, WorkflowsAlone)
        async with Worker(elsewhere.client, task_queue=temporal.name, plugins=[plugin]):
            till.open["c3"].set()
            for handle in handles:
                assert (await result(handle))["status"] == "complete"
                await check_healthy(handle)
    assert len(set(till.charged)) == len(till.charged) == 3 * _RUNS


async def settled(temporal: Temporal, handles: list[Run]) -> list[Any]:
    """Return which runs are stuck, as soon as all others have ended."""

    async def look() -> list[Any] | None:
        found = await find_stuck(temporal.client, temporal.name, 100)
        ended = [(await one.describe()).close_time is not None for one in handles]
        return found if len(found) + sum(ended) >= len(handles) else None

    async def is_settled() -> bool:
        return await look() is not None

    await until(is_settled)
    return await find_stuck(temporal.client, temporal.name, 100)


async def check_doctor(temporal: Temporal, stuck: list[Any]) -> None:
    said = await standfast(temporal, "doctor", "--task-queue", temporal.name, "-o", "json")
    (runs,) = [row for row in json.loads(said.stdout) if row["check"] == "runs"]
    assert not runs["ok"]
    for one in stuck:
        assert one.workflow_id in runs["found"]
        assert one.rescue in runs["found"]
        assert "[TMPRL1100]" in one.why


async def rescue(temporal: Temporal, command: str) -> None:
    """Do what the doctor says."""
    _, *words = shlex.split(command)
    address = temporal.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        temporal_binary(),
        *words,
        "--address",
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
