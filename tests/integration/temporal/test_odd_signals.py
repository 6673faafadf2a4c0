"""Arbitrary signals do not obstruct people's decisions."""

import asyncio
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, result

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_deadlines import until_over
from standfast import Agent, Approval
from standfast.agent_loop import access_problem
from standfast.testing import ScriptedModel


@pytest.mark.slow
async def test_a_signal_of_two_values_does_not_make_a_timely_one_late(temporal: Temporal) -> None:
    posted, post = world(Approval(timeout=4, approvers=["ada"]))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    given = {"gate": "c1", "by": "ada", "digest": item["digest"]}
    await handle.signal("approve", args=[given, "and more"])
    await handle.signal("approve", given)
    await until_over(item)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        await asyncio.wait_for(result(handle), 60)
        await check_healthy(handle)
    assert posted == ["hi"]


def test_an_access_rule_that_wants_to_exit_lets_nobody_in_and_ends_nothing() -> None:
    def rule(user: str | None) -> Any:
        raise SystemExit(3)

    assert access_problem(rule, "ada") == "the access rule raised SystemExit for ada: 3"
