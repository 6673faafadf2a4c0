"""Agents that run agents, as a tool and from a tool's handler; the data between parent and child."""

import asyncio
from typing import Any

import pytest
from support.doubles import delegating, echo
from support.drivers import Driver, OnTemporal
from support.questions import ask
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    pending,
    result,
    scheduled,
    until,
    waiting,
)
from support.transcripts import asks_for, call, error_of, result_of, says, shape, tool_results
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from standfast import (
    Agent,
    AgentContext,
    Loop,
    Message,
    ModelError,
    RetryableError,
    RetryPolicy,
    ToolContext,
    Usage,
    tool,
)
from standfast.testing import ScriptedModel


def models(**scripts: Any) -> Any:
    """Return a function from an agent's model to its script."""
    return {name: ScriptedModel(script) for name, script in scripts.items()}.__getitem__


def child_of(temporal: Temporal, parent: Run, name: str) -> Run:
    return temporal.client.get_workflow_handle(f"{parent.id}/{name}")


async def run_status(handle: Run) -> WorkflowExecutionStatus | None:
    return (await handle.describe()).status


async def there(handle: Run) -> bool:
    try:
        await handle.describe()
    except Exception:
        return False
    return True


writer = Agent("writer", model="writer", description="Writes.")
boss = Agent("boss", model="boss", tools=[writer])
ONE_LETTER = [asks_for(call("writer", "w1", message="Write it"), tokens=5), says("sent", 5)]


# --- with either driver ---


async def test_the_answer_of_an_agent_is_the_result_of_its_call(driver: Driver) -> None:
    script = models(boss=ONE_LETTER, writer=[says("Dear Ada", 7)])
    ended = await driver.run(boss, script, also=[writer])
    assert (ended.status, ended.response, ended.usage) == ("complete", "sent", Usage(input_tokens=17))
    assert result_of(ended.messages, "w1") == "Dear Ada"


async def test_what_an_agent_uses_counts_against_the_budget_of_its_caller(driver: Driver) -> None:
    limited = Agent("boss", model="boss", tools=[writer], loop=Loop(token_budget=100))
    script = models(boss=[*ONE_LETTER[:1], *ONE_LETTER], writer=[says("Dear Ada", 90)])
    ended = await driver.run(limited, script, also=[writer])
    assert (ended.status, ended.iterations, ended.usage) == ("token-budget-exhausted", 1, Usage(input_tokens=95))


async def test_an_agent_that_does_not_complete_is_an_error_for_its_caller(driver: Driver) -> None:
    endless = Agent("writer", model="writer", tools=[echo], loop=Loop(max_iterations=1))
    caller = Agent("boss", model="boss", tools=[endless])
    script = models(boss=ONE_LETTER, writer=[asks_for(call("echo", "e1", text="x"), text="thinking")])
    ended = await driver.run(caller, script, also=[endless])
    assert ended.status == "complete"
    assert error_of(tool_results(ended.messages)[0]) == "Agent 'writer' ended with max-iterations: thinking"


async def test_an_agent_whose_model_fails_is_an_error_for_its_caller(driver: Driver) -> None:
    ended = await driver.run(boss, models(boss=ONE_LETTER, writer=[RuntimeError("no ink")]), also=[writer])
    assert error_of(tool_results(ended.messages)[0]) == "Agent 'writer' ended with error: no ink"


async def test_a_question_of_an_agent_surfaces_at_its_caller_and_the_answer_is_the_result(driver: Driver) -> None:
    asking = Agent("writer", model="writer", tools=[ask])
    caller = Agent("boss", model="boss", tools=[asking])
    script = models(boss=ONE_LETTER, writer=[asks_for(call("ask", "a1", question="To whom?"))])
    ended = await driver.run(caller, script, also=[asking], answers=["to Ada"])
    assert (ended.status, ended.questions) == ("complete", ("To whom?",))
    assert result_of(ended.messages, "w1") == "to Ada"


