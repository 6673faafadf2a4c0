"""Accepts agents of other frameworks wherever an agent is accepted, through their framework's integration.

**The seam.** `adopted` is called where agents are accepted: `StandfastPlugin(agents=)`, `run` and its kin, the agent of
a pipeline's step, and the tools of an agent. It identifies the framework by the classes of the object, imports the
module of `standfast.integrations` that is named here, and calls its `as_agent(foreign)`, which returns an `Agent`:

- its `adapter` is an object with `async def chat(messages, tools, **settings)`, which advances the foreign run by one
  step: to a final text, or to tool calls. It counts usage in its answers.
- its `tools` are the tools that the foreign agent would call, so that the loop dispatches, guards and gates the calls.
- the framework's state is kept in `LLMResponse.reasoning`, with the provider's name, and comes back with the messages;
  so it is in the transcript, and is found with it.

`as_agent(foreign, *, name=None, …)` is public in each integration, for agents that need a name or options. It raises
`DefinitionError` for an agent that cannot be run. An integration whose framework is missing, or has another version,
raises `ImportError` when it is imported, which becomes a `DefinitionError` here. Only the framework of the agent is
imported.
"""

import contextlib
import importlib
from typing import Any, Protocol

from standfast.errors import DefinitionError

# By the package and name of a class among the bases of all agents of a framework.
_INTEGRATIONS = {
    ("agents", "AgentBase"): "openai_agents",
    ("langgraph", "PregelProtocol"): "langchain",
    ("pydantic_ai", "AbstractAgent"): "pydantic_ai",
}
ACCEPTED = "an Agent, or an agent of the OpenAI Agents SDK, LangGraph or pydantic-ai"
_MADE = "__standfast_agent__"


class _OfOpenAI(Protocol):
    @property
    def get_all_tools(self) -> Any: ...


class _OfLangGraph(Protocol):
    @property
    def aget_state(self) -> Any: ...


class _OfPydanticAI(Protocol):
    @property
    def run_sync(self) -> Any: ...


# For type checkers: distinguished by members that standfast's agents lack.
ForeignAgent = _OfOpenAI | _OfLangGraph | _OfPydanticAI


def adopted(given: Any) -> Any:
    """Return an agent for a foreign one, the same each time; anything else is returned unchanged.

    Raises:
        DefinitionError: it cannot be run, or its framework has a version that is not supported.
    """
    integration = integration_of(given)
    if integration is None:
        return given
    made = getattr(given, _MADE, None)
    if made is not None and made[0] is given:  # and not that of the original of a copy
        return made[1]
    try:
        module = importlib.import_module(f"standfast.integrations.{integration}")
    except ImportError as error:
        raise DefinitionError(f"{given!r:.80} cannot be run: {error}") from error
    if not hasattr(module, "as_agent"):
        raise DefinitionError(f"{given!r:.80} cannot be run; expected {ACCEPTED}")
    agent = module.as_agent(given)
    with contextlib.suppress(AttributeError, TypeError):
        object.__setattr__(given, _MADE, (given, agent))
    return agent


def integration_of(given: object) -> str | None:
    """Return the module of `standfast.integrations` for a foreign agent; None for anything else."""
    for kind in type(given).__mro__:
        found = _INTEGRATIONS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found
    return None
