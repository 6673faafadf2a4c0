"""Rules outside the loop hold in both drivers: sessions, their length, exceptions of user functions, nested agents."""

from contextlib import suppress
from typing import Any

import pytest
from support.doubles import delegating, echo
from support.drivers import Driver, OnTemporal
from support.questions import ask
from support.temporal_runs import Temporal, check_healthy, failure, pending, result
from support.transcripts import asks_for, call, error_of, shape, tool_results
from temporalio.client import WorkflowFailureError

from standfast import (
    Agent,
    InputError,
    Loop,
    SessionAccessDeniedError,
    TerminalError,
    ToolContext,
    run,
    tool,
)
from standfast.testing import ScriptedModel

helper = Agent("helper")


async def refusal(driver: Driver, agent: Agent, **who: Any) -> tuple[str, str]:
    """Return how a run is refused before its model is called."""
    model = ScriptedModel(["never said"])
    if isinstance(driver, OnTemporal):
        async with driver.temporal.worker(agent, llm=model):
            handle = await driver.temporal.start(agent, "more", **who)
            error = await failure(handle)
            await check_healthy(handle)
        refused = (str(error.type), error.message)
    else:
        with pytest.raises((InputError, SessionAccessDeniedError)) as caught:
            await driver.run(agent, model, **who)
        refused = (type(caught.value).__name__, str(caught.value))
    assert model.calls == []
    return refused


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("agent", "who", "refused"),
    [
        (helper, {"user_id": "bob"}, ("SessionAccessDeniedError", "Session not found or access denied: {}")),
        (helper, {}, ("SessionAccessDeniedError", "Session not found or access denied: {}")),
        (
            Agent("other"),
            {"user_id": "ada"},
            ("InputError", "Session {} belongs to agent 'helper', not to 'other'"),
        ),
        (
            Agent("helper", access={"start": lambda user: False}),
            {"user_id": "ada"},
            ("InputError", "Agent 'helper': ada may not start it"),
        ),
    ],
    ids=["another user", "nobody", "another agent", "may not start"],
)
async def test_a_person_who_may_not_have_a_session_is_told_the_same(
    driver: Driver, agent: Agent, who: dict[str, Any], refused: tuple[str, str]
) -> None:
    assert (await driver.run(helper, ScriptedModel(["one"]), user_id="ada")).status == "complete"
    kind, text = refused
    assert await refusal(driver, agent, **who) == (kind, text.format(driver.temporal.session()))
    again = await driver.run(helper, ScriptedModel(["two"]), user_id="ada")
    assert shape(again.messages) == ["user go", "assistant one", "user go", "assistant two"]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("hook", [None, "on_complete"])
async def test_a_session_keeps_its_last_whole_turns(driver: Driver, hook: str | None) -> None:
    options: dict[str, Any] = {} if hook is None else {hook: lambda context: None}
    agent = Agent("keeper", tools=[echo], **options)
    for text in ("one", "two"):
        script = [asks_for(call("echo", f"c{text}", text="x")), f"re {text}"]
        ended = await driver.run(agent, ScriptedModel(script), message=text, max_stored_messages=5)
    assert shape(ended.messages) == ["user two", "calls ctwo", "result ctwo", "assistant re two"]


def _leave(*_: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("where", ["on_start", "instructions", "on_complete"])
async def test_a_function_of_an_agent_that_would_end_the_process_is_an_error_of_the_run(
    temporal: Temporal, where: str
) -> None:
    """The worker's handlers go on: another run is served afterwards."""
    options: dict[str, Any] = {where: _leave}
    agent = Agent("leaver", **options)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await run(agent, message="hi", llm=ScriptedModel(["done"]))
    async with temporal.worker(agent, helper, llm=ScriptedModel(lambda messages, tools: "done")):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
        assert (item["kind"], "raised RuntimeError: SystemExit: 3" in item["message"]) == ("pause", True)
        assert (await temporal.run(helper, session="other"))["status"] == "complete"
        await temporal.people.resume(handle.id, "abort")
        with suppress(WorkflowFailureError):  # whatever the run does without it
            await result(handle)
        await check_healthy(handle)


def models(**scripts: Any) -> Any:
    """Return a function from an agent's model to its script."""
    return {name: ScriptedModel(script) for name, script in scripts.items()}.__getitem__


ECHOES = asks_for(call("echo", "e1", text="x"), text="thinking")
ASKS = asks_for(call("ask", "a1", question="To whom?"))


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("as_tool", [True, False], ids=["as a tool", "from a handler"])
@pytest.mark.parametrize(
    ("loop", "answer", "error"),
    [
        (Loop(max_iterations=1), ECHOES, "Agent 'child' ended with max-iterations: thinking"),
        (Loop(), RuntimeError("no ink"), "Agent 'child' ended with error: no ink"),
        (Loop(), ASKS, "asks To whom?"),
        (Loop(max_iterations=1), asks_for(call("echo", "e1", text="x"), text="y" * 20_000),
         f"Agent 'child' ended with max-iterations: {'y' * 1_000}"),
    ],
    ids=["is cut", "has no model", "asks", "says much"],
)  # fmt: skip
async def test_what_a_nested_agent_came_to_is_read_the_same(
    driver: Driver, as_tool: bool, loop: Loop, answer: Any, error: str
) -> None:
    child = Agent("child", model="child", tools=[echo, ask], loop=loop)
    nested = child if as_tool else delegating(child)
    name = "child" if as_tool else nested.name
    boss = Agent("boss", model="boss", tools=[nested])
    asked = call(name, "w1", **({"message": "Write it"} if as_tool else {}))
    script = models(boss=[asks_for(asked), "sent"], child=[answer])
    ended = await driver.run(boss, script, also=[child], answers=["to Ada"] if error.startswith("asks") else [])
    assert ended.status == "complete"
    (said,) = tool_results(ended.messages)
    if error.startswith("asks"):
        assert (ended.questions, said.content) == (("To whom?",), "to Ada")
    else:
        assert error_of(said).startswith(error)
        assert len(error_of(said)) < 10_000


@tool(parallel=True)
async def charge(ctx: ToolContext) -> str:
    """Charge, unless the card is blocked."""
    if ctx.tool_call_id == "c2":
        raise TerminalError("card is blocked", 402)
    return ctx.idempotency_key


async def test_calls_behind_one_that_fails_for_good_are_not_run_and_say_why(driver: Driver) -> None:
    loop = Loop(max_tool_concurrency=1)
    agent = Agent("payer", tools=[charge], on_terminal_tool_error="fail", loop=loop)
    asked = asks_for(*(call("charge", f"c{number}") for number in (1, 2, 3)))
    ended = await driver.run(agent, ScriptedModel([asked]))
    assert (ended.status, ended.response) == ("raised", "card is blocked")
    *_, stopped = tool_results(ended.messages)
    assert (stopped.status, error_of(stopped)) == (
        "cancelled",
        "Not run: call c2 of tool charge failed for good",
    )


async def test_the_key_of_a_call_is_made_of_its_session_its_message_its_place_and_its_id(driver: Driver) -> None:
    agent = Agent("payer", tools=[charge])
    script = [asks_for(call("charge", "c1"), call("charge", "c3")), "done", asks_for(call("charge", "c4")), "done"]
    model = ScriptedModel(script)
    await driver.run(agent, model)
    ended = await driver.run(agent, model)
    session = await driver.temporal.store.load_session(driver.temporal.session())
    assert session is not None
    keys = [said.content for said in tool_results(ended.messages)]
    assert keys == [f"{session.key}/2.0/c1", f"{session.key}/2.1/c3", f"{session.key}/7.0/c4"]