async def test_the_user_of_a_run_is_inherited_through_three_levels(driver: Driver) -> None:
    seen: list[Any] = []

    def note(context: AgentContext) -> str:
        seen.append((context.agent.name, context.user_id, context.tenant_id))
        return "Work."

    last = Agent("last", model="last", instructions=note)
    middle = Agent("middle", model="middle", tools=[last], instructions=note)
    first = Agent("first", model="first", tools=[middle], instructions=note)
    script = models(
        first=[asks_for(call("middle", "m1", message="x")), "done"],
        middle=[asks_for(call("last", "l1", message="x")), "done"],
        last=["done"],
    )
    await driver.run(first, script, also=[middle, last], user_id="ada", tenant_id="acme")
    assert {entry[1:] for entry in seen} == {("ada", "acme")}
    assert {entry[0] for entry in seen} == {"first", "middle", "last"}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("arguments", [{}, {"message": 5}, {"message": ""}, {"message": "x", "extra": 1}], ids=str)
async def test_arguments_of_an_agent_are_checked_like_those_of_a_tool(driver: Driver, arguments: Any) -> None:
    script = models(boss=[asks_for(call("writer", "w1", **arguments)), "ok"], writer=["Dear Ada"])
    ended = await driver.run(boss, script, also=[writer])
    assert ended.status == "complete"
    (answer,) = tool_results(ended.messages)
    if isinstance(arguments.get("message"), str):
        assert answer.content == "Dear Ada"
    else:
        assert error_of(answer).startswith('Invalid input for tool "writer"')


async def test_an_agent_is_invoked_from_a_handler(driver: Driver) -> None:
    caller = Agent("boss", model="boss", tools=[delegating(writer)])
    script = models(boss=[asks_for(call("delegate", "d1"), tokens=1), says("ok", 1)], writer=[says("Dear Ada", 5)])
    ended = await driver.run(caller, script, also=[writer])
    assert result_of(ended.messages, "d1") == '{"response":"Dear Ada"}'
    assert ended.usage == Usage(input_tokens=7)


@pytest.mark.slow(but=2)
async def test_a_handler_invokes_agents_one_after_the_other_and_at_once(driver: Driver) -> None:
    @tool
    async def letters(ctx: ToolContext) -> list[str]:
        """Write letters."""
        first = await ctx.agents.invoke(writer, message="first")
        more = await asyncio.gather(*(ctx.agents.invoke(writer, message=text) for text in ("a", "b", "b")))
        return [item["response"] for item in (first, *more)]

    def write(messages: list[Message], tools: Any) -> str:
        return f"wrote {messages[-1].content}"

    caller = Agent("boss", model="boss", tools=[letters])
    script = models(boss=[asks_for(call("letters", "l1")), "ok"], writer=write)
    ended = await driver.run(caller, script, also=[writer])
    assert result_of(ended.messages, "l1") == '["wrote first","wrote a","wrote b","wrote b"]'


async def test_agents_that_call_each_other_for_ever_end_at_the_sixteenth(driver: Driver) -> None:
    depth: list[int] = []

    @tool
    async def deeper(ctx: ToolContext) -> str:
        """Go deeper."""
        depth.append(1)
        return (await ctx.agents.invoke(digger, message="dig"))["response"]

    digger = Agent("digger", model="digger", tools=[deeper])

    def dig(messages: list[Message], tools: Any) -> Any:
        if messages[-1].role == "tool":
            return messages[-1].content
        return asks_for(call("deeper", "d1"))

    ended = await driver.run(digger, models(digger=dig))
    assert ended.status == "complete"
    assert "16 deep already" in ended.response
    assert len(depth) == 17


async def test_agents_as_tools_end_at_the_sixteenth_too(driver: Driver) -> None:
    agents = [Agent("a17", model="any")]
    for number in range(16, -1, -1):
        agents.append(Agent(f"a{number}", model="any", tools=[agents[-1]]))
    reached: list[str] = []

    def answer(messages: list[Message], tools: Any) -> Any:
        if messages[-1].role == "tool":
            return messages[-1].content
        reached.append("x")
        return asks_for(call(tools[0].name, "c1", message="go")) if tools else "the bottom"

    ended = await driver.run(agents[-1], models(any=answer), also=agents[:-1])
    assert (ended.status, len(reached)) == ("complete", 17)
    assert "16 deep already" in ended.response


# --- on Temporal ---


