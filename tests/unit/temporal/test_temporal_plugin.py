"""The plugin refuses, when it is made, a worker that could not run its agents."""

import pydoc
from pathlib import Path
from typing import Any

import pytest

from standfast import (
    Agent,
    DefinitionError,
    InputError,
    MemoryStoreNotDurableError,
    Tool,
    memory_store,
    sqlite_store,
    tool,
)
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel

MODEL = ScriptedModel([])


@tool
async def look() -> str:
    """Look."""
    return "seen"


def another() -> Tool[..., Any]:
    @tool(name="look")
    async def other() -> str:
        """Look elsewhere."""
        return "seen elsewhere"

    return other


declared: Tool[..., Any] = Tool("post", description="Post.")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    return sqlite_store(tmp_path / "standfast.db")


def plugin(*agents: Any, store: Any, **options: Any) -> StandfastPlugin:
    return StandfastPlugin(agents=agents, store=store, **{"llm": MODEL, **options})


def test_a_tool_without_a_handler_is_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="Agent 'a': its tool 'post' has no handler"):
        plugin(Agent("a", tools=[declared]), store=store)


def test_a_tool_whose_handler_is_given_is_taken(store: Any) -> None:
    plugin(Agent("a", tools=[declared]), store=store, tools={"post": lambda: "posted"})


def test_a_handler_for_a_tool_that_no_agent_has_is_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="no agent has a tool named 'post'"):
        plugin(Agent("a", tools=[look]), store=store, tools={"post": lambda: "posted"})


def test_a_handler_that_is_not_callable_is_refused(store: Any) -> None:
    with pytest.raises((DefinitionError, InputError), match="not callable"):
        plugin(Agent("a", tools=[declared]), store=store, tools={"post": "posted"})


def test_two_agents_of_one_name_are_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="two are named 'a'"):
        plugin(Agent("a"), Agent("a"), store=store)


def test_the_same_agent_twice_is_refused(store: Any) -> None:
    agent = Agent("a")
    with pytest.raises(DefinitionError, match="two are named 'a'"):
        plugin(agent, agent, store=store)


def test_two_tools_of_one_name_are_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="Agent 'b': another tool of this worker is also named 'look'"):
        plugin(Agent("a", tools=[look]), Agent("b", tools=[another()]), store=store)


def test_one_tool_of_two_agents_is_taken(store: Any) -> None:
    plugin(Agent("a", tools=[look]), Agent("b", tools=[look]), store=store)


def test_an_agent_that_is_used_as_a_tool_and_not_given_is_refused(store: Any) -> None:
    child = Agent("child")
    with pytest.raises(DefinitionError, match="Agent 'boss' uses the agent 'child', which agents= does not give"):
        plugin(Agent("boss", tools=[child]), store=store)
    with pytest.raises(DefinitionError, match="Agent 'boss' uses the agent 'child'"):
        plugin(Agent("boss", tools=[child]), Agent("child"), store=store)
    plugin(Agent("boss", tools=[child]), child, store=store)


def test_an_agent_and_a_tool_may_have_one_name(store: Any) -> None:
    child = Agent("look")
    plugin(Agent("a", tools=[child]), child, Agent("b", tools=[look]), store=store)


named: Tool[..., Any] = Tool("call_model", description="Call.", handler=print)


def test_a_tool_with_the_name_of_an_activity_is_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot be named"):
        plugin(Agent("a", tools=[named]), store=store)


@pytest.mark.parametrize("wrong", ["triage", None, look, object()])
def test_a_value_that_is_not_an_agent_is_refused(store: Any, wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="is not an Agent"):
        plugin(wrong, store=store)


def test_a_memory_store_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError, match="StandfastPlugin needs a durable store"):
        plugin(Agent("a"), store=memory_store())


def test_a_durable_store_without_a_ledger_is_refused() -> None:
    class Half:
        durable = True

    with pytest.raises(DefinitionError, match="has no ledger"):
        plugin(Agent("a"), store=Half())


@pytest.mark.parametrize("store", [None, "standfast.db", object()])
def test_a_value_that_is_not_a_store_is_refused(store: Any) -> None:
    with pytest.raises(DefinitionError, match="store must be a store, such as sqlite_store"):
        plugin(Agent("a"), store=store)


def test_an_agent_without_a_model_is_refused(store: Any) -> None:
    with pytest.raises(InputError):
        StandfastPlugin(agents=[Agent("a")], store=store)


def test_a_model_that_cannot_be_made_is_refused(store: Any) -> None:
    def choose(name: str | None) -> Any:
        raise InputError(f"no model {name}")

    with pytest.raises(InputError, match="no model x:y"):
        plugin(Agent("a", model="x:y"), store=store, llm=choose)


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "many"])
def test_a_number_of_stored_messages_that_is_none_is_refused(store: Any, number: Any) -> None:
    with pytest.raises((InputError, DefinitionError), match="max_stored_messages"):
        plugin(Agent("a"), store=store, max_stored_messages=number)


def test_a_plugin_without_agents_is_taken_or_refused_with_a_reason(store: Any) -> None:
    try:
        plugin(store=store)
    except (DefinitionError, InputError) as error:
        assert "agents" in str(error)  # noqa: PT017


def test_help_on_the_plugin_is_about_the_plugin_alone() -> None:
    assert "Create a simple plugin" not in pydoc.render_doc(StandfastPlugin)
