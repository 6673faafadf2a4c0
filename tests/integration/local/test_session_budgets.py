"""Budgets of a session count all its runs, including pruned messages and other agents' usage."""

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.questions import ask_user
from support.temporal_runs import Temporal, check_healthy, pending, result
from support.transcripts import asks_for, call, says

from standfast import Agent, DefinitionError, Loop, Message, ModelError, ToolContext, Usage, run, tool
from standfast.messages import usage_of
from standfast.stores import memory_store, sqlite_store
from standfast.testing import ScriptedModel


async def used(driver: Driver) -> Usage | None:
    session = await driver.temporal.store.load_session(driver.temporal.session("s"))
    assert session is not None
    return session.usage


async def test_runs_of_a_session_spend_its_tokens_together(driver: Driver) -> None:
    agent = Agent("a", loop=Loop(session_token_budget=250))
    model = ScriptedModel([says(f"answer {n}", 100) for n in range(9)])
    ended = [await driver.run(agent, model) for _ in range(5)]
    assert [one.status for one in ended] == ["complete"] * 3 + ["token-budget-exhausted"] * 2
    assert len(model.calls) == 3
    assert await used(driver) == Usage(input_tokens=300)


async def test_a_turn_that_spends_the_rest_ends_the_run_before_its_calls(driver: Driver) -> None:
    agent = Agent("a", tools=[echo], loop=Loop(session_cost_budget=1))
    turns = [asks_for(call("echo", f"c{n}", text="x")).model_copy(update={"cost": 0.6}) for n in range(3)]
    ended = await driver.run(agent, ScriptedModel(turns))
    assert (ended.status, ended.iterations) == ("cost-budget-exhausted", 2)
    assert [message.status for message in ended.messages if message.role == "tool"] == ["completed", "cancelled"]
    assert (await used(driver) or Usage()).cost == pytest.approx(1.2)


async def test_what_was_pruned_was_spent(driver: Driver) -> None:
    agent = Agent("a", loop=Loop(session_token_budget=250))
    model = ScriptedModel([says("hi", 100)] * 9)
    ended = [await driver.run(agent, model, max_stored_messages=3) for _ in range(4)]
    assert [one.status for one in ended] == ["complete"] * 3 + ["token-budget-exhausted"]
    assert len([message for message in ended[-1].messages if message.role == "assistant"]) == 1


async def test_what_other_agents_used_for_it_was_spent(driver: Driver) -> None:
    """By a call of the model, by a tool's handler, and by one that failed; each says in its result what it used."""

    @tool
    async def delegate(ctx: ToolContext) -> str:
        return (await ctx.agents.invoke(helper, message="go"))["response"]

    helper, lazy = Agent("helper"), Agent("lazy", tools=[echo], loop=Loop(max_iterations=1))
    agent = Agent("a", tools=[helper, lazy, delegate], loop=Loop(session_token_budget=10_000))
    calls = (call("helper", "c1", message="go"), call("lazy", "c2", message="go"), call("delegate", "c3"))
    turns = [
        {"tool_calls": calls, "usage": {"input_tokens": 1}},
        says("one", 10),
        asks_for(call("echo", "e", text="x"), tokens=100),
        says("three", 1_000),
        says("done", 10_000),
    ]
    ended = await driver.run(agent, ScriptedModel(turns), also=(helper, lazy))
    assert (ended.status, ended.usage) == ("complete", Usage(input_tokens=11_111))
    told = {message.tool_call_id: message.usage for message in ended.messages if message.role == "tool"}
    assert {name: usage and usage.input_tokens for name, usage in told.items()} == {"c1": 10, "c2": 100, "c3": 1_000}
    assert await used(driver) == usage_of(ended.messages) == Usage(input_tokens=11_111)
    assert (await driver.run(agent, ScriptedModel(["never"]), also=(helper, lazy))).status == "token-budget-exhausted"


