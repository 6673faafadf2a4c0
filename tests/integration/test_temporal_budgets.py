"""Budgets on Temporal: a run that has spent its own waits for whoever lets it go on."""

from typing import Any

import pytest

from holdfast import Agent, Loop
from holdfast.testing import ScriptedModel
from integration.doubles import echo
from integration.temporal_runs import Temporal, check_healthy, pending, result
from integration.transcripts import asks_for, call, shape


@pytest.mark.parametrize(
    ("actions", "ends"), [(["retry", "retry"], "complete"), (["retry", "abort"], "token-budget-exhausted")]
)
async def test_a_run_that_has_spent_its_budget_asks_for_more(temporal: Temporal, actions: list[Any], ends: str) -> None:
    turns = [asks_for(call("echo", f"c{n}", text="x"), tokens=100) for n in range(2)]
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=100, on_budget="ask"))
    async with temporal.worker(agent, llm=ScriptedModel([*turns, "done"])):
        run = await temporal.start(agent)
        for number, action in enumerate(actions, 1):
            (shown,) = await pending(run)
            assert (shown["kind"], shown["name"]) == ("pause", "budget")
            assert shown["message"].startswith(f"The budget is spent: {number}00 tokens by this run.")
            await temporal.people.resume(run.id, action, by="ada")
        assert (await result(run))["status"] == ends
        await check_healthy(run)
    ran = [line for line in shape(await temporal.messages()) if line.startswith("result")]
    assert ran == ["result c0", "result c1"]  # of those that were not paid for, that they were cancelled
