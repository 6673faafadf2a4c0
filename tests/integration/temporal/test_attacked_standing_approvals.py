"""Standing approvals on Temporal under attack: resets, killed workers, revocation, children; and their cost."""

from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from support.resets import resets
from support.temporal_runs import Temporal, check_healthy, events, pending, result, scheduled, until
from support.transcripts import asks_for, call

from integration.temporal.test_standing_approvals import SESSION, payer, pays, x
from standfast import Agent
from standfast.runtime.pipeline_results import Kept
from standfast.stores import StandingFilter
from standfast.testing import ScriptedModel


@pytest.mark.slow
async def test_a_call_that_passes_costs_one_decision_and_nothing_is_shown_to_anybody(temporal: Temporal) -> None:
    paid, agent = payer()
    async with temporal.worker(agent, llm=pays(x(), x())):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.decide(run.id, "c1", "approve", by="ana", remember=SESSION)
        assert (await result(run))["status"] == "complete"
        names = scheduled(await events(run))
        assert [name for name in names if name in ("standfast.decide", "pay")] == ["standfast.decide", "pay"] * 2
        assert names.count("call_model") == 3
        await check_healthy(run)
    assert len(paid) == 2


async def test_a_worker_that_dies_after_it_has_recorded_changes_nothing(temporal: Temporal) -> None:
    paid, agent = payer()
    recorded: list[str | None] = []
    record = Kept.record

    async def dies_once(kept: Kept, decision: Any, *args: Any, **options: Any) -> None:
        await record(kept, decision, *args, **options)
        recorded.append(decision.standing)
        if len(recorded) in (1, 3):
            raise ConnectionError("the worker is gone")
        if recorded.count(decision.standing) == 1 and decision.standing is not None:
            await temporal.store.revoke_standing_approval(decision.standing, at=datetime.now(UTC), by="bob")

    with patch.object(Kept, "record", dies_once):
        async with temporal.worker(agent, llm=pays(x(), x(), x())):
            run = await temporal.start(agent)
            await pending(run)
            await temporal.people.decide(run.id, "c1", "approve", by="ana", remember=SESSION)

            async def third() -> bool:
                return any(item["name"] == "c3" for item in await pending(run))

            await until(third)
            rows = await temporal.store.load_decisions((await run.describe()).run_id)
            assert [(row.gate, row.refused) for row in rows] == [("c1", None), ("c2", None)]
            await temporal.people.decide(run.id, "c3", "reject", by="ana")
            assert (await result(run))["status"] == "complete"
    assert len(paid) == 2


async def test_what_is_revoked_while_a_gate_opens_lets_nothing_pass(temporal: Temporal) -> None:
    paid, agent = payer()
    model = pays(x(), x())
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.decide(run.id, "c1", "approve", by="ana", remember=SESSION)
        [given] = await until(lambda: temporal.store.standing_approvals(StandingFilter()))
        assert (await result(run))["status"] == "complete"
    found = temporal.store.standing_approvals

    async def just_before(wanted: StandingFilter, **options: Any) -> Any:
        answer = await found(wanted, **options)
        if wanted.ids is None:  # it was looked up for a gate that opens
            await temporal.store.revoke_standing_approval(given.id, at=datetime.now(UTC), by="bob")
        return answer

    with patch.object(temporal.store, "standing_approvals", just_before):
        async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "d1", **x())), "done"])):
            run = await temporal.start(agent, "more")
            await pending(run)
            rows = await temporal.store.load_decisions((await run.describe()).run_id)
            assert [(row.standing, row.refused) for row in rows] == [
                (given.id, f"gate d1: the standing approval {given.id} was revoked by bob")
            ]
            await temporal.people.decide(run.id, "d1", "reject", by="ana")
            await result(run)
    assert len(paid) == 2


async def test_a_reset_repeats_no_call_and_asks_nobody_again(temporal: Temporal) -> None:
    paid, agent = payer()
    async with temporal.worker(agent, llm=pays(x(), x())):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.decide(run.id, "c1", "approve", by="ana", remember=SESSION)
        await result(run)
        [given] = await temporal.store.standing_approvals(StandingFilter())
        await temporal.store.revoke_standing_approval(given.id, at=datetime.now(UTC), by="bob")
        async for again in resets(temporal, run):
            assert (await result(again))["status"] == "complete"
            assert len(paid) == 2


async def test_a_child_has_its_own_standing_approvals(temporal: Temporal) -> None:
    paid, agent = payer()
    boss = Agent("boss", tools=[agent])
    async with temporal.worker(agent, boss, llm=_boss_and_payer()):
        run = await temporal.start(boss)
        child = f"{run.id}/b1"

        async def asks() -> Any:
            return [item for item in await temporal.people.waiting() if item["workflow_id"] == child]

        await until(asks)
        await temporal.people.decide(child, "c1", "approve", by="ana", remember={**SESSION, "scope": "agent"})
        assert (await result(run))["status"] == "complete"
    [given] = await temporal.store.standing_approvals(StandingFilter())
    assert (given.agent, given.scope, len(paid)) == ("payer", "agent", 2)


def _boss_and_payer() -> ScriptedModel:
    def answer(messages: Any, tools: Any) -> Any:
        done = sum(message.role == "tool" for message in messages)
        if any(one.name == "pay" for one in tools):
            return asks_for(call("pay", "c1", **x()))
        return asks_for(call("payer", f"b{done + 1}", message="pay")) if done < 2 else "done"

    def first(messages: Any, tools: Any) -> Any:
        is_payer = any(one.name == "pay" for one in tools)
        return "paid" if is_payer and messages[-1].role == "tool" else answer(messages, tools)

    return ScriptedModel(first)