@pytest.mark.parametrize("way", ["as a tool", "by a handler"])
async def test_what_an_agent_used_before_its_call_asked_a_person_was_spent(driver: Driver, way: str) -> None:
    kid = Agent("kid", tools=[ask_user])

    @tool
    async def delegate(ctx: ToolContext, message: str) -> str:
        return (await ctx.agents.invoke(kid, message=message))["response"]

    agent = Agent("a", tools=[kid if way == "as a tool" else delegate], loop=Loop(session_token_budget=10_000))
    turns = [
        asks_for(call("kid" if way == "as a tool" else "delegate", "c1", message="go"), tokens=1),
        asks_for(call("ask_user", "k1", question="Which?"), tokens=1_000),
        says("done", 10),
    ]
    ended = await driver.run(agent, ScriptedModel(turns), answers=["this"], also=(kid,))
    assert (ended.status, await used(driver)) == ("complete", Usage(input_tokens=1_011))


async def test_an_answer_that_did_not_fit_was_paid_for(driver: Driver) -> None:
    """Also if the next call fails."""
    agent = Agent("a", output=int, loop=Loop(output_retries=1, session_token_budget=10_000))
    ended = await driver.run(agent, ScriptedModel([says("bad", 100), ModelError("gone")]))
    assert (ended.status, await used(driver)) == ("error", Usage(input_tokens=100))
    assert [message.role for message in ended.messages] == ["user", "assistant", "user"]


async def test_a_session_that_is_spent_says_nothing_again_but_its_last_answer(driver: Driver) -> None:
    """Run without a message it continues where it is, which is at its end."""
    agent = Agent("a", loop=Loop(session_token_budget=50))
    model = ScriptedModel([says("all of it", 100)])
    assert (await driver.run(agent, model)).status == "complete"
    again = await driver.run(agent, model, message=None)
    assert (again.status, again.response) == ("complete", "all of it")


async def test_a_session_written_without_an_account_has_its_messages() -> None:
    """By another program, or by a version before there was one."""
    store, model = sqlite_store(":memory:"), ScriptedModel([says("hi", 100)] * 2)
    agent = Agent("a", loop=Loop(session_token_budget=50))
    await run(agent, message="go", llm=model, store=store, session_id="s")
    session = await store.load_session("s")
    assert session is not None
    await store.save_session(session.model_copy(update={"usage": None}))
    ended = await run(agent, message="go", llm=model, store=store, session_id="s")
    assert (ended.status, len(model.calls)) == ("token-budget-exhausted", 1)
    await store.close()


async def test_a_transcript_that_is_brought_was_paid_for() -> None:
    brought = [
        Message(role="user", content="hi"),
        Message(role="assistant", content="ho", usage=Usage(input_tokens=100)),
    ]
    agent, model = Agent("a", loop=Loop(session_token_budget=50)), ScriptedModel(["never"])
    ended = await run(agent, messages=brought, message="go", llm=model, store=memory_store())
    assert (ended.status, model.calls) == ("token-budget-exhausted", [])


@pytest.mark.parametrize(
    ("action", "ends"), [("retry", ["complete", "complete"]), ("abort", ["complete", "token-budget-exhausted"])]
)
async def test_on_temporal_a_session_that_is_spent_asks_before_it_calls_the_model(
    temporal: Temporal, action: str, ends: list[str]
) -> None:
    """Whoever lets it go on lets it use as much again, however much was used before."""
    agent = Agent("a", loop=Loop(session_token_budget=100, on_budget="ask"))
    model = ScriptedModel([says("dear", 1_000), says("done", 10)])
    async with temporal.worker(agent, llm=model):
        statuses = [(await result(await temporal.start(agent)))["status"]]
        run_ = await temporal.start(agent)
        (shown,) = await pending(run_)
        assert shown["message"].startswith("The budget is spent: 0 tokens by this run, 1,000 tokens by its session.")
        await temporal.people.resume(run_.id, action, by="ada")
        statuses.append((await result(run_))["status"])
        await check_healthy(run_)
    assert statuses == ends
    assert len(model.calls) == ends.count("complete")


@pytest.mark.parametrize("name", ["session_token_budget", "session_cost_budget"])
@pytest.mark.parametrize("wrong", [0, -1, "5", True])
def test_a_wrong_budget_of_a_session_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(DefinitionError, match=f"loop.{name} must be"):
        Loop(**{name: wrong})
