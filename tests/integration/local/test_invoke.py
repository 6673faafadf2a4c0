"""Agents that call agents: `ctx.agents.invoke`, and agents given as tools."""

import json
from typing import Any

import pytest
from support.doubles import delegating, recording
from support.questions import ask_user
from support.transcripts import asks_for, call, error, results

from standfast import (
    Agent,
    AgentContext,
    Loop,
    Message,
    StandfastError,
    Tool,
    ToolContext,
    assert_complete,
    is_interrupted,
    resume,
    run,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- runs ---


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
        except StandfastError as failure:
            return f"without the child: {failure}"
        return "never"

    model = ScriptedModel([asks_for(call("delegate", "c")), RuntimeError("no quota"), "done"])
    result = assert_complete(await run(Agent("parent", tools=[delegate]), message="hi", llm=model))
    assert results(result)[0].content == "without the child: Agent 'child' ended with error: no quota"


async def test_an_agent_cannot_be_invoked_with_what_is_not_a_message() -> None:
    child = Agent("child")

    @tool
    async def delegate(ctx: ToolContext) -> Any:
        return await ctx.agents.invoke(child, message=5)  # type: ignore[arg-type]

    model = ScriptedModel([asks_for(call("delegate", "c")), "done"])
    result = assert_complete(await run(Agent("parent", tools=[delegate]), message="hi", llm=model))
    assert "message must be text" in error(result)


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


# --- questions ---


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
