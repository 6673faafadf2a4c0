"""Agents of other frameworks are taken where agents are, and what cannot be run is refused when it is given."""

from typing import Any

import pytest

from standfast import Agent, DefinitionError, InputError, LLMResponse, Message, pipeline, run, sqlite_store
from standfast.agents import adopted
from standfast.llm import named
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel

EVERYWHERE = [
    lambda given: Agent("host", tools=[given]),
    lambda given: pipeline("review", input=dict).step("one", agent=given),
    lambda given: StandfastPlugin(agents=[given], store=sqlite_store(":memory:")),
]


class Echo:
    async def chat(self, messages: list[Message], tools: Any, **settings: Any) -> LLMResponse:
        return LLMResponse(text=f"heard {messages[-1].content}")


def of_a_framework_that_is_not_installed(package: str, name: str) -> Any:
    return type("Theirs", (type(name, (), {"__module__": package}),), {})()


async def test_an_agent_with_an_adapter_of_its_own_is_run_by_it_whatever_llm_is_given() -> None:
    result = await run(Agent("echo", adapter=Echo()), message="hello", llm=ScriptedModel(["not asked"]))
    assert result.response == "heard hello"


def test_no_other_model_is_called_for_an_agent_with_an_adapter_of_its_own() -> None:
    agent = Agent("echo", adapter=Echo())
    with pytest.raises(InputError, match="adapter of its own"):
        named(None, agent, "openai:gpt-5")
    with pytest.raises(DefinitionError, match="no fallback model"):
        Agent("echo", adapter=Echo(), fallback_models=["openai:gpt-5"])
    with pytest.raises(DefinitionError, match="async def chat"):
        Agent("echo", adapter=object())


@pytest.mark.parametrize("declare", EVERYWHERE)
def test_a_framework_that_is_missing_is_named_with_the_versions_that_are_supported(declare: Any) -> None:
    with pytest.raises(DefinitionError, match=r"needs langchain 1\.3 or later.*pip install"):
        declare(of_a_framework_that_is_not_installed("langgraph.pregel.protocol", "PregelProtocol"))
    with pytest.raises(DefinitionError, match=r"needs openai-agents 0\.22\.3 or later, below 0\.23"):
        declare(of_a_framework_that_is_not_installed("agents.agent", "AgentBase"))


@pytest.mark.parametrize("declare", EVERYWHERE[:2])
def test_an_object_that_is_not_an_agent_is_refused_where_it_is_given(declare: Any) -> None:
    with pytest.raises(DefinitionError):
        declare(object())


async def test_what_is_accepted_is_named() -> None:
    with pytest.raises(InputError, match="needs an Agent, or an agent of the OpenAI Agents SDK, LangGraph or pydantic"):
        await run(object(), message="hello")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="LangGraph"):
        Agent("host", tools=[object()])  # type: ignore[list-item]


def test_a_class_of_the_users_that_is_named_like_one_of_theirs_is_left_alone() -> None:
    mine = of_a_framework_that_is_not_installed("my_agents", "AgentBase")
    assert adopted(mine) is mine