async def test_an_agent_as_a_tool_is_a_child_workflow_named_after_its_call(temporal: Temporal) -> None:
    async with temporal.worker(boss, writer, llm=models(boss=ONE_LETTER, writer=["Dear Ada"])):
        run = await temporal.start(boss)
        await result(run)
        child = child_of(temporal, run, "w1")
        described = await child.describe()
        assert described.raw_description.workflow_execution_info.parent_execution.workflow_id == run.id
        ended = await child.result()
        await check_healthy(run)
        await check_healthy(child)
    assert ended["response"] == "Dear Ada"
    assert shape(await temporal.store.load_messages(ended["session_id"])) == ["user Write it", "assistant Dear Ada"]
    assert scheduled(await events(run)) == ["call_model", "call_model"]


async def test_a_question_of_an_agent_is_asked_once_and_by_its_caller(temporal: Temporal) -> None:
    asking = Agent("writer", model="writer", tools=[ask])
    caller = Agent("boss", model="boss", tools=[asking])
    script = models(boss=ONE_LETTER, writer=[asks_for(call("ask", "a1", question="To whom?"))])
    async with temporal.worker(caller, asking, llm=script):
        run = await temporal.start(caller)
        assert [(item["name"], item["message"]) for item in await pending(run)] == [("w1", "To whom?")]
        child = child_of(temporal, run, "w1")
        assert (await child.result())["status"] == "interrupted"
        await run.execute_update("answer", {"text": "to Ada"})
        await result(run)


async def test_a_child_that_is_terminated_is_an_error_for_its_caller(temporal: Temporal) -> None:
    script = models(boss=ONE_LETTER, writer=_never)
    async with temporal.worker(boss, writer, llm=script):
        run = await temporal.start(boss)
        child = child_of(temporal, run, "w1")
        await until(lambda: there(child))
        await child.terminate("by an operator")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert error_of(tool_results(await temporal.messages())[0]) == "Agent 'writer' was terminated"


async def _never(messages: Any, tools: Any) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_child_that_is_cancelled_is_a_cancelled_call_of_its_caller(temporal: Temporal) -> None:
    async with temporal.worker(boss, writer, llm=models(boss=ONE_LETTER, writer=_never)):
        run = await temporal.start(boss)
        child = child_of(temporal, run, "w1")
        await until(lambda: there(child))
        await child.cancel()
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert [message.status for message in tool_results(await temporal.messages())] == ["cancelled"]


@pytest.mark.slow
async def test_a_cancel_reaches_the_child_first(temporal: Temporal) -> None:
    async def cancelled(caller: Agent) -> None:
        run = await temporal.start(caller, session=caller.name)
        child = child_of(temporal, run, "w1")
        await until(lambda: there(child))
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await result(run)
        assert isinstance(ended.value.cause, CancelledError)
        assert await run_status(child) == WorkflowExecutionStatus.CANCELED
        below, above = [(await handle.describe()).close_time for handle in (child, run)]
        assert below is not None
        assert above is not None
        assert below <= above
        await check_healthy(run)
        await check_healthy(child)
        assert shape(await temporal.messages(caller.name)) == ["user go", "calls w1", "result w1"]

    as_tool = Agent("boss", model="boss", tools=[writer])
    from_handler = Agent("chief", model="chief", tools=[delegating(writer)])
    calls = {"boss": call("writer", "w1", message="x"), "chief": call("delegate", "w1")}
    script = models(writer=_never, **{name: [asks_for(first)] for name, first in calls.items()})
    async with temporal.worker(as_tool, from_handler, writer, llm=script):
        await asyncio.gather(*(cancelled(agent) for agent in (as_tool, from_handler)))


async def test_a_handler_that_is_retried_finds_the_agent_that_it_started(temporal: Temporal) -> None:
    tries: list[int] = []

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
    async def delegate(ctx: ToolContext) -> str:
        """Delegate, and stumble behind it."""
        tries.append(1)
        answer = (await ctx.agents.invoke(writer, message="x"))["response"]
        if len(tries) == 1:
            raise RetryableError("stumbled")
        return answer

    letters = ScriptedModel(["Dear Ada", "Dear Bob"])
    caller = Agent("boss", model="boss", tools=[delegate])
    there = {"boss": ScriptedModel([asks_for(call("delegate", "d1")), "ok"]), "writer": letters}.__getitem__
    async with temporal.worker(caller, writer, llm=there):
        await temporal.run(caller)
    assert (len(tries), len(letters.calls)) == (2, 1)
    assert result_of(await temporal.messages(), "d1") == "Dear Ada"


