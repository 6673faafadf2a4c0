"""Agents that call agents: `ctx.agents.invoke`, and agents given as tools."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    Agent,
    AgentContext,
    HoldfastError,
    LLMResponse,
    Loop,
    Message,
    RunResult,
    TerminalError,
    Tool,
    ToolCall,
    ToolContext,
    Usage,
    assert_complete,
    is_interrupted,
    resume,
    run,
    tool,
)
from holdfast.errors import InterruptError
from holdfast.stores import SQLiteStore
from holdfast.testing import ScriptedModel, crash_after_tool_results


def call(name: str, call_id: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def asks_for(*calls: ToolCall, tokens: int | None = None) -> LLMResponse:
    return LLMResponse(tool_calls=calls, usage=None if tokens is None else Usage(input_tokens=tokens))


def says(text: str, tokens: int) -> LLMResponse:
    return LLMResponse(text=text, usage=Usage(input_tokens=tokens))


def results(result: RunResult) -> list[Message]:
    return [message for message in result.messages if message.role == "tool"]


def error(result: RunResult) -> str:
    return str(json.loads(results(result)[0].content)["error"])


def delegating(child: Agent, **options: Any) -> Tool[..., Any]:
    @tool
    async def delegate(ctx: ToolContext) -> Any:
        return await ctx.agents.invoke(child, message="go", **options)

    return delegate


def recording(seen: list[Any], read: Callable[[ToolContext], Any]) -> Tool[..., Any]:
    @tool
    async def record(ctx: ToolContext) -> None:
        seen.append(read(ctx))

    return record


async def test_an_invoked_agent_runs_its_whole_loop_and_gives_its_response() -> None:
    @tool
    async def look() -> str:
        return "rain"

    child = Agent("child", tools=[look])
    model = ScriptedModel([asks_for(call("delegate", "c")), asks_for(call("look", "c")), "It rains.", "Take a coat."])
    result = assert_complete(await run(Agent("parent", tools=[delegating(child)]), message="hi", llm=model))
    assert (result.response, result.iterations) == ("Take a coat.", 2)
    assert json.loads(results(result)[0].content) == {"response": "It rains."}


async def test_an_agent_given_as_a_tool_is_asked_by_a_message() -> None:
    child = Agent("weather", description="Knows the weather.")
    model = ScriptedModel([asks_for(call("weather", "c", message="In Rome?")), "Sunny.", "Go."])
    result = assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model))
    assert (result.response, results(result)[0].content) == ("Go.", "Sunny.")
    offered = model.calls[0].tools[0]
    assert (offered.name, offered.description, list(offered.input_schema["properties"])) == (
        "weather",
        "Knows the weather.",
        ["message"],
    )
    assert model.calls[1].messages[-1] == Message(role="user", content="In Rome?")


async def test_a_child_sees_nothing_of_its_parents_transcript() -> None:
    child = Agent("child", instructions="You are the child.")
    model = ScriptedModel([asks_for(call("delegate", "c")), "ok", "done"])
    await run(Agent("parent", tools=[delegating(child)]), message="secret", llm=model)
    assert [(m.role, m.content) for m in model.calls[1].messages] == [
        ("system", "You are the child."),
        ("user", "go"),
    ]


async def test_the_child_is_offered_its_own_tools_and_settings() -> None:
    @tool
    async def look() -> str:
        return "x"

    child = Agent("child", tools=[look], settings={"max_tokens": 5})
    model = ScriptedModel([asks_for(call("delegate", "c")), "ok", "done"])
    await run(Agent("parent", tools=[delegating(child)]), message="hi", llm=model)
    assert [[offered.name for offered in asked.tools] for asked in model.calls] == [
        ["delegate"],
        ["look"],
        ["delegate"],
    ]
    assert [asked.settings for asked in model.calls] == [{}, {"max_tokens": 5}, {}]


async def test_every_agent_is_answered_by_its_own_model() -> None:
    child = Agent("child", model="small")
    models = {"big": ScriptedModel([asks_for(call("delegate", "c")), "done"]), "small": ScriptedModel(["ok"])}
    parent = Agent("parent", model="big", tools=[delegating(child)])
    assert_complete(await run(parent, message="hi", llm=lambda name: models[name or ""]))
    assert [len(model.calls) for model in models.values()] == [2, 1]


# --- identity ---


@pytest.mark.parametrize("identity", [("ada", "acme"), (None, None)], ids=["somebody", "nobody"])
async def test_identity_is_inherited_through_three_levels(identity: tuple[str | None, str | None]) -> None:
    seen: list[Any] = []
    record = recording(seen, lambda ctx: (ctx.agent_name, ctx.user_id, ctx.tenant_id))
    third = Agent("third", tools=[record])
    second = Agent("second", tools=[record, third])
    first = Agent("first", tools=[record, second])
    model = ScriptedModel(
        [
            asks_for(call("record", "a"), call("second", "b", message="go")),
            asks_for(call("record", "a"), call("third", "b", message="go")),
            asks_for(call("record", "a")),
            "three",
            "two",
            "one",
        ]
    )
    await run(first, message="hi", user_id=identity[0], tenant_id=identity[1], llm=model)
    assert seen == [("first", *identity), ("second", *identity), ("third", *identity)]


async def test_identity_may_be_given_instead_of_inherited() -> None:
    seen: list[Any] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: (ctx.user_id, ctx.tenant_id, ctx.agent_id))])
    parent = Agent("parent", tools=[delegating(child, user_id="bob", instance_id="i-7")])
    model = ScriptedModel([asks_for(call("delegate", "c")), asks_for(call("record", "c")), "ok", "done"])
    await run(parent, message="hi", user_id="ada", tenant_id="acme", llm=model)
    assert seen == [("bob", "acme", "i-7")]


async def test_the_hooks_of_a_child_get_its_own_context() -> None:
    seen: list[Any] = []

    def started(context: AgentContext) -> None:
        seen.append((context.agent.name, context.agent.id, context.state))

    child = Agent("child", initial_state={"n": 1}, on_start=started)
    model = ScriptedModel([asks_for(call("delegate", "c")), "ok", "done"])
    parent = Agent("parent", tools=[delegating(child)])
    await run(parent, message="hi", instance_id="i-1", llm=model)
    ((name, agent_id, state),) = seen
    assert (name, state) == ("child", {"n": 1})
    assert agent_id != "i-1"


# --- what a child shares with its parent ---


async def test_injected_handlers_reach_children_and_grandchildren() -> None:
    post: Tool[..., Any] = Tool("post", description="Post.")
    third = Agent("third", tools=[post])
    second = Agent("second", tools=[third])
    first = Agent("first", tools=[second])
    model = ScriptedModel(
        [
            asks_for(call("second", "c", message="go")),
            asks_for(call("third", "c", message="go")),
            asks_for(call("post", "c")),
            "three",
            "two",
            "one",
        ]
    )
    await run(first, message="hi", tools={"post": lambda: "injected"}, llm=model)
    assert model.calls[3].messages[-1].content == "injected"


async def test_a_child_has_no_session_and_stores_nothing_of_its_own(store: SQLiteStore) -> None:
    seen: list[Any] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: ctx.session_id)])
    parent = Agent("parent", tools=[delegating(child)])
    model = ScriptedModel([asks_for(call("delegate", "c")), asks_for(call("record", "c")), "ok", "done"])
    result = assert_complete(await run(parent, message="hi", session_id="s", store=store, llm=model))
    assert seen == [None]
    assert [session.id for session in await store.list_sessions()] == ["s"]
    assert await store.load_messages("s") == list(result.messages)
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


async def test_keys_of_a_child_differ_from_those_of_its_siblings() -> None:
    seen: list[str] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: ctx.idempotency_key)])
    model = ScriptedModel(
        [
            asks_for(call("child", "c1", message="go"), call("child", "c2", message="go")),
            asks_for(call("record", "c")),
            "ok",
            asks_for(call("record", "c")),
            "ok",
            "done",
        ]
    )
    await run(Agent("parent", tools=[child]), message="hi", llm=model)
    assert len(seen) == len(set(seen)) == 2


async def test_keys_of_two_runs_of_one_child_instance_differ() -> None:
    seen: list[str] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: ctx.idempotency_key)])
    parent = Agent("parent", tools=[delegating(child, instance_id="i-7")])
    model = ScriptedModel(
        [
            asks_for(call("delegate", "c1"), call("delegate", "c2")),
            asks_for(call("record", "c")),
            "ok",
            asks_for(call("record", "c")),
            "ok",
            "done",
        ]
    )
    await run(parent, message="hi", llm=model)
    assert len(seen) == len(set(seen)) == 2


# --- failures ---


@pytest.mark.parametrize(
    ("loop", "answer", "status"),
    [
        (Loop(), RuntimeError("no quota"), "error"),
        (Loop(max_iterations=1), asks_for(call("nope", "c")), "max-iterations"),
        (Loop(stuck_threshold=1), asks_for(call("nope", "c")), "stuck"),
    ],
    ids=["error", "max-iterations", "stuck"],
)
async def test_a_child_that_did_not_complete_is_an_error_for_its_parent(loop: Loop, answer: Any, status: str) -> None:
    child = Agent("child", loop=loop)
    model = ScriptedModel([asks_for(call("delegate", "c")), answer, "done"])
    result = assert_complete(await run(Agent("parent", tools=[delegating(child)]), message="hi", llm=model))
    assert result.status == "complete"
    assert results(result)[0].status == "failed"
    assert error(result).startswith(f"Agent 'child' ended with {status}")


async def test_a_handler_may_catch_the_failure_of_a_child() -> None:
    child = Agent("child")

    @tool
    async def delegate(ctx: ToolContext) -> str:
        try:
            await ctx.agents.invoke(child, message="go")
        except HoldfastError as failure:
            return f"without the child: {failure}"
        return "never"

    model = ScriptedModel([asks_for(call("delegate", "c")), RuntimeError("no quota"), "done"])
    result = assert_complete(await run(Agent("parent", tools=[delegate]), message="hi", llm=model))
    assert results(result)[0].content == "without the child: Agent 'child' ended with error: no quota"


async def test_an_agent_cannot_be_invoked_with_what_is_no_message() -> None:
    child = Agent("child")

    @tool
    async def delegate(ctx: ToolContext) -> Any:
        return await ctx.agents.invoke(child, message=5)  # type: ignore[arg-type]

    model = ScriptedModel([asks_for(call("delegate", "c")), "done"])
    result = assert_complete(await run(Agent("parent", tools=[delegate]), message="hi", llm=model))
    assert "message must be text" in error(result)


# --- questions ---


@tool
async def ask_user(question: str) -> str:
    """Ask the user."""
    raise InterruptError(question)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "stateless"])
async def test_a_question_of_a_child_surfaces_and_its_answer_becomes_the_result_of_the_delegating_call(
    store: SQLiteStore, stored: bool
) -> None:
    child = Agent("child", tools=[ask_user])
    parent = Agent("parent", tools=[delegating(child)])
    model = ScriptedModel([asks_for(call("delegate", "d1")), asks_for(call("ask_user", "c", question="When?"))])
    options: dict[str, Any] = {"store": store, "session_id": "s"} if stored else {}
    asked = await run(parent, message="hi", llm=model, **options)
    assert is_interrupted(asked)
    assert (asked.question, asked.checkpoint.pending_tool_use_id) == ("When?", "d1")
    assert [message.role for message in asked.checkpoint.messages] == ["user", "assistant"]
    answered = ScriptedModel(["done"])
    result = assert_complete(await resume(parent, asked.checkpoint, "Friday", llm=answered, **options))
    assert result.status == "complete"
    assert answered.calls[0].messages[-1] == Message(
        role="tool", content="Friday", tool_call_id="d1", tool_name="delegate", status="completed"
    )


async def test_a_question_surfaces_through_two_levels() -> None:
    inner = Agent("inner", tools=[ask_user])
    middle = Agent("middle", tools=[inner])
    model = ScriptedModel(
        [
            asks_for(call("middle", "m", message="go")),
            asks_for(call("inner", "i", message="go")),
            asks_for(call("ask_user", "c", question="When?")),
        ]
    )
    asked = await run(Agent("outer", tools=[middle]), message="hi", llm=model)
    assert is_interrupted(asked)
    assert (asked.question, asked.checkpoint.pending_tool_use_id) == ("When?", "m")


async def test_a_stuck_child_that_escalates_asks_the_outermost_caller() -> None:
    child = Agent("child", loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    parent = Agent("parent", tools=[child])
    model = ScriptedModel([asks_for(call("child", "d1", message="go")), asks_for(call("nope", "c"))])
    asked = await run(parent, message="hi", llm=model)
    assert is_interrupted(asked)
    assert asked.checkpoint.pending_tool_use_id == "d1"


# --- usage ---


async def test_tokens_of_children_are_counted() -> None:
    child = Agent("child")
    model = ScriptedModel([asks_for(call("child", "c", message="go"), tokens=1), says("ok", 10), says("done", 100)])
    result = assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model))
    assert (result.usage, result.checkpoint.usage) == (Usage(input_tokens=111), Usage(input_tokens=111))


async def test_tokens_of_grandchildren_and_failed_children_are_counted() -> None:
    inner = Agent("inner", loop=Loop(max_iterations=1))
    middle = Agent("middle", tools=[inner])
    model = ScriptedModel(
        [
            asks_for(call("middle", "m", message="go"), tokens=1),
            asks_for(call("inner", "i", message="go"), tokens=10),
            asks_for(call("nope", "c"), tokens=100),
            says("two", 1_000),
            says("one", 10_000),
        ]
    )
    result = assert_complete(await run(Agent("outer", tools=[middle]), message="hi", llm=model))
    assert result.usage == Usage(input_tokens=11_111)


async def test_tokens_of_a_child_that_asks_are_counted() -> None:
    child = Agent("child", tools=[ask_user])
    parent = Agent("parent", tools=[child])
    first = ScriptedModel(
        [asks_for(call("child", "d", message="go"), tokens=1), asks_for(call("ask_user", "c", question="?"), tokens=10)]
    )
    asked = await run(parent, message="hi", llm=first)
    assert is_interrupted(asked)
    assert asked.checkpoint.usage == Usage(input_tokens=11)
    result = assert_complete(await resume(parent, asked.checkpoint, "x", llm=ScriptedModel([says("done", 100)])))
    assert result.usage == Usage(input_tokens=111)


async def test_tokens_of_a_child_that_failed_for_good_are_counted() -> None:
    @tool
    async def charge() -> None:
        raise TerminalError("blocked")

    child = Agent("child", tools=[charge], on_terminal_tool_error="fail")
    model = ScriptedModel(
        [
            asks_for(call("child", "d", message="go"), tokens=1),
            asks_for(call("charge", "c"), tokens=10),
            says("done", 100),
        ]
    )
    result = assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model))
    assert result.usage == Usage(input_tokens=111)


async def test_what_children_use_counts_against_the_budget_of_their_parent() -> None:
    child = Agent("child")
    parent = Agent("parent", tools=[child], loop=Loop(token_budget=100))
    model = ScriptedModel([asks_for(call("child", "c", message="go"), tokens=1), says("ok", 200)])
    result = assert_complete(await run(parent, message="hi", llm=model))
    assert (result.status, len(model.calls)) == ("token-budget-exhausted", 2)


async def test_usage_stays_none_when_neither_parent_nor_child_reports_any() -> None:
    child = Agent("child")
    model = ScriptedModel([asks_for(call("child", "c", message="go")), "ok", "done"])
    assert assert_complete(await run(Agent("parent", tools=[child]), message="hi", llm=model)).usage is None


async def test_the_calls_of_an_invoked_agent_have_the_same_keys_after_a_crash(store: SQLiteStore) -> None:
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> None:
        """Pay."""
        keys.append(ctx.idempotency_key)

    child = Agent("child", tools=[pay])

    @tool(safe_to_retry=True)
    async def delegate(ctx: ToolContext) -> None:
        """Delegate twice."""
        await ctx.agents.invoke(child, message="one")
        await ctx.agents.invoke(child, message="two")

    def answer(messages: list[Message], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        name = tools[0].name
        return {"tool_calls": [{"id": "c", "name": name}]}

    agent = Agent("parent", tools=[delegate])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="go", session_id="s", store=crash_after_tool_results(store), llm=ScriptedModel(answer))
    await run(agent, session_id="s", store=store, llm=ScriptedModel(answer))
    assert (keys[:2], len(set(keys))) == (keys[2:], 2)


async def test_agents_that_invoke_each_other_for_ever_come_to_an_end() -> None:
    agents: dict[str, Agent] = {}

    @tool
    async def again(ctx: ToolContext) -> str:
        """Ask the same agent again."""
        return (await ctx.agents.invoke(agents["loop"], message="again"))["response"]

    agents["loop"] = Agent("loop", tools=[again])
    depth: list[int] = []

    def answer(messages: list[Message], tools: list[Any]) -> Any:
        depth.append(len(messages))
        return messages[-1].content if messages[-1].role == "tool" else {"tool_calls": [{"id": "c", "name": "again"}]}

    result = assert_complete(await run(agents["loop"], message="go", llm=ScriptedModel(answer)))
    assert "agents invoke each other 16 deep already" in result.response
    assert len(depth) == 34
