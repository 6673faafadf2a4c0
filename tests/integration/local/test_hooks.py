"""Hooks and their changes: the state of a run, and the output type of its answer."""

import json
from typing import Any

import pytest
from support.doubles import echo, watching
from support.drivers import Driver
from support.transcripts import asks_for, call

from standfast import Agent, AgentContext, DiminishingReturns, Loop, ToolContext, assert_complete, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_hooks_are_called_around_the_loop() -> None:
    log: list[str] = []
    await run(watching(log), message="go", llm=ScriptedModel([asks_for(call("work", "c1")), "done"]))
    assert log == ["start", "work", "complete"]


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (Loop(max_iterations=1), "work"),
        (Loop(stuck_threshold=1), "fail"),
        (Loop(token_budget=10), "work"),
        (Loop(diminishing_returns=DiminishingReturns(1, 500)), "work"),
    ],
    ids=["max-iterations", "stuck", "token-budget-exhausted", "diminishing-returns"],
)
async def test_on_stuck_is_called_when_the_run_stopped_early(loop: Loop, name: str) -> None:
    log: list[str] = []
    await run(watching(log, loop=loop), message="go", llm=ScriptedModel([asks_for(call(name, "c1"), tokens=100)]))
    assert [entry for entry in log if entry != "work"] == ["start", "stuck"]


async def test_neither_hook_is_called_on_error() -> None:
    log: list[str] = []
    await run(watching(log), message="go", llm=ScriptedModel([RuntimeError("down")]))
    assert log == ["start"]


async def test_hooks_may_be_async() -> None:
    log: list[str] = []

    async def started(context: AgentContext) -> None:
        log.append(context.agent.name)

    await run(Agent("a", on_start=started), message="go", llm=ScriptedModel(["ok"]))
    assert log == ["a"]


async def test_a_hook_learns_who_runs_and_may_change_the_state() -> None:
    seen: list[Any] = []

    def started(context: AgentContext) -> None:
        seen.append((context.agent.id, context.agent.name, context.user_id, context.tenant_id, context.authenticated()))
        context.state["count"] += 1

    agent = Agent("a", initial_state={"count": 0}, on_start=started, on_complete=lambda c: seen.append(dict(c.state)))
    options: dict[str, Any] = {"user_id": "ada", "tenant_id": "acme", "instance_id": "i-1"}
    await run(agent, message="go", llm=ScriptedModel(["ok"]), **options)
    assert seen == [("i-1", "a", "ada", "acme", True), {"count": 1}]


async def test_a_run_without_a_user_is_not_authenticated() -> None:
    seen: list[bool] = []
    agent = Agent("a", on_start=lambda context: seen.append(context.authenticated()))
    await run(agent, message="go", llm=ScriptedModel(["ok"]))
    assert seen == [False]


async def test_every_run_starts_with_its_own_copy_of_the_initial_state() -> None:
    seen: list[list[int]] = []

    def started(context: AgentContext) -> None:
        context.state["items"].append(1)
        seen.append(list(context.state["items"]))

    agent = Agent("a", initial_state={"items": []}, on_start=started)
    for _ in range(2):
        await run(agent, message="go", llm=ScriptedModel(["ok"]))
    assert (seen, agent.initial_state) == ([[1], [1]], {"items": []})


async def test_the_state_that_hooks_leave_is_stored_with_the_session(store: SQLiteStore) -> None:
    def count(context: AgentContext) -> None:
        context.state["runs"] = context.state.get("runs", 0) + 1

    agent = Agent("a", on_complete=count)
    for text in ("one", "two"):
        await run(agent, message=text, session_id="s", store=store, llm=ScriptedModel(["ok"]))
    session = await store.load_session("s")
    assert session is not None
    assert json.loads(session.state) == {"runs": 2}


async def test_an_answer_that_fits_the_output_type_is_read() -> None:
    agent = Agent("a", output=dict[str, int])
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel(['{"n": 1}'])))
    assert (result.status, result.response, result.output) == ("complete", '{"n": 1}', {"n": 1})


@pytest.mark.parametrize("answer", ["no json", '{"n": "x"}'])
async def test_an_answer_that_misses_the_output_type_is_an_error_that_keeps_the_text(answer: str) -> None:
    log: list[str] = []
    agent = watching(log, output=dict[str, int], loop=Loop(output_retries=0))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([answer])))
    assert (result.status, result.response, result.output) == ("error", answer, None)
    assert log == ["start"]


async def test_the_output_type_is_not_asked_when_the_run_did_not_complete() -> None:
    agent = Agent("a", tools=[echo], output=int, loop=Loop(max_iterations=1))
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), text="working")])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, result.output) == ("max-iterations", "working", None)


async def test_an_answer_that_does_not_fit_the_output_says_why() -> None:
    agent = Agent("a", output=int)
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel(["5.5", "five"])))
    assert (result.status, result.response) == ("error", "five")
    assert (result.error or "").startswith("the answer does not fit the agent's output: value: Invalid JSON")


async def test_an_agent_with_an_output_tells_the_model_its_schema() -> None:
    model = ScriptedModel(["5"])
    await run(Agent("a", output=int, instructions="Count."), message="go", llm=model)
    assert model.calls[0].messages[0].content == (
        'Count.\n\nAnswer with JSON alone that matches this schema: {"type": "integer"}'
    )


async def test_hooks_and_instructions_and_tools_know_the_session(driver: Driver) -> None:
    seen: dict[str, str | None] = {}

    def noting(name: str) -> Any:
        def note(ctx: AgentContext) -> str:
            seen[name] = ctx.session_id
            return "Be brief."

        return note

    @tool
    def look(ctx: ToolContext) -> None:
        seen["tool"] = ctx.session_id

    agent = Agent(
        "a", tools=[look], instructions=noting("prompt"), on_start=noting("start"), on_complete=noting("complete")
    )
    await driver.run(agent, ScriptedModel([asks_for(call("look", "c1")), "done"]), tenant_id="acme")
    session = driver.temporal.session()
    assert seen == dict.fromkeys(("start", "prompt", "tool", "complete"), session)


async def test_without_a_store_there_is_no_session_to_know() -> None:
    seen: list[str | None] = []
    agent = Agent("a", on_start=lambda ctx: seen.append(ctx.session_id))
    await run(agent, message="go", llm=ScriptedModel(["done"]))
    assert seen == [None]
