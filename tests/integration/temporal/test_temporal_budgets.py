"""Budgets on Temporal: a run that has spent its budget waits for a person to extend it."""

from typing import Any

import pytest
from support.doubles import echo
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call, shape

from standfast import Agent, Approval, Loop, ModelError, tool
from standfast.testing import ScriptedModel


@pytest.mark.slow(but=1)
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


@pytest.mark.parametrize("action", ["retry", "abort"])
async def test_a_gate_of_the_turn_that_spent_the_budget_is_asked_after_the_budget(
    temporal: Temporal, action: Any
) -> None:
    posted: list[str] = []

    @tool(approval=Approval(message="Post it?"))
    async def post(text: str) -> str:
        posted.append(text)
        return "posted"

    agent = Agent("a", tools=[post], loop=Loop(token_budget=100, on_budget="ask"))
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1", text="x"), tokens=150), "done"])):
        run = await temporal.start(agent)
        assert (await pending(run))[0]["kind"] == "pause"
        await temporal.people.resume(run.id, action)
        if action == "retry":
            await until(lambda: _kind(run, "approval"))
            await temporal.people.decide(run.id, "c1", "approve")
        ended = await result(run)
    assert ended["status"] == ("complete" if action == "retry" else "token-budget-exhausted")
    assert posted == (["x"] if action == "retry" else [])


async def _kind(run: Any, kind: str) -> bool:
    return [item["kind"] for item in await run.query("pending")] == [kind]


async def test_a_model_that_a_person_chose_has_the_agents_fallbacks(temporal: Temporal) -> None:
    models = {
        "one": ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=100)]),
        "chosen": ScriptedModel([ModelError("busy", transient=True, retry_after=3_600)]),
        "two": ScriptedModel(["done"]),
    }
    agent = Agent("a", model="one", fallback_models=["two"], tools=[echo], loop=Loop(token_budget=100, on_budget="ask"))
    async with temporal.worker(agent, llm=lambda name: models[name]):
        run = await temporal.start(agent)
        await pending(run)
        await temporal.people.resume(run.id, "retry", model="chosen")
        ended = await result(run)
    assert (ended["status"], ended["response"]) == ("complete", "done")
    assert [len(model.calls) for model in models.values()] == [1, 1, 1]
