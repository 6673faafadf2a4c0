"""Agents are declared once, checked when they are declared, and never change."""

import dataclasses
from typing import Any

import pytest
from support.tools import Counter

from standfast import Agent, AgentContext, DefinitionError, Loop, Tool, ToolContext, run, tool
from standfast.agents import AgentIdentity
from standfast.testing import ScriptedModel


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool(parallel=True)
def fetch() -> str:
    """Fetch."""
    return "fetched"


@tool(name="look")
def look_again() -> str:
    """Look again."""
    return "seen again"


def undecorated() -> None: ...


def context(state: Any = None) -> AgentContext:
    return AgentContext(AgentIdentity("id-1", "greeter"), state)


# --- names and defaults ---


@pytest.mark.parametrize("name", ["a", "a-", "a--b", "triage", "a1-2", "a_b", "a_", "call_model", "a_2", "a-_b"])
def test_a_name_starts_with_a_small_letter(name: str) -> None:
    assert Agent(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "MyAgent",
        "1a",
        "-a",
        "_a",
        "a_B",
        "a_é",
        "a_\n",
        "a_/b",
        "a_.b",
        "__init__",
        "é",
        "a b",
        "abc\n",
        "\nabc",
        None,
        5,
        b"a",
    ],
)
def test_another_name_is_refused_and_the_rule_is_named(name: Any) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent(name)
    assert str(caught.value) == f"Agent name must match ^[a-z][a-z0-9_-]*$, got {name!r}"


def test_an_agent_needs_only_a_name() -> None:
    agent = Agent("greeter")

    assert {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)} == {
        "name": "greeter",
        "formerly": (),
        "model": None,
        "fallback_models": (),
        "instructions": None,
        "tools": (),
        "handoffs": (),
        "description": None,
        "context": None,
        "deps": None,
        "state": None,
        "initial_state": None,
        "output": None,
        "loop": Loop(),
        "settings": {},
        "access": {},
        "input_guardrails": (),
        "output_guardrails": (),
        "tool_guardrails": (),
        "output_validators": (),
        "on_start": None,
        "on_complete": None,
        "on_stuck": None,
        "on_terminal_tool_error": "message",
        "lane": None,
        "adapter": None,
    }


