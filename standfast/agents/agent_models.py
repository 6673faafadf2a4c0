"""Checks the models of an agent when it is declared."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from standfast.errors import DefinitionError

if TYPE_CHECKING:
    from standfast.agents.agent import Agent


def check_models(agent: "Agent[Any]") -> tuple[str, ...]:
    """Return an agent's fallback models, once it is known that it can have them.

    Raises:
        DefinitionError: naming the agent and the setting.
    """
    said = f"Agent '{agent.name}'"
    if agent.model is not None and not isinstance(agent.model, str):
        raise DefinitionError(
            f"{said}: model must be text like 'anthropic:claude-sonnet-4-6', got {agent.model!r:.80}; "
            "give an adapter as llm= to what runs the agent"
        )
    others: Any = agent.fallback_models
    if isinstance(others, str) or not isinstance(others, Iterable) or not all(isinstance(one, str) for one in others):
        raise DefinitionError(f"{said}: fallback_models must be a list of texts, got {others!r}")
    if agent.adapter is not None and not callable(getattr(agent.adapter, "chat", None)):
        raise DefinitionError(f"{said}: adapter must have `async def chat(messages, tools)`, got {agent.adapter!r:.80}")
    if agent.adapter is not None and tuple(others):
        raise DefinitionError(f"{said}: it has an adapter of its own, which no fallback model can stand in for")
    return tuple(others)
