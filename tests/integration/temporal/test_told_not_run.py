"""Calls that the model was told have not run: no reset, cancel, restart or next message makes them run after all."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, check_healthy, has_ended, pending, result, until, waiting
from support.told_calls import Shop, check_told
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from standfast import InputError, run


async def ends(run: Run) -> None:
    with suppress(WorkflowFailureError):
        await result(run)


async def decides(temporal: Temporal, run: Run, decision: str) -> list[str]:
    """Decide on everything that waits, by as many people as it takes; return whose decisions count, at which gate."""
    counted = []
    for item in await waiting(run):
        for by in ("ada", "bob"):
            with suppress(InputError):
                await temporal.people.decide(run.id, item["name"], decision, by=by)
                counted.append(f"{by} at {item['name']}")
    return counted


async def rejected(temporal: Temporal, shop: Shop, run: Run) -> None:
    await pending(run, 2)
    await decides(temporal, run, "reject")


async def cancelled_at_a_gate(temporal: Temporal, shop: Shop, run: Run) -> None:
    await pending(run, 2)
    await run.cancel()


async def cancelled_before_it_started(temporal: Temporal, shop: Shop, run: Run) -> None:
    await until(shop.began.is_set)
    await run.cancel()
    shop.may_return.set()


async def by_itself(temporal: Temporal, shop: Shop, run: Run) -> None:
    """Nothing has to be done."""


REASONS: dict[str, Callable[[Temporal, Shop, Run], Awaitable[None]]] = {
    "rejected": rejected,
    "cancelled at a gate": cancelled_at_a_gate,
    "cancelled before it started": cancelled_before_it_started,
    "unapproved": by_itself,
    "nothing": by_itself,  # both run
    "stopped": by_itself,
    "guardrail": by_itself,
    "too many": by_itself,
    "cut": by_itself,
    "not found": by_itself,
}


async def check(temporal: Temporal, shop: Shop) -> None:
    await check_told(temporal.store, temporal.session(), shop)


async def nothing(temporal: Temporal, run: Run) -> None:
    """Let the run end, and try to approve what it shows."""
    async with asyncio.timeout(30):
        while not await has_ended(run):
            assert await decides(temporal, run, "approve") == []


async def cancel(temporal: Temporal, run: Run) -> None:
    await run.cancel()


async def terminate(temporal: Temporal, run: Run) -> None:
    with suppress(RPCError):
        await run.terminate()


@pytest.mark.parametrize("act", [nothing, cancel, terminate])
@pytest.mark.parametrize("reason", REASONS)
async def test_what_was_told_not_to_have_run_does_not_run_after_a_reset(
    temporal: Temporal, reason: str, act: Callable[[Temporal, Run], Awaitable[None]]
) -> None:
    shop = Shop(reason)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        await ends(first)
        await check(temporal, shop)
        one: Run = temporal.client.get_workflow_handle(first.id, run_id=first.result_run_id)
        for task in range(len(await tasks(one))):
            try:
                again = await reset(temporal, one, task)
            except RPCError as error:
                if "must be at the boundary" in error.message:
                    continue
                raise
            await act(temporal, again)
            await ends(again)
            await check_healthy(again)
            await check(temporal, shop)
        on_temporal = await temporal.start(shop.agent, "more")
        await ends(on_temporal)
        await check(temporal, shop)
    await run(shop.agent, message="more", session_id=temporal.session(), store=temporal.store, llm=shop.llm)
    await check(temporal, shop)
