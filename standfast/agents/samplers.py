"""Makes the agents that answer for other agents' models: an MCP server with `sampling=True` asks them.

An untrusted server's request is kept away from the agent's other data. Such an agent has the other agent's model, but
not its instructions, tools or conversation. It has its guardrails, so that a server gets no text that they refuse.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from standfast.agents.limits import Loop
from standfast.tools import Tool, Toolset

if TYPE_CHECKING:
    from standfast.agents.agent import Agent

# Other settings may add tools, texts or conversations that a provider keeps, even ones unknown to us.
_SETTINGS = frozenset(
    [
        "max_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_sequences",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "thinking",
        "reasoning",
        "reasoning_effort",
        "verbosity",
        "service_tier",
        "timeout",
        "extra_headers",
    ]
)
_INSTRUCTIONS = "Another party's program asks for an answer to the following. Answer with text. You have no tools."


def samplers(first: "Agent") -> "Mapping[str, Agent]":
    """Return the agents that answer for a conversation's agents whose tools may ask their models, by name."""
    made = {agent: _sampler(agent, first) for agent in first.speakers.values() or (first,) if _may_ask(agent)}
    return MappingProxyType({name: sampler for agent, sampler in made.items() for name in agent.names})


def with_samplers(agent: "Agent") -> "Iterator[tuple[str, Agent]]":
    """Yield the names of an agent, and of the agents that answer for its conversation's models, each with its agent."""
    for one in (agent, *dict.fromkeys(agent.samplers.values())):
        for name in one.names:
            yield name, one


def _may_ask(agent: "Agent") -> bool:
    return any(isinstance(item, Tool | Toolset) and item.asks_model for item in agent.tools)


def _sampler(agent: "Agent", first: "Agent") -> "Agent":
    """Return the agent that answers for another agent's model, as that one speaks in the first agent's conversation."""
    within = "" if agent.name == first.name else f"-in-{first.name}"
    loop = agent.loop
    return replace(
        agent,
        name=f"{agent.name}-sampling{within}",
        formerly=[f"{name}-sampling{within}" for name in agent.formerly],
        instructions=_INSTRUCTIONS,
        settings=_harmless(agent.plain_settings()),
        tools=(),
        handoffs=(),
        description=None,
        output=None,
        tool_guardrails=(),
        output_validators=(),
        on_start=None,
        on_complete=None,
        on_stuck=None,
        loop=Loop(
            max_iterations=1,
            answer_timeout=loop.answer_timeout,
            max_message_bytes=loop.max_message_bytes,
            model_retry=loop.model_retry,
            on_model_outage=loop.on_model_outage,
        ),
    )


def _harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that only affect how a model answers, even for one provider or in an `extra_body`."""
    kept = {name: value for name, value in settings.items() if name in _SETTINGS}
    within = {name: _harmless(value) for name, value in settings.items() if isinstance(value, Mapping)}
    return {name: value for name, value in within.items() if value} | kept