async def test_a_retry_that_asks_something_else_gets_its_own_agent(temporal: Temporal) -> None:
    tries: list[int] = []

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
    async def delegate(ctx: ToolContext) -> str:
        """Delegate something else each time."""
        tries.append(1)
        answer = (await ctx.agents.invoke(writer, message=f"try {len(tries)}"))["response"]
        if len(tries) == 1:
            raise RetryableError("stumbled")
        return answer

    caller = Agent("boss", model="boss", tools=[delegate])
    script = models(boss=[asks_for(call("delegate", "d1")), "ok"], writer=lambda messages, tools: messages[-1].content)
    async with temporal.worker(caller, writer, llm=script):
        await temporal.run(caller)
    assert result_of(await temporal.messages(), "d1") == "try 2"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("forgotten", ["pruned", "deleted"])
@pytest.mark.parametrize("way", ["as a tool", "from a handler"])
async def test_a_call_never_gets_the_answer_of_another_call_with_its_id(
    temporal: Temporal, way: str, forgotten: str
) -> None:
    caller = Agent("boss", model="boss", tools=[writer if way == "as a tool" else delegating(writer)])
    letters: list[str] = []

    def lead(messages: list[Message], tools: Any) -> Any:
        if not messages[-1].content.startswith("write"):
            return f"heard {messages[-1].content}"
        if way == "as a tool":
            return asks_for(call("writer", "call_0", message=messages[-1].content))
        return asks_for(call("delegate", "call_0"))

    def write(messages: list[Message], tools: Any) -> str:
        letters.append(messages[-1].content)
        return f"letter {len(letters)}"

    async with temporal.worker(caller, writer, llm=models(boss=lead, writer=write), max_stored_messages=2):
        assert "letter 1" in (await temporal.run(caller, "write one"))["response"]
        if forgotten == "deleted":
            await temporal.store.delete_session(temporal.session())
        else:
            await temporal.run(caller, "chat")
        assert "letter 2" in (await temporal.run(caller, "write two"))["response"]
    assert len(letters) == 2


async def test_an_agent_invoked_from_a_handler_asks_through_its_caller(temporal: Temporal) -> None:
    asking = Agent("writer", model="writer", tools=[ask])
    caller = Agent("boss", model="boss", tools=[delegating(asking)])
    script = models(
        boss=[asks_for(call("delegate", "d1")), "ok"], writer=[asks_for(call("ask", "a1", question="To whom?"))]
    )
    async with temporal.worker(caller, asking, llm=script):
        run = await temporal.start(caller)
        assert [(item["name"], item["message"]) for item in await pending(run)] == [("d1", "To whom?")]
        await run.execute_update("answer", {"text": "to Ada"})
        await result(run)
        await check_healthy(run)
    assert result_of(await temporal.messages(), "d1") == "to Ada"


async def test_parallel_agents_of_a_turn_all_answer(driver: Driver) -> None:
    def write(messages: list[Message], tools: Any) -> str:
        return f"wrote {messages[-1].content}"

    calls = [call("writer", f"w{n}", message=f"m{n}") for n in range(6)]
    ended = await driver.run(boss, models(boss=[asks_for(*calls), "ok"], writer=write), also=[writer])
    assert [message.content for message in tool_results(ended.messages)] == [f"wrote m{n}" for n in range(6)]


async def test_a_model_of_a_child_that_is_away_for_a_moment_delays_its_caller(temporal: Temporal) -> None:
    script = models(boss=ONE_LETTER, writer=[ModelError("slow", transient=True, retry_after=0.05), "Dear Ada"])
    async with temporal.worker(boss, writer, llm=script):
        run = await temporal.start(boss)
        assert (await result(run))["status"] == "complete"
        assert await waiting(run) == []


async def test_a_session_of_a_child_has_the_owner_of_its_parent(temporal: Temporal) -> None:
    driver = OnTemporal(temporal)
    await driver.run(boss, models(boss=ONE_LETTER, writer=["Dear Ada"]), also=[writer], user_id="ada", tenant_id="acme")
    sessions = await temporal.store.list_sessions(agent_name="writer")
    assert [(session.user_id, session.tenant_id) for session in sessions] == [("ada", "acme")]
