"""A guarded function that needs approval waits in a user's workflow, and runs exactly as approved."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result
from temporalio import activity, workflow
from temporalio.client import WorkflowFailureError
from temporalio.worker import Worker

from standfast import Agent, Approval
from standfast.effects import Effect, effect
from standfast.temporal import StandfastPlugin, execute_effect
from standfast.testing import ScriptedModel

CHARGED: list[tuple[str, int]] = []


async def charge(card: str, cents: int = 5) -> int:
    CHARGED.append((card, cents))
    return cents


async def again(card: str, cents: int = 5) -> int:
    return await charge(card, cents)


GUARDS: dict[str, Effect] = {}


@workflow.defn(sandboxed=False)
class Purchase:
    @workflow.run
    async def run(self, card: str) -> list[Any]:
        charged = activities(card)
        return [await execute_effect(charged, card, 7), await execute_effect(charged, card, 8)]


@workflow.defn(sandboxed=False)
class PastTheGate:
    @workflow.run
    async def run(self, card: str) -> Any:
        return await workflow.execute_activity(
            activities(card), args=[card, 7], start_to_close_timeout=timedelta(seconds=5)
        )


@dataclass
class Order:
    card: str
    price: float = 1
    note: str = ""


async def pay(order: Order, tip: float = 0) -> list[str]:
    return [repr(order.price), repr(tip)]


DEEP: Any = [1]
for _ in range(2_000):
    DEEP = [DEEP]
UNFIT: dict[str, tuple[Any, ...]] = {
    "none": (),
    "too many": ("a", 1, 2),
    "another type": ({"card": []}, 1),
    "no JSON": (Order("a"), object()),
    "deep": (Order("a"), DEEP),
    "no text": (Order("\ud800"), 1),
    "large": (Order("a" * 2_500_000), 1),
}


@workflow.defn(sandboxed=False)
class Payment:
    @workflow.run
    async def run(self, card: str, unfit: str) -> Any:
        given = UNFIT.get(unfit, ({"card": card, "price": 7}, 2))
        return await execute_effect(activities(f"{card}-pay"), *given)


BY_CARD: dict[str, Any] = {}


def activities(card: str) -> Any:
    return BY_CARD[card]


def worker(temporal: Temporal) -> Worker:
    guard = effect(temporal.store, "charge", approval=Approval(message="Charge?", approvers=["ada"]))
    BY_CARD[temporal.name] = activity.defn(guard(charge))
    guard = effect(temporal.store, "charge-2", approval=Approval(message="Charge?", approvers=["ada"]))
    BY_CARD[f"{temporal.name}-2"] = activity.defn(name="charge-2")(guard(again))
    BY_CARD[f"{temporal.name}-pay"] = activity.defn(effect(temporal.store, approval=Approval())(pay))
    plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
    options: dict[str, Any] = {"workflows": [Purchase, PastTheGate, AtOnce, Payment]}
    options["activities"] = [BY_CARD[temporal.name], BY_CARD[f"{temporal.name}-2"], BY_CARD[f"{temporal.name}-pay"]]
    return Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], **options)


async def start(temporal: Temporal, kind: str = "Purchase") -> Run:
    started: Run = await temporal.client.start_workflow(
        kind, temporal.name, id=temporal.session(), task_queue=temporal.name
    )
    return started


def charged(temporal: Temporal) -> list[int]:
    return [cents for card, cents in CHARGED if card == temporal.name]


async def decide(run: Run, signal: str, **decision: Any) -> None:
    (item,) = await pending(run)
    await run.signal(signal, {"gate": item["name"], "digest": item["digest"], "by": "ada", **decision})


async def test_each_call_waits_for_its_own_approval_and_shows_its_arguments(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal)
        (item,) = await pending(run)
        assert (item["name"], item["approvers"]) == ("charge", ["ada"])
        assert '"cents": 7' in item["message"]
        assert item["message"].startswith("Charge?")
        assert charged(temporal) == []
        await decide(run, "approve")
        second = None
        while second is None or second["name"] == "charge":
            (second,) = await pending(run)
        assert second["name"] == "charge-2"
        assert charged(temporal) == [7]
        await decide(run, "approve")
        assert await result(run) == [7, 8]
    assert charged(temporal) == [7, 8]


async def test_a_rejected_call_is_not_run_and_says_who_and_why(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal)
        await decide(run, "reject", comment="too much")
        told = await failure(run)
    assert told.type == "approval-rejected"
    assert "rejected by ada: too much" in told.message
    assert charged(temporal) == []


@workflow.defn(sandboxed=False)
class AtOnce:
    @workflow.run
    async def run(self, card: str) -> list[Any]:
        calls = [execute_effect(activities(name), card, 7) for name in (card, card, f"{card}-2")]
        return list(await asyncio.gather(*calls))


async def test_calls_at_once_have_their_own_gates_even_if_an_effect_is_named_as_the_second_call_of_another(
    temporal: Temporal,
) -> None:
    async with worker(temporal):
        run = await start(temporal, "AtOnce")
        items = await pending(run, 3)
        assert {item["name"] for item in items} == {"charge", "charge-2", "charge-2-2"}
        for item in items:
            await run.signal("approve", {"gate": item["name"], "digest": item["digest"], "by": "ada"})
        assert await result(run) == [7, 7, 7]
        await check_healthy(run)
    assert charged(temporal) == [7, 7, 7]


async def test_people_see_and_approve_arguments_as_the_activity_reads_them(temporal: Temporal) -> None:
    async with worker(temporal):
        arguments: list[Any] = [temporal.name, ""]
        run = await temporal.client.start_workflow(
            "Payment", args=arguments, id=temporal.session(), task_queue=temporal.name
        )
        (item,) = await pending(run)
        assert all(text in item["message"] for text in ('"price": 7.0', '"note": ""', '"tip": 2.0'))
        await run.signal("approve", {"gate": item["name"], "digest": item["digest"]})
        assert await result(run) == ["7.0", "2.0"]
        await check_healthy(run)


async def test_nobody_is_asked_about_arguments_that_no_activity_can_take(temporal: Temporal) -> None:
    async with worker(temporal):
        for unfit in UNFIT:
            run = await temporal.client.start_workflow(
                "Payment", args=[temporal.name, unfit], id=temporal.session(), task_queue=temporal.name
            )
            told = await failure(run)
            assert told.type == "InputError"
            assert "pay cannot take its arguments, and no one was asked: " in told.message
            await check_healthy(run)


async def test_an_activity_past_the_gate_runs_nothing(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, "PastTheGate")
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
    assert "needs approval" in str(failed.value.cause.__cause__)
    assert charged(temporal) == []
