"""The providers of models, and an adapter for each: one table."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import quote

from standfast.errors import DefinitionError
from standfast.llm.anthropic_sdk import AnthropicMessages
from standfast.llm.any_llm_models import AnyLLMModel
from standfast.llm.openai_compatible import OpenAICompatible
from standfast.llm.openai_sdk import OpenAIResponses
from standfast.llm.pydantic_ai_models import PydanticAIModel

if TYPE_CHECKING:
    from standfast.llm import LLMAdapter


@overload
def create_adapter(
    *, provider: str, model: str, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> "LLMAdapter": ...


@overload
def create_adapter(
    *, provider: str, model: None = None, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> "Callable[[str | None], LLMAdapter]": ...


def create_adapter(
    *,
    provider: str,
    model: str | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    **options: Any,
) -> "LLMAdapter | Callable[[str | None], LLMAdapter]":
    """Make an adapter for a provider's model; without a model, a function that makes one for each agent's own.

    Args:
        provider: "openai", "anthropic", "cloudflare", "minimax", or "openai-compatible" for any server with OpenAI's
            Chat Completions; "any-llm" and "pydantic-ai" for those libraries, whose models have a provider in their
            name, such as "gemini:gemini-2.5-pro".
        api_key: by default that of the provider's own variable in the environment, such as `OPENAI_API_KEY`.
        base_url: the provider's address, if not the usual one; by default the value of a variable such as
            `OPENAI_BASE_URL` or `OPENAI_COMPATIBLE_BASE_URL`.
        options: options of the adapter, such as `tool_mode` and `timeout`.

    Raises:
        DefinitionError: there is no such provider, no key, or an option cannot be used.
        ImportError: the provider's SDK is not installed.
    """
    make = PROVIDERS.get(provider)
    if make is None:
        raise DefinitionError(f'Unsupported LLM provider: "{provider}". Supported: {", ".join(PROVIDERS)}')
    given = {"api_key": api_key, "base_url": base_url, **options}
    given = {name: value for name, value in given.items() if value is not None}

    def of(name: str | None) -> "LLMAdapter":
        if not isinstance(name, str) or not name.removeprefix(f"{provider}:"):
            raise DefinitionError(f"Provider '{provider}': model must be the name of one, got {name!r}")
        return make(name.removeprefix(f"{provider}:"), dict(given))

    return of if model is None else of(model)


def adapter_for_model(model: str | None) -> "LLMAdapter | None":
    """Return the adapter for a model that is named with its provider, such as "openai:gpt-5"; None for any other."""
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
            f"Provider 'pydantic-ai' takes no {' and no '.join(own)}: it reads its providers' own variables. Make the "
            "model yourself, and pass llm=pydantic_ai_model(model)"
        )
    return PydanticAIModel(model=model, **given)


def _at(provider: str, usual: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options with an address: if they have none, the environment's, or the usual one."""
    variable = f"{provider.upper().replace('-', '_')}_BASE_URL"
    return {"base_url": _variable(variable) or usual, **given}


def _with_key(variable: str, given: dict[str, Any], **needed: str) -> dict[str, Any]:
    """Return the given options with the key of the environment, if they have none."""
    key = given.get("api_key") or _variable(variable)
    if missing := [name for name, value in {**needed, variable: key}.items() if not value]:
        provider = variable.partition("_")[0].lower()
        raise DefinitionError(f"Provider '{provider}' has no key: set {' and '.join(missing)}, or pass api_key=")
    return {**given, "api_key": key}


def _variable(name: str) -> str:
    return (os.environ.get(name) or "").strip()


PROVIDERS: Mapping[str, Callable[[str, dict[str, Any]], "LLMAdapter"]] = {
    "openai": lambda model, given: OpenAIResponses(model=model, **given),
    "anthropic": lambda model, given: AnthropicMessages(model=model, **given),
    "cloudflare": _cloudflare,
    "minimax": _minimax,
    "openai-compatible": _compatible,
    "any-llm": lambda model, given: AnyLLMModel(model=model, **given),
    "pydantic-ai": _pydantic_ai,
}
