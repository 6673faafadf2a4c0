"""The model providers, an adapter for each, and the choice of an agent's adapter."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, overload
from urllib.parse import quote

from standfast.agents import Agent
from standfast.errors import DefinitionError, InputError
from standfast.llm.anthropic_sdk import AnthropicMessages
from standfast.llm.any_llm_models import AnyLLMModel
from standfast.llm.openai_compatible import OpenAICompatible
from standfast.llm.openai_sdk import OpenAIResponses
from standfast.llm.protocol import LLM, LLMAdapter
from standfast.llm.pydantic_ai_models import PydanticAIModel


@overload
def create_adapter(
    *, provider: str, model: str, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> LLMAdapter: ...


@overload
def create_adapter(
    *, provider: str, model: None = None, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> Callable[[str | None], LLMAdapter]: ...


def create_adapter(
    *,
    provider: str,
    model: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    **options: Any,
) -> LLMAdapter | Callable[[str | None], LLMAdapter]:
    """Make an adapter for a provider's model; without a model, a function that makes one for each agent's model.

    Args:
        provider: "openai", "anthropic", "cloudflare", "minimax", or "openai-compatible" for any server with OpenAI's
            Chat Completions; "any-llm" and "pydantic-ai" for those libraries, whose models have a provider in their
            name, such as "gemini:gemini-2.5-pro".
        api_key: by default the provider's own environment variable, such as `OPENAI_API_KEY`.
        base_url: the provider's address, if not the usual one; by default the value of a variable such as
            `OPENAI_BASE_URL` or `OPENAI_COMPATIBLE_BASE_URL`.
        options: options of the adapter, such as `tool_mode` and `timeout`.

    Raises:
        DefinitionError: the provider is unknown, the key is missing, or an option is invalid.
        ImportError: the provider's SDK is not installed.
    """
    make = PROVIDERS.get(provider)
    if make is None:
        raise DefinitionError(f'Unsupported LLM provider: "{provider}". Supported: {", ".join(PROVIDERS)}')
    given = {"api_key": api_key, "base_url": base_url, **options}
    given = {name: value for name, value in given.items() if value is not None}

    def of(name: str | None) -> LLMAdapter:
        if not isinstance(name, str) or not name.removeprefix(f"{provider}:"):
            raise DefinitionError(f"Provider '{provider}': model must be the name of one, got {name!r}")
        return make(name.removeprefix(f"{provider}:"), dict(given))

    return of if model is None else of(model)


def adapter_for_model(model: str | None) -> LLMAdapter | None:
    """Return the adapter for a model whose name includes its provider, such as "openai:gpt-5"; None for any other."""
    provider, separator, name = (model or "").partition(":")
    return create_adapter(provider=provider, model=name) if separator and provider in PROVIDERS else None


def _cloudflare(model: str, given: dict[str, Any]) -> OpenAICompatible:
    account = _variable("CLOUDFLARE_ACCOUNT_ID")
    usual = f"https://api.cloudflare.com/client/v4/accounts/{quote(account, safe='')}/ai/v1" if account else ""
    given = _at("cloudflare", usual, given)
    needed = {} if given["base_url"] else {"CLOUDFLARE_ACCOUNT_ID": account}
    return OpenAICompatible(model=model, provider="cloudflare", **_with_key("CLOUDFLARE_API_TOKEN", given, **needed))


def _minimax(model: str, given: dict[str, Any]) -> OpenAICompatible:
    given = _at("minimax", "https://api.minimax.io/v1", given)
    return OpenAICompatible(model=model, provider="minimax", **_with_key("MINIMAX_API_KEY", given))


def _compatible(model: str, given: dict[str, Any]) -> OpenAICompatible:
    if "base_url" not in given:
        given = _at("openai-compatible", "", given)
        if not given["base_url"]:
            raise DefinitionError(
                "Provider 'openai-compatible' has no address: set OPENAI_COMPATIBLE_BASE_URL, or pass base_url=, such "
                "as 'http://localhost:8080/v1'"
            )
        # Its key is sent only to its own address.
        given = {"api_key": _variable("OPENAI_COMPATIBLE_API_KEY"), **given}
    return OpenAICompatible(model=model, **given)


def _pydantic_ai(model: str, given: dict[str, Any]) -> PydanticAIModel:
    if own := [name for name in ("api_key", "base_url") if name in given]:
        raise DefinitionError(
            f"Provider 'pydantic-ai' does not take {' or '.join(own)}: it reads its providers' own variables. Make the "
            "model yourself, and pass llm=pydantic_ai_model(model)"
        )
    return PydanticAIModel(model=model, **given)


def _at(provider: str, usual: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options with an address: if they have none, from the environment, or the usual one."""
    variable = f"{provider.upper().replace('-', '_')}_BASE_URL"
    return {"base_url": _variable(variable) or usual, **given}


