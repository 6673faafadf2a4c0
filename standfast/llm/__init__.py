"""Models: anything with an async `chat` is an adapter."""

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from standfast.agents import Agent
from standfast.errors import DefinitionError, InputError
from standfast.llm.answer_limits import AnswerLimits
from standfast.llm.anthropic_sdk import AnthropicMessages
from standfast.llm.openai_compatible import OpenAICompatible
from standfast.llm.openai_sdk import OpenAIResponses
from standfast.llm.prices import Price
from standfast.llm.providers import PROVIDERS, adapter_for_model, create_adapter
from standfast.llm.pydantic_ai_models import pydantic_ai_model
from standfast.messages import LLMResponse, Message, Record
from standfast.tools import Tool

__all__ = [
    "LLM",
    "AnswerLimits",
    "AnthropicMessages",
    "LLMAdapter",
    "OpenAICompatible",
    "OpenAIResponses",
    "Price",
    "StreamingLLMAdapter",
    "ToolDescription",
    "adapter_for",
    "create_adapter",
    "pydantic_ai_model",
    "tools_to_descriptions",
]


class ToolDescription(Record):
    """A tool's description for a model: `input_schema` is the JSON schema of its arguments."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class LLMAdapter(Protocol):
    """Calls one model.

    An adapter with `may_answer_nothing = True` is not asked again if its answer has neither text nor calls.
    """

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> LLMResponse | Mapping[str, Any]:
        """Answer a conversation. Raise any exception to say that the model could not be called."""
        ...


@runtime_checkable
class StreamingLLMAdapter(Protocol):
    """An adapter that can also answer piece by piece."""

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | LLMResponse | Mapping[str, Any]]:
        """Yield pieces of the text, and the whole answer as the last value."""
        ...


LLM = LLMAdapter | Callable[[str | None], LLMAdapter | None]
_MAX_TOKENS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_FEWEST_TOKENS = 16  # OpenAI refuses to answer with fewer


def adapter_for(llm: LLM | None, agent: Agent) -> LLMAdapter:
    """Return the adapter for an agent: its own, or for its model `llm`, what that returns, or the provider's.

    A function that returns None leaves the model to its provider.

    Raises:
        InputError: there is none.
        DefinitionError: the provider has no key, or does not have one of the agent's hosted tools.
    """
    adapter = _chosen(llm, agent)
    for tool in agent.hosted_tools:
        if tool.declared(getattr(adapter, "hosts", "")) is None:
            which = "its model" if agent.model is None else f"the model {agent.model!r}"
            raise DefinitionError(
                f"Agent '{agent.name}' has the hosted tool '{tool.name}', which {which} cannot run: it is run by "
                f"{' and '.join(tool.providers)}. Each of the agent's models needs it, fallback_models included"
            )
    return adapter


def _chosen(llm: LLM | None, agent: Agent) -> LLMAdapter:
    if agent.adapter is not None:
        own: LLMAdapter = agent.adapter
        return own
    if llm is None:
        return _provided(agent)
    if hasattr(llm, "chat"):
        if isinstance(llm, type):
            raise InputError(f"llm must be an adapter, not the class {llm.__name__}: make one of it")
        return llm
    if not _chooses(llm):
        raise InputError(
            f"llm must be an object with `async def chat(messages, tools)`, or a plain function from an agent's model "
            f"to one, got {llm!r:.80}{_instead_of(llm)}"
        )
    adapter = llm(agent.model)
    if adapter is None:  # the function leaves this one to us
        return _provided(agent)
    if not hasattr(adapter, "chat"):
        raise InputError(f"llm gave {adapter!r:.80} for the model {agent.model!r}: it has no `chat` method")
    return adapter


def _instead_of(llm: object) -> str:
    """Return what to write for what is often taken for an adapter."""
    if isinstance(llm, str):
        return "; the name of a model is the agent's: Agent(…, model=…)"
    if any(kind.__module__.startswith("pydantic_ai.models") for kind in type(llm).__mro__):
        return "; a model of pydantic-ai is made one by standfast.llm.pydantic_ai_model(model)"
    return ""


def _provided(agent: Agent) -> LLMAdapter:
    if (adapter := adapter_for_model(agent.model)) is not None:
        return adapter
    provider, colon, _ = (agent.model or "").partition(":")
    unknown = f"and there is no provider {provider!r}" if colon else "which names no provider"
    what = "has no model to call" if agent.model is None else f"is to call {agent.model!r}, {unknown}"
    raise InputError(
        f"Agent '{agent.name}' {what}: name one as <provider>:<model>, such as \"anthropic:claude-sonnet-4-6\" (the "
        f"providers are {', '.join(PROVIDERS)}), or pass llm=, an object with `async def chat(messages, tools)` or a "
        "function from the agent's model to one"
    )


def named(llm: LLM | None, agent: Agent, model: str | None) -> LLMAdapter:
    """Return the adapter for a model other than the agent's own; None means the agent's own.

    Raises:
        InputError: there is none.
    """
    if model is None:
        return adapter_for(llm, agent)
    if agent.adapter is not None:
        raise InputError(f"Agent '{agent.name}' is to call {model!r}, but it has an adapter of its own")
    if hasattr(llm, "chat"):
        raise InputError(
            f"Agent '{agent.name}' is to call {model!r}, but llm= is one adapter: pass a function from a model to one"
        )
    return adapter_for(llm, dataclasses.replace(agent, model=model))


def settings_for(adapter: LLMAdapter, agent: Agent, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the settings of an adapter's call: the agent's, and its output if the provider can enforce it.

    Settings under the name of a provider are for its models alone.

    Args:
        max_tokens: the most that the answer may have, if the adapter takes such a setting.
    """
    settings = agent.plain_settings()
    own = settings.get(getattr(adapter, "provider", ""))
    settings = {
        name: value for name, value in settings.items() if name not in PROVIDERS or not isinstance(value, Mapping)
    }
    if isinstance(own, Mapping):
        settings |= own
    if agent.hosted_tools:
        settings["hosted_tools"] = agent.hosted_tools
    if agent.output_schema is not None and getattr(adapter, "native_output", False):
        settings.setdefault("output_schema", agent.output_schema)
    return (
        settings if max_tokens is None else _shortened(settings, max_tokens, has_provider=hasattr(adapter, "provider"))
    )


def _shortened(settings: dict[str, Any], most: int, *, has_provider: bool) -> dict[str, Any]:
    """Return settings by which an answer has no more than so many tokens; an adapter gets none that it may not take."""
    most, thinking = max(most, _FEWEST_TOKENS), settings.get("thinking")
    if isinstance(thinking, Mapping) and isinstance(budget := thinking.get("budget_tokens"), int):
        most += budget  # which providers count as part of the answer
    known = [name for name in _MAX_TOKENS if isinstance(settings.get(name), int)]
    names = known or (["max_tokens"] if has_provider else [])
    return settings | {name: min(settings.get(name, most), most) for name in names}


def _chooses(llm: Any) -> bool:
    """Whether it is a plain function of one argument."""
    if not callable(llm) or isinstance(llm, type) or inspect.iscoroutinefunction(llm):
        return False
    try:
        inspect.signature(llm).bind(None)
    except TypeError:
        return False
    except ValueError:
        pass  # some built-in functions do not have a signature
    return True


def tools_to_descriptions(tools: Mapping[str, Tool[..., Any]]) -> list[ToolDescription]:
    """Describe tools to a model: name, description, JSON schema of the input."""
    return [
        ToolDescription(name=tool.name, description=tool.description, input_schema=tool.input_schema)
        for tool in tools.values()
    ]
