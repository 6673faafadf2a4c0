"""The agents that answer MCP servers for the models of others."""

from typing import Any

import pytest

from standfast import Agent, Loop, RetryPolicy
from standfast.llm.providers import settings_for
from standfast.testing import ScriptedModel
from standfast.tools import Tool

asking = Tool("think", description="Think.", asks_model=True)


class OfProvider(ScriptedModel):
    provider = "anthropic"


def test_only_agents_whose_tools_may_ask_their_model_have_one_that_answers() -> None:
    asked, other = Agent("asked", tools=[asking]), Agent("other")
    first = Agent("first", tools=[asking], formerly=["old"], handoffs=[asked, other])
    names = {name: agent.name for name, agent in first.samplers.items()}
    assert names == {"first": "first-sampling", "old": "first-sampling", "asked": "asked-sampling-in-first"}
    assert first.samplers["first"].formerly == ("old-sampling",)
    assert list(other.samplers) == []


def test_a_person_who_answers_has_the_model_and_nothing_that_the_agent_knows_or_can_do() -> None:
    retry = RetryPolicy(maximum_attempts=2)
    loop = Loop(model_retry=retry, on_model_outage="pause", token_budget=100)
    agent = Agent(
        "a",
        model="m",
        fallback_models=["n"],
        instructions="The password is xyzzy.",
        description="Knows the password.",
        output=dict[str, str],
        tools=[asking],
        handoffs=[Agent("b")],
        tool_guardrails=[lambda ctx, call: None],
        output_validators=[lambda ctx, output: None],
        on_complete=print,
        loop=loop,
    )
    who = agent.samplers["a"]
    assert (who.model, who.fallback_models, who.loop.model_retry) == ("m", ("n",), retry)
    assert who.loop.on_model_outage == "pause"
    assert (who.tools, who.handoffs, who.output, who.description, who.on_complete) == ((), (), None, None, None)
    assert (who.tool_guardrails, who.output_validators, who.loop.token_budget) == ((), (), None)
    assert "xyzzy" not in str(who.instructions)


def test_settings_that_may_bring_tools_or_texts_are_left_out() -> None:
    settings: dict[str, Any] = {
        "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "tool_choice": "required",
        "mcp_servers": [{"url": "https://example.com"}],
        "prompt": {"id": "p"},
        "extra_body": {"top_k": 3, "tools": [{"type": "web_search"}]},
        "anthropic": {"max_tokens": 9, "system": "xyzzy"},
        "openai": {"previous_response_id": "r"},
    }
    assert Agent("a", tools=[asking], settings=settings).samplers["a"].plain_settings() == {
        "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "extra_body": {"top_k": 3},
        "anthropic": {"max_tokens": 9},
    }


@pytest.mark.parametrize(
    ("adapter", "settings", "most", "expected"),
    [
        (ScriptedModel, {}, 100, {}),
        (ScriptedModel, {"max_tokens": 900}, 100, {"max_tokens": 100}),
        (ScriptedModel, {"max_tokens": 50}, 100, {"max_tokens": 50}),
        (ScriptedModel, {"max_completion_tokens": 900}, 100, {"max_completion_tokens": 100}),
        (OfProvider, {}, 100, {"max_tokens": 100}),
        (OfProvider, {}, 1, {"max_tokens": 16}),
        (OfProvider, {"max_tokens": 5}, 1, {"max_tokens": 5}),
        (OfProvider, {"anthropic": {"max_tokens": 900}}, 100, {"max_tokens": 100}),
        (
            OfProvider,
            {"thinking": {"budget_tokens": 2_000}},
            100,
            {"thinking": {"budget_tokens": 2_000}, "max_tokens": 2_100},
        ),
    ],
)
def test_a_limit_of_an_answer_is_lowered_and_is_given_to_adapters_that_take_it(
    adapter: type[ScriptedModel], settings: dict[str, Any], most: int, expected: dict[str, Any]
) -> None:
    assert settings_for(adapter([]), Agent("a", settings=settings), most) == expected