def _with_key(variable: str, given: dict[str, Any], **needed: str) -> dict[str, Any]:
    """Return the given options with a key: if they have none, from the environment."""
    key = given.get("api_key") or _variable(variable)
    if missing := [name for name, value in {**needed, variable: key}.items() if not value]:
        provider = variable.partition("_")[0].lower()
        raise DefinitionError(f"Provider '{provider}' has no key: set {' and '.join(missing)}, or pass api_key=")
    return {**given, "api_key": key}


def _variable(name: str) -> str:
    return (os.environ.get(name) or "").strip()


PROVIDERS: Mapping[str, Callable[[str, dict[str, Any]], LLMAdapter]] = {
    "openai": lambda model, given: OpenAIResponses(model=model, **given),
    "anthropic": lambda model, given: AnthropicMessages(model=model, **given),
    "cloudflare": _cloudflare,
    "minimax": _minimax,
    "openai-compatible": _compatible,
    "any-llm": lambda model, given: AnyLLMModel(model=model, **given),
    "pydantic-ai": _pydantic_ai,
}


# --- for an agent ---

_MAX_TOKENS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_FEWEST_TOKENS = 16  # OpenAI refuses to answer with fewer


def adapter_for(llm: LLM | None, agent: Agent) -> LLMAdapter:
    """Return the adapter for an agent: its own, or `llm`, or the result of `llm` for its model, or the provider's.

    If a function returns None, the model's provider is used.

    Raises:
        InputError: there is none.
        DefinitionError: the provider lacks a key, or one of the agent's hosted tools.
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
    if adapter is None:  # the function leaves this model to its provider
        return _provided(agent)
    if not hasattr(adapter, "chat"):
        raise InputError(f"llm gave {adapter!r:.80} for the model {agent.model!r}: it has no `chat` method")
    return adapter


def _instead_of(llm: object) -> str:
    """Return advice for a value that is often mistaken for an adapter."""
    if isinstance(llm, str):
        return "; the name of a model is the agent's: Agent(…, model=…)"
    if any(kind.__module__.startswith("pydantic_ai.models") for kind in type(llm).__mro__):
        return "; a model of pydantic-ai is made one by standfast.llm.pydantic_ai_model(model)"
    return ""


def _provided(agent: Agent) -> LLMAdapter:
    if (adapter := adapter_for_model(agent.model)) is not None:
        return adapter
    provider, colon, _ = (agent.model or "").partition(":")
    unknown = f"but there is no provider {provider!r}" if colon else "which names no provider"
    what = "has no model to call" if agent.model is None else f"calls {agent.model!r}, {unknown}"
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
        raise InputError(f"Agent '{agent.name}' cannot call {model!r}: it has its own adapter")
    if hasattr(llm, "chat"):
        raise InputError(
            f"Agent '{agent.name}' cannot call {model!r}: llm= is one adapter; pass a function from a model to one"
        )
    return adapter_for(llm, dataclasses.replace(agent, model=model))


def settings_for(adapter: LLMAdapter, agent: Agent, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the settings of an adapter's call: the agent's, and its output if the provider can enforce it.

    Settings under the name of a provider are only for its models.

    Args:
        max_tokens: the limit of the answer, if the adapter supports such a setting.
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
    """Return settings that limit an answer to so many tokens; an adapter gets only settings that it supports."""
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