def test_what_is_declared_is_kept() -> None:
    loop = Loop(max_iterations=3)
    agent = Agent(
        "greeter",
        model="anthropic:claude-sonnet-4-6",
        instructions="Greet.",
        tools=[look],
        description="Greets.",
        state=Counter,
        output=Counter,
        loop=loop,
        settings={"max_tokens": 5},
        access={"start": callable},
        on_start=print,
        on_terminal_tool_error="stop",
    )

    assert (agent.model, agent.instructions, agent.description) == ("anthropic:claude-sonnet-4-6", "Greet.", "Greets.")
    assert (agent.state, agent.output, agent.loop, agent.tools[0]) == (Counter, Counter, loop, look)
    assert (agent.settings, agent.access) == ({"max_tokens": 5}, {"start": callable})
    assert (agent.on_start, agent.on_terminal_tool_error) == (print, "stop")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="prompt"):
        Agent("greeter", prompt="Greet.")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"model": 5}, "model must be text like 'anthropic:claude-sonnet-4-6', got 5"),
        ({"description": ""}, "description must be a non-empty string"),
        ({"description": "  "}, "description must be a non-empty string"),
        ({"description": 5}, "description must be a non-empty string"),
        ({"loop": {"max_iterations": 3}}, "loop must be a Loop, got {'max_iterations': 3}"),
        ({"loop": None}, "loop must be a Loop, got None"),
        ({"on_start": 5}, "on_start must be callable, got 5"),
        ({"on_complete": "print"}, "on_complete must be callable, got 'print'"),
        ({"on_stuck": []}, "on_stuck must be callable, got []"),
        ({"settings": []}, "settings must be a mapping, got []"),
        ({"access": None}, "access maps 'start' and 'approve' to functions of a user, got None"),
        ({"access": {"stop": len}}, "access maps 'start' and 'approve' to functions of a user"),
        ({"access": {"start": True}}, "access['start'] must be a function of a user, got True"),
        (
            {"on_terminal_tool_error": "ignore"},
            "on_terminal_tool_error must be one of message, stop, fail, got 'ignore'",
        ),
        ({"instructions": 5}, "instructions must be texts or functions"),
        ({"instructions": True}, "instructions must be texts or functions"),
        ({"instructions": b"Greet."}, "instructions must be texts or functions"),
        ({"instructions": ["Greet.", 5]}, "instructions must be texts or functions"),
        ({"instructions": {"system": "Greet."}}, "instructions must be texts or functions"),
        ({"tools": None}, "tools must be a list of tools, got None"),
        ({"tools": "look"}, "tools must be a list of tools"),
        ({"tools": {"look": look}}, "tools must be a list of tools"),
        ({"tools": look}, "tools must be a list of tools"),
        ({"tools": [undecorated]}, "tools: undecorated is not a Tool; decorate the function with @tool"),
        ({"tools": [5]}, "tools: 5 is not a Tool; decorate the function with @tool"),
        ({"tools": [Tool]}, "tools: Tool is not a Tool; decorate the function with @tool"),
        ({"tools": [look, look_again]}, "tools: two are named 'look'"),
        ({"tools": [Agent("child"), Agent("child")]}, "tools: two are named 'child'"),
    ],
)
def test_a_wrong_declaration_names_the_agent_the_field_and_the_rule(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent("greeter", **options)
    assert str(caught.value).startswith(f"Agent 'greeter': {rule}")


# --- immutability ---


def test_an_agent_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Agent("greeter").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("path", [(), ("nested",)], ids=["outer", "nested"])
def test_settings_are_frozen_all_the_way_down(path: tuple[str, ...]) -> None:
    value: Any = Agent("greeter", settings={"nested": {"a": 1}}).settings
    for name in path:
        value = value[name]

    with pytest.raises(TypeError, match="does not support item assignment"):
        value["a"] = 2


def test_settings_do_not_change_with_what_was_given() -> None:
    settings: dict[str, Any] = {"nested": {"a": [1]}}
    agent = Agent("greeter", settings=settings)
    settings["nested"]["a"].append(2)
    settings["more"] = 1

    assert list(agent.settings) == ["nested"]
    assert tuple(agent.settings["nested"]["a"]) == (1,)


def test_access_does_not_change_any_more() -> None:
    access: dict[str, Any] = {"start": callable}
    agent = Agent("greeter", access=access)
    access["approve"] = callable
    assert list(agent.access) == ["start"]
    with pytest.raises(TypeError, match="does not support item assignment"):
        agent.access["approve"] = callable  # type: ignore[index]


def test_tools_do_not_change_with_the_list_that_was_given() -> None:
    given: list[Any] = [look]
    agent = Agent("greeter", tools=given)
    given.append(fetch)

    assert (agent.tools, list(agent.tool_map)) == ((look,), ["look"])


async def test_instructions_do_not_change_with_the_list_that_was_given() -> None:
    given = ["Greet."]
    agent = Agent("greeter", instructions=given)
    given.append("Shout.")

    assert await agent.system_prompt(context()) == "Greet."


async def test_instructions_may_come_from_a_generator() -> None:
    agent = Agent("greeter", instructions=(text for text in ["Greet.", "Shout."]))  # type: ignore[arg-type]

    assert [await agent.system_prompt(context()) for _ in range(2)] == ["Greet.\nShout."] * 2


def test_the_map_of_tools_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        Agent("greeter").tool_map["look"] = look  # type: ignore[index]


async def test_settings_reach_the_adapter_as_plain_data() -> None:
    settings = {"max_tokens": 5, "metadata": {"tags": ["a", {"b": 1}]}}
    model = ScriptedModel(["hi"])
    await run(Agent("greeter", settings=settings), message="hi", llm=model)

    assert model.calls[0].settings == settings
    assert [type(value) for value in model.calls[0].settings.values()] == [int, dict]


async def test_an_adapter_that_changes_its_settings_changes_no_other_call() -> None:
    agent = Agent("greeter", settings={"metadata": {"a": 1}})
    model = ScriptedModel(["hi", "hi"])
    await run(agent, message="hi", llm=model)
    model.calls[0].settings.clear()
    await run(agent, message="hi", llm=model)

    assert model.calls[1].settings == {"metadata": {"a": 1}}


# --- tools ---


def test_tools_are_kept_by_identity_and_found_by_name() -> None:
    agent = Agent("greeter", tools=[look, fetch])

    assert agent.tools[0] is look
    assert agent.tool_map["fetch"] is fetch


def test_an_agent_among_the_tools_is_a_tool_with_a_message() -> None:
    agent = Agent("greeter", tools=[look, Agent("helper", description="Helps.")])
    helper = agent.tool_map["helper"]

    assert (helper.name, helper.description, helper.safe_to_retry) == ("helper", "Helps.", False)
    assert helper.input_schema == {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    }


class Echo:
    async def invoke(self, agent: Agent, *, message: str, **identity: Any) -> dict[str, str]:
        return {"response": f"{agent.name} heard {message}"}


async def test_an_agent_among_the_tools_is_invoked_and_its_response_is_the_result() -> None:
    helper = Agent("greeter", tools=[Agent("helper")]).tool_map["helper"]

    assert await helper(message="hi", ctx=ToolContext(agents=Echo())) == "helper heard hi"


def test_an_agent_without_a_description_is_described_by_its_name() -> None:
    assert Agent("greeter", tools=[Agent("helper")]).tool_map["helper"].description == "Ask the agent helper."


def test_an_agent_whose_name_is_too_long_for_a_tool_is_refused_as_one() -> None:
    with pytest.raises(DefinitionError, match="Tool name must match"):
        Agent("greeter", tools=[Agent("a" * 65)])


# --- instructions ---


async def give_later(ctx: AgentContext) -> str:
    return f"I am {ctx.agent.name}."


class Instructor:
    def __call__(self, ctx: AgentContext) -> str:
        return f"State: {ctx.state}."


class AsyncInstructor:
    async def __call__(self, ctx: AgentContext) -> str:
        return f"Id: {ctx.agent.id}."


DEFAULT = 'You are an AI agent named "greeter". Use the available tools to accomplish the user\'s request.'


@pytest.mark.parametrize(
    ("instructions", "prompt"),
    [
        (None, DEFAULT),
        ("", DEFAULT),
        ([], DEFAULT),
        ([""], DEFAULT),
        ("Greet.", "Greet."),
        (["Greet.", "Shout."], "Greet.\nShout."),
        (lambda ctx: f"I am {ctx.agent.name}.", "I am greeter."),
        (lambda ctx: "", DEFAULT),
        (give_later, "I am greeter."),
        (
            ("Greet.", give_later, lambda ctx: "Shout.", Instructor(), AsyncInstructor()),
            "Greet.\nI am greeter.\nShout.\nState: 5.\nId: id-1.",
        ),
    ],
)
async def test_instructions_become_the_system_prompt(instructions: Any, prompt: str) -> None:
    assert await Agent("greeter", instructions=instructions).system_prompt(context(5)) == prompt


async def give_nothing(ctx: AgentContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "got"), [(lambda ctx: None, "None"), (lambda ctx: 5, "5"), (give_nothing, "None")]
)
async def test_instructions_that_give_no_text_are_named(function: Any, got: str) -> None:
    with pytest.raises(DefinitionError, match=f"Agent 'greeter': instructions must give text, got {got}"):
        await Agent("greeter", instructions=function).system_prompt(context())


# --- the context of hooks ---


@pytest.mark.parametrize(("user_id", "authenticated"), [(None, False), ("ada", True), ("", True)])
def test_somebody_is_authenticated_who_has_a_user_id(user_id: str | None, authenticated: bool) -> None:
    assert AgentContext(AgentIdentity("1", "greeter"), {}, user_id).authenticated() is authenticated


def test_a_state_that_somebody_changes_is_not_the_state_of_the_next_run() -> None:
    agent = Agent("greeter", initial_state={"seen": []})
    agent.initial_state["seen"].append("x")

    assert agent.new_state() == {"seen": []}


@pytest.mark.parametrize("settings", [{"messages": []}, {"tools": []}, {5: 1}], ids=repr)
def test_a_setting_that_chat_cannot_take_is_refused(settings: Any) -> None:
    with pytest.raises(DefinitionError, match="Agent 'greeter': settings"):
        Agent("greeter", settings=settings)


def test_an_agent_says_what_it_is() -> None:
    assert Agent("greeter").kind == "agent"
