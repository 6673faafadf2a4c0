"""Agents are declared once, checked when they are declared, and never change."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import (
    Agent,
    AgentContext,
    ContextCompression,
    DefinitionError,
    DiminishingReturns,
    Loop,
    Message,
    TokenBudget,
    Tool,
    ToolContext,
    run,
    tool,
)
from holdfast.agents import AgentIdentity
from holdfast.testing import ScriptedModel


class Counter(BaseModel):
    count: int = 0
    seen: list[str] = []


class Required(BaseModel):
    count: int


class Opaque:
    pass


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


@pytest.mark.parametrize("name", ["a", "a-", "a--b", "triage", "a1-2"])
def test_a_name_starts_with_a_small_letter(name: str) -> None:
    assert Agent(name).name == name


@pytest.mark.parametrize("name", ["", "MyAgent", "1a", "-a", "a_b", "é", "a b", "abc\n", "\nabc", None, 5, b"a"])
def test_another_name_is_refused_and_the_rule_is_named(name: Any) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent(name)
    assert str(caught.value) == f"Agent name must match ^[a-z][a-z0-9-]*$, got {name!r}"


def test_an_agent_needs_only_a_name() -> None:
    agent = Agent("greeter")

    assert {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)} == {
        "name": "greeter",
        "model": None,
        "instructions": None,
        "tools": (),
        "description": None,
        "state": None,
        "initial_state": None,
        "output": None,
        "loop": Loop(),
        "settings": {},
        "access": {},
        "on_start": None,
        "on_complete": None,
        "on_stuck": None,
        "on_terminal_tool_error": "message",
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
        access={"start": "all"},
        on_start=print,
        on_terminal_tool_error="stop",
    )

    assert (agent.model, agent.instructions, agent.description) == ("anthropic:claude-sonnet-4-6", "Greet.", "Greets.")
    assert (agent.state, agent.output, agent.loop, agent.tools[0]) == (Counter, Counter, loop, look)
    assert (agent.settings, agent.access) == ({"max_tokens": 5}, {"start": "all"})
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
        ({"access": None}, "access must be a mapping, got None"),
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
        ({"tools": [undecorated]}, "tools: undecorated is no Tool; decorate the function with @tool"),
        ({"tools": [5]}, "tools: 5 is no Tool; decorate the function with @tool"),
        ({"tools": [Tool]}, "tools: Tool is no Tool; decorate the function with @tool"),
        ({"tools": [look, look_again]}, "tools: two are named 'look'"),
        ({"tools": [Agent("child"), Agent("child")]}, "tools: two are named 'child'"),
    ],
    ids=str,
)
def test_a_wrong_declaration_names_the_agent_the_field_and_the_rule(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent("greeter", **options)
    assert str(caught.value).startswith(f"Agent 'greeter': {rule}")


# --- immutability ---


def test_an_agent_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Agent("greeter").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("field", ["settings", "access"])
@pytest.mark.parametrize("path", [(), ("nested",)], ids=["outer", "nested"])
def test_settings_and_access_are_frozen_all_the_way_down(field: str, path: tuple[str, ...]) -> None:
    options: dict[str, Any] = {field: {"nested": {"a": 1}}}
    value = getattr(Agent("greeter", **options), field)
    for name in path:
        value = value[name]

    with pytest.raises(TypeError, match="does not support item assignment"):
        value["a"] = 2


@pytest.mark.parametrize("field", ["settings", "access"])
def test_settings_and_access_do_not_change_with_what_was_given(field: str) -> None:
    options: dict[str, Any] = {field: {"nested": {"a": [1]}}}
    agent = Agent("greeter", **options)
    options[field]["nested"]["a"].append(2)
    options[field]["more"] = 1

    assert list(getattr(agent, field)) == ["nested"]
    assert tuple(getattr(agent, field)["nested"]["a"]) == (1,)


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


# --- limits ---


def test_the_limits_of_a_loop_have_defaults() -> None:
    assert dataclasses.asdict(Loop()) == {
        "max_iterations": 20,
        "on_stuck": "stop",
        "stuck_threshold": 3,
        "stuck_retries": 1,
        "checkpoint_interval": 5,
        "max_tool_concurrency": 5,
        "max_tool_calls": 64,
        "max_message_bytes": 10 * 1024 * 1024,
        "token_budget": None,
        "diminishing_returns": None,
        "context_compression": None,
    }


def test_one_limit_leaves_the_other_defaults_alone() -> None:
    assert Loop(max_iterations=50) == dataclasses.replace(Loop(), max_iterations=50)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("max_iterations", 0, 1),
        ("max_iterations", -5, 1),
        ("max_iterations", 1.5, 1),
        ("max_iterations", "5", 1),
        ("max_iterations", True, 1),
        ("max_iterations", None, 1),
        ("stuck_threshold", -1, 0),
        ("stuck_retries", -1, 0),
        ("checkpoint_interval", 0, 1),
        ("max_tool_concurrency", 0, 1),
        ("max_tool_calls", 0, 1),
        ("max_message_bytes", 1_023, 1_024),
    ],
)
def test_a_limit_that_is_no_count_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(DefinitionError) as caught:
        Loop(**{name: value})
    assert str(caught.value) == f"loop.{name} must be >= {least}, got {value!r}"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"on_stuck": "panic"}, "loop.on_stuck must be one of stop, retry, escalate, got 'panic'"),
        ({"on_stuck": None}, "loop.on_stuck must be one of stop, retry, escalate, got None"),
        ({"token_budget": "many"}, "loop.token_budget must be a TokenBudget, got 'many'"),
        ({"token_budget": 1.5}, "loop.token_budget must be a TokenBudget, got 1.5"),
        ({"token_budget": 0}, "token_budget.max must be >= 1, got 0"),
        ({"token_budget": True}, "token_budget.max must be >= 1, got True"),
        ({"diminishing_returns": 3}, "loop.diminishing_returns must be a DiminishingReturns, got 3"),
        ({"context_compression": len}, "loop.context_compression must be a ContextCompression, got <built-in"),
    ],
    ids=str,
)
def test_a_wrong_rule_of_a_loop_is_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Loop(**options)
    assert str(caught.value).startswith(rule)


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(TypeError, match="max_turns"):
        Loop(max_turns=3)  # type: ignore[call-arg]


def test_a_token_budget_may_be_a_number() -> None:
    assert Loop(token_budget=1_000) == Loop(token_budget=TokenBudget(1_000))


@pytest.mark.parametrize("name", ["stop_threshold", "warning_threshold"])
@pytest.mark.parametrize("value", [0, -0.5, "0.9", None, True, float("nan")])
def test_a_threshold_that_is_no_share_is_refused(name: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"token_budget.{name} must be a share above 0, got {value!r}"):
        TokenBudget(1_000, **{name: value})


@pytest.mark.parametrize("message", [5, ["a"], b"a"])
def test_a_warning_that_is_no_text_is_refused(message: Any) -> None:
    with pytest.raises(DefinitionError, match=r"token_budget\.warning_message must be"):
        TokenBudget(1_000, warning_message=message)


@pytest.mark.parametrize(
    ("message", "warning"),
    [
        (
            None,
            "Warning: You have used 81% of your token budget (810/1000 tokens). Please wrap up your current task.",
        ),
        ("Hurry.", "Hurry."),
        (lambda percent, used, most: f"{percent}|{used}|{most}", "81|810|1000"),
    ],
    ids=["default", "text", "function"],
)
def test_a_budget_warns_in_words(message: Any, warning: str) -> None:
    assert TokenBudget(1_000, warning_message=message).warning(810) == warning


@pytest.mark.parametrize("options", [{"calls": 0}, {"min_tokens": 0}, {"calls": "3"}, {"min_tokens": None}], ids=str)
def test_diminishing_returns_need_counts(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=rf"diminishing_returns\.{next(iter(options))} must be >= 1"):
        DiminishingReturns(**options)


@pytest.mark.parametrize(
    ("compress", "options", "rule"),
    [
        (5, {"max_messages": 3}, "context_compression.compress must be callable, got 5"),
        (len, {}, "context_compression needs max_messages or max_token_estimate"),
        (len, {"max_messages": 0}, "context_compression.max_messages must be >= 1, got 0"),
        (len, {"max_token_estimate": "3"}, "context_compression.max_token_estimate must be >= 1, got '3'"),
    ],
)
def test_a_wrong_compression_is_refused(compress: Any, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        ContextCompression(compress, **options)
    assert str(caught.value) == rule


@pytest.mark.parametrize(
    ("options", "lengths", "applies"),
    [
        ({"max_messages": 2}, [9, 9], False),
        ({"max_messages": 2}, [9, 9, 9], True),
        ({"max_token_estimate": 10}, [20, 20], False),
        ({"max_token_estimate": 10}, [20, 21], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [41], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [0, 0, 0], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [], False),
    ],
    ids=str,
)
def test_compression_applies_above_either_limit(options: dict[str, Any], lengths: list[int], applies: bool) -> None:
    messages = [Message(role="user", content="x" * length) for length in lengths]

    assert ContextCompression(list, **options).applies_to(messages) is applies


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


# --- state ---


def test_state_starts_empty() -> None:
    assert Agent("greeter").new_state() == {}


def test_every_run_starts_from_the_initial_state() -> None:
    agent = Agent("greeter", initial_state={"seen": []})
    agent.new_state()["seen"].append("a")

    assert agent.new_state() == {"seen": []}


def test_the_initial_state_does_not_change_with_what_was_given() -> None:
    given: dict[str, Any] = {"seen": []}
    agent = Agent("greeter", initial_state=given)
    given["seen"].append("a")

    assert (agent.initial_state, agent.new_state()) == ({"seen": []}, {"seen": []})


@pytest.mark.parametrize("initial", [None, {}, {"count": "0"}, Counter()], ids=repr)
def test_a_state_has_its_type(initial: Any) -> None:
    assert Agent("greeter", state=Counter, initial_state=initial).new_state() == Counter()


def test_a_typed_state_is_a_copy_too() -> None:
    initial = Counter()
    agent = Agent("greeter", state=Counter, initial_state=initial)
    agent.new_state().seen.append("a")

    assert (initial, agent.new_state()) == (Counter(), Counter())


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"initial_state": 5}, "initial_state does not fit its type: value: Input should be a valid dictionary"),
        (
            {"state": Counter, "initial_state": {"count": "x"}},
            "initial_state does not fit its type: count: Input should",
        ),
        ({"state": Required}, "initial_state does not fit its type: count: Field required"),
        ({"state": Opaque}, "state <class 'tests.unit.test_agents.Opaque'> cannot become a schema"),
        ({"initial_state": {"lock": threading.Lock()}}, "initial_state"),
        ({"initial_state": {"thing": object()}}, "its state is no JSON"),
        ({"output": Opaque}, "output <class 'tests.unit.test_agents.Opaque'> cannot become a schema"),
        ({"output": 5}, "output 5 cannot become a schema"),
        ({"output": "DeclaredNowhere"}, "output"),
        ({"output": Callable[[], int]}, "output"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_state_or_output_that_cannot_work_is_refused_at_once(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Agent("greeter", **options)
    assert str(caught.value).startswith(f"Agent 'greeter': {rule}")


@pytest.mark.parametrize(
    ("state", "value"), [(None, {}), (None, {"a": [1, None]}), (Counter, Counter(count=3, seen=["é"]))], ids=repr
)
def test_a_state_that_is_written_can_be_read(state: Any, value: Any) -> None:
    agent = Agent("greeter", state=state)

    assert agent.read_state(agent.write_state(value)) == value


@pytest.mark.parametrize("stored", ["", "no JSON", "[]", "5", '{"count": "x"}', '{"seen": null}', "[" * 100_000])
def test_a_stored_state_that_does_not_fit_any_more_gives_the_initial_one(stored: str) -> None:
    agent = Agent("greeter", state=Counter, initial_state={"count": 7})

    assert agent.read_state(stored) == Counter(count=7)


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["self"] = state
    return state


@pytest.mark.parametrize("state", [{"a": object()}, {"a": "\ud800"}, cyclic()], ids=["object", "surrogate", "cycle"])
def test_a_state_that_is_no_json_is_refused_when_it_is_written(state: Any) -> None:
    with pytest.raises(DefinitionError, match="Agent 'greeter': its state is no JSON"):
        Agent("greeter").write_state(state)


# --- output ---


@pytest.mark.parametrize(
    ("output", "response", "value"),
    [
        (None, "anything", None),
        (Required, '{"count": "1", "extra": 2}', Required(count=1)),
        (list[Required], '[{"count": 1}]', [Required(count=1)]),
        (int, " 5 ", 5),
        (dict[str, Any], '{"a": null}', {"a": None}),
    ],
)
def test_a_response_is_read_by_the_output_type(output: Any, response: str, value: Any) -> None:
    assert Agent("greeter", output=output).read_output(response) == value


@pytest.mark.parametrize(
    ("output", "response", "fault"),
    [
        (Required, "", "Invalid JSON"),
        (Required, "Here you are: {}", "Invalid JSON"),
        (Required, '```json\n{"count": 1}\n```', "Invalid JSON"),
        (Required, "{}", "count: Field required"),
        (Required, '{"count": "x"}', "count: Input should be a valid integer"),
        (Required, "\ud800", "value"),
        (Required, "[" * 100_000, "Invalid JSON"),
        (int, "1.5", "value: Input should be a valid integer"),
    ],
    ids=ascii,
)
def test_a_response_that_does_not_match_says_why(output: Any, response: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Agent("greeter", output=output).read_output(response)


@pytest.mark.parametrize("response", ['{"a": NaN}', '{"a": [Infinity]}', '{"a": -Infinity}', '{"a": 1e999}'])
def test_a_response_is_strict_json(response: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Agent("greeter", output=dict[str, Any]).read_output(response)


def test_an_output_type_has_a_schema() -> None:
    schema = Agent("greeter", output=Required).output_schema

    assert schema is not None
    assert (schema["type"], schema["required"]) == ("object", ["count"])


def test_an_agent_without_an_output_type_has_no_schema() -> None:
    assert Agent("greeter").output_schema is None


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
