"""An operator completes by hand, with an unreadable value, what a guarded function, a gate or an agent waits for.

Nothing loops, nothing hangs, and nothing runs twice.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, pending, raw_payload, until, waiting
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest
from temporalio.exceptions import FailureError
from temporalio.worker import Worker

from integration.temporal.test_failed_by_hand import fail
from standfast import Agent, Approval
from standfast.effects import effect
from standfast.temporal import StandfastPlugin, execute_effect
from standfast.testing import ScriptedModel

UNREADABLE: dict[str, Payload | None] = {
    "not JSON": raw_payload(b"{nope"),
    "unknown": raw_payload(b"{}", "unknown"),
    "no encoding": Payload(data=b"\xff\xfe"),
    "another shape": raw_payload(b'{"a": 1}'),
    "nothing": None,
}
BY_QUEUE: dict[str, Any] = {}


@workflow.defn(sandboxed=False)
class Purchase:
    @workflow.run
    async def run(self, name: str) -> list[str]:
        charge = BY_QUEUE[f"{workflow.info().task_queue}/{name}"]
        try:
            return ["returned", await execute_effect(charge, "a", start_to_close_timeout=timedelta(seconds=30))]
        except FailureError as error:
            return [getattr(error, "type", None) or type(error).__name__, str(error.cause or error)]


class Shop:
    """A worker whose charges are held up until they may go on."""

    def __init__(self, temporal: Temporal) -> None:
        self.temporal, self.go_on, self.charged = temporal, asyncio.Event(), list[str]()

        async def charge(order: str) -> str:
            await self.go_on.wait()
            self.charged.append(order)
            return f"charged {order}"

        async def ship(order: str) -> str:
            return await charge(order)

        activities = [
            activity.defn(effect(temporal.store)(charge)),
            activity.defn(effect(temporal.store, approval=Approval())(ship)),
        ]
        BY_QUEUE.update((f"{temporal.name}/{one.__name__}", one) for one in activities)
        plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
        options: dict[str, Any] = {"workflows": [Purchase], "activities": activities}
        self.worker = Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], **options)

    async def begin(self, what: str, name: str = "s") -> Run:
        run: Run = await self.temporal.client.start_workflow(
            "Purchase", what, id=self.temporal.session(name), task_queue=self.temporal.name
        )
        return run


async def put_in(temporal: Temporal, run: Run, name: str, payload: Payload | None) -> None:
    """Complete an activity of a run, as soon as it runs, with any payload."""

    async def find() -> str:
        described = (await run.describe()).raw_description
        return next((one.activity_id for one in described.pending_activities if one.activity_type.name == name), "")

    found = RespondActivityTaskCompletedByIdRequest(
        namespace="default",
        workflow_id=run.id,
        activity_id=await until(find),
        result=None if payload is None else Payloads(payloads=[payload]),
    )
    await temporal.client.workflow_service.respond_activity_task_completed_by_id(found)


async def told(run: Run) -> Any:
    return await asyncio.wait_for(run.result(), 20)


async def test_what_cannot_be_read_instead_of_an_effects_result_fails_the_call_in_words(
    temporal: Temporal,
) -> None:
    shop = Shop(temporal)
    async with shop.worker:
        runs = {name: await shop.begin("charge", name.replace(" ", "-")) for name in UNREADABLE}
        for name, run in runs.items():
            await put_in(temporal, run, "charge", UNREADABLE[name])
        found = {name: await told(run) for name, run in runs.items()}
        shop.go_on.set()
        for run in runs.values():
            await check_healthy(run)
    said = "charge was completed by hand with an invalid result"
    assert {name for name, (kind, _) in found.items() if kind == "InputError"} == {*UNREADABLE} - {"nothing"}
    assert all(said in text for kind, text in found.values() if kind == "InputError")
    assert found["nothing"] == ["returned", None]


async def test_what_cannot_be_read_instead_of_a_record_of_a_decision_is_recorded_once_more(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, held, usual, records = Shop(temporal), asyncio.Event(), type(temporal.store).record_decision, list[Any]()

    async def record(self: Any, *arguments: Any, **options: Any) -> Any:
        records.append(arguments)
        if len(records) <= len(UNREADABLE):
            await held.wait()
        return await usual(self, *arguments, **options)

    monkeypatch.setattr(type(temporal.store), "record_decision", record)
    async with shop.worker:
        run = await shop.begin("ship")
        (item,) = await pending(run)
        await run.signal("approve", {"gate": "ship", "digest": item["digest"], "by": "ada"})
        for number, payload in enumerate(UNREADABLE.values(), 1):
            await until(lambda number=number: len(records) >= number)
            await put_in(temporal, run, "standfast.decide", payload)
        shop.go_on.set()
        assert await told(run) == ["returned", "charged a"]
        held.set()
        await check_healthy(run)
    assert shop.charged == ["a"]


@pytest.mark.parametrize("name", ["not JSON", "unknown"])
async def test_what_cannot_be_read_in_the_failure_of_a_record_of_a_decision_fails_the_call_in_words(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shop, held, inside = Shop(temporal), asyncio.Event(), asyncio.Event()

    async def record(self: Any, *arguments: Any, **options: Any) -> None:
        inside.set()
        await held.wait()

    details = UNREADABLE[name]
    assert details is not None
    monkeypatch.setattr(type(temporal.store), "record_decision", record)
    async with shop.worker:
        run = await shop.begin("ship")
        (item,) = await pending(run)
        await run.signal("approve", {"gate": "ship", "digest": item["digest"], "by": "ada"})
        await inside.wait()
        await fail(temporal, run, "standfast.decide", "AnyError", [details])
        assert await told(run) == ["ActivityError", "AnyError: by hand"]
        held.set()
        await check_healthy(run)
    assert shop.charged == []


@pytest.mark.parametrize("name", ["not JSON", "another shape"])
async def test_what_cannot_be_read_instead_of_the_decisions_before_a_reset_is_looked_up_again_after_a_resume(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shop, held, usual, looks = Shop(temporal), asyncio.Event(), type(temporal.store).load_decisions, list[Any]()

    async def look(self: Any, *arguments: Any, **options: Any) -> Any:
        looks.append(arguments)
        if len(looks) == 1:
            await held.wait()
        return await usual(self, *arguments, **options)

    async with shop.worker:
        shop.go_on.set()
        run = await shop.begin("ship")
        (item,) = await pending(run)
        await run.signal("approve", {"gate": "ship", "digest": item["digest"], "by": "ada"})
        assert await told(run) == ["returned", "charged a"]
        monkeypatch.setattr(type(temporal.store), "load_decisions", look)
        again: Any = await reset(temporal, run, 0)
        again = temporal.client.get_workflow_handle(run.id, run_id=again.run_id)
        await until(lambda: looks)
        await put_in(temporal, again, "standfast.recall", UNREADABLE[name])

        async def paused() -> bool:
            return any(item["kind"] == "pause" for item in await waiting(again))

        await until(paused)
        await temporal.people.resume(again.id)
        assert await told(again) == ["returned", "charged a"]
        held.set()
        await check_healthy(again)
    assert shop.charged == ["a"]
