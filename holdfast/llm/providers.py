"""The providers of models, and an adapter for each: one table."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError
from holdfast.llm.anthropic_sdk import AnthropicMessages
from holdfast.llm.openai_compatible import OpenAICompatible
from holdfast.llm.openai_sdk import OpenAIResponses

if TYPE_CHECKING:
    from holdfast.llm import LLMAdapter


def create_adapter(
    *, provider: str, model: str, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> "LLMAdapter":
    """Make an adapter for a provider's model.

    Args:
        provider: "openai", "anthropic", "cloudflare", "minimax", or "openai-compatible" for any server with OpenAI's
            Chat Completions.
        api_key: of the provider's own variable in the environment by default, such as `OPENAI_API_KEY`.
        base_url: where the provider is, if not at its usual address; of "openai-compatible", and of those with an SDK,
            by default that in `OPENAI_COMPATIBLE_BASE_URL`, `OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL`.
        options: of the adapter, such as `tool_mode` and `timeout`.

    Raises:
        DefinitionError: there is no such provider, no key, or an option cannot be used.
        ImportError: the provider's SDK is not installed.
    """
    make = PROVIDERS.get(provider)
    if make is None:
        raise DefinitionError(f'Unsupported LLM provider: "{provider}". Supported: {", ".join(PROVIDERS)}')
    if not isinstance(model, str) or not model:
        raise DefinitionError(f"Provider '{provider}': model must be the name of one, got {model!r}")
    given = {"api_key": api_key, "base_url": base_url, **options}
    return make(model, {name: value for name, value in given.items() if value is not None})


def provided(model: str | None) -> "LLMAdapter | None":
    """Return the adapter for a model that is named with its provider, such as "openai:gpt-5"; None for any other."""
    provider, separator, name = (model or "").partition(":")
    return create_adapter(provider=provider, model=name) if separator and provider in PROVIDERS else None


def _cloudflare(model: str, given: dict[str, Any]) -> OpenAICompatible:
    account = _variable("CLOUDFLARE_ACCOUNT_ID")
    needed = {} if "base_url" in given else {"CLOUDFLARE_ACCOUNT_ID": account}
    given = _with_key("cloudflare", "CLOUDFLARE_API_TOKEN", given, **needed)
    given.setdefault("base_url", f"https://api.cloudflare.com/client/v4/accounts/{account}/ai/v1")
    return OpenAICompatible(model=model, provider="cloudflare", **given)


def _minimax(model: str, given: dict[str, Any]) -> OpenAICompatible:
    given = {"base_url": "https://api.minimax.io/v1", **_with_key("minimax", "MINIMAX_API_KEY", given)}
    return OpenAICompatible(model=model, provider="minimax", **given)


def _with_key(provider: str, variable: str, given: dict[str, Any], **needed: str) -> dict[str, Any]:
    """Return what is given with the key of the environment, if it has none."""
    key = given.get("api_key") or _variable(variable)
    if missing := [name for name, value in {**needed, variable: key}.items() if not value]:
        raise DefinitionError(f"Provider '{provider}' has no key: set {' and '.join(missing)}, or pass api_key=")
    return {**given, "api_key": key}


def _compatible(model: str, given: dict[str, Any]) -> OpenAICompatible:
    if "base_url" not in given:
        if not (base_url := _variable("OPENAI_COMPATIBLE_BASE_URL")):
            raise DefinitionError(
                "Provider 'openai-compatible' has no address: set OPENAI_COMPATIBLE_BASE_URL, or pass base_url=, such "
                "as 'http://localhost:8080/v1'"
            )
        # Its key goes to its address, and to no other.
        given = {"api_key": _variable("OPENAI_COMPATIBLE_API_KEY"), **given, "base_url": base_url}
    return OpenAICompatible(model=model, **given)


def _variable(name: str) -> str:
    return (os.environ.get(name) or "").strip()


PROVIDERS: Mapping[str, Callable[[str, dict[str, Any]], "LLMAdapter"]] = {
    "openai": lambda model, given: OpenAIResponses(model=model, **given),
    "anthropic": lambda model, given: AnthropicMessages(model=model, **given),
    "cloudflare": _cloudflare,
    "minimax": _minimax,
    "openai-compatible": _compatible,
}
