"""Other frameworks' agents are accepted like our own, and unusable ones are refused at once."""

from typing import Any

import pytest

from standfast import Agent, Approval, DefinitionError, InputError, LLMResponse, Message, pipeline, run, sqlite_store
from standfast.agents import adopted
from standfast.integrations._foreign_agents import Declared, data_of, json_of, make_agent
from standfast.llm.providers import named
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


async def test_an_agent_with_its_own_adapter_is_run_by_it_whatever_llm_is_given() -> None:
    result = await run(Agent("echo", adapter=Echo()), message="hello", llm=ScriptedModel(["not asked"]))
    assert result.response == "heard hello"


def test_no_other_model_is_called_for_an_agent_with_its_own_adapter() -> None:
    agent = Agent("echo", adapter=Echo())
    with pytest.raises(InputError, match="its own adapter"):
        named(None, agent, "openai:gpt-5")
    with pytest.raises(DefinitionError, match="fallback model cannot"):
        Agent("echo", adapter=Echo(), fallback_models=["openai:gpt-5"])
    with pytest.raises(DefinitionError, match="async def chat"):
        Agent("echo", adapter=object())


@pytest.mark.parametrize("declare", EVERYWHERE)
def test_a_framework_that_is_missing_is_named_with_the_versions_that_are_supported(declare: Any) -> None:
    with pytest.raises(DefinitionError, match=r"needs langchain 1\.3 or later.*pip install"):
        declare(of_a_framework_that_is_not_installed("langgraph.pregel.protocol", "PregelProtocol"))
    with pytest.raises(DefinitionError, match=r"needs openai-agents 0\.22 or later: pip install"):
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"approval": Approval()}, r"as_agent\(approval=…\) maps names of tools to gates, got Approval"),
        ({"timeout": "5m"}, r"as_agent\(timeout=…\) maps names of tools to times, got '5m'"),
        ({"safe_to_retry": "look"}, r"as_agent\(safe_to_retry=…\) lists names of tools, got 'look'"),
        ({"safe_to_retry": True}, r"as_agent\(safe_to_retry=…\) lists names of tools, got True"),
    ],
)
def test_what_is_not_said_by_names_of_tools_is_refused_with_what_was_given(given: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=f"Agent 'shop': {said}"):
        Declared("shop", **{"approval": None, "safe_to_retry": (), "timeout": None, **given})


def test_an_option_that_is_unknown_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(
        DefinitionError, match="no option 'retry'; besides the parameters in its signature it has formerly"
    ):
        make_agent("shop", Echo(), [], model=None, output=None, options={"retry": 3})  # type: ignore[typeddict-unknown-key]


def test_only_our_own_note_is_taken_from_a_result() -> None:
    ours = '{"note": "ada changed the arguments before it ran", "arguments": {"cents": 4}, "result": 4}'
    assert (data_of(ours), json_of(ours)["arguments"]) == (4, {"cents": 4})
    for own in ('{"note": "by hand", "result": 5}', '{"note": {"a": 1}, "arguments": 1, "result": 5}'):
        assert data_of(own) == json_of(own)
