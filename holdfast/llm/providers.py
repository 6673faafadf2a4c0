"""The providers of models, and an adapter for each: one table."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError
from holdfast.llm.openai_compatible import OpenAICompatible
from holdfast.llm.sdks import AnthropicMessages, OpenAIResponses

if TYPE_CHECKING:
    from holdfast.llm import LLMAdapter


def create_adapter(
    *, provider: str, model: str, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> "LLMAdapter":
    """Make an adapter for a provider's model.

    Args:
        provider: "openai", "anthropic", "cloudflare", "minimax", or "openai-compatible" for any server with OpenAI's
            Chat Completions, which needs `base_url`.
        api_key: of the provider's own variable in the environment by default, such as `OPENAI_API_KEY`; for
            "openai-compatible" none.
        options: of the adapter, such as `tool_mode` and `timeout`.

    Raises:
        DefinitionError: there is no such provider, no key, or an option cannot be used.
        ImportError: the provider's SDK is not installed.
    """
    make = _PROVIDERS.get(provider)
    if make is None:
        raise DefinitionError(f'Unsupported LLM provider: "{provider}". Supported: {", ".join(_PROVIDERS)}')
    if not isinstance(model, str) or not model:
        raise DefinitionError(f"Provider '{provider}': model must be the name of one, got {model!r}")
    given = {"api_key": api_key, "base_url": base_url, **options}
    return make(model, {name: value for name, value in given.items() if value is not None})


def provided(model: str | None) -> "LLMAdapter | None":
    """Return the adapter for a model that is named with its provider, such as "openai:gpt-5"; None for any other."""
    provider, separator, name = (model or "").partition(":")
    return create_adapter(provider=provider, model=name) if separator and provider in _PROVIDERS else None


def _cloudflare(model: str, given: dict[str, Any]) -> OpenAICompatible:
    if "base_url" not in given:
        account = _variable("cloudflare", "CLOUDFLARE_ACCOUNT_ID")
        given["base_url"] = f"https://api.cloudflare.com/client/v4/accounts/{account}/ai/v1"
    given["api_key"] = given.get("api_key") or _variable("cloudflare", "CLOUDFLARE_API_TOKEN")
    return OpenAICompatible(model=model, provider="cloudflare", **given)


def _minimax(model: str, given: dict[str, Any]) -> OpenAICompatible:
    given.setdefault("base_url", "https://api.minimax.io/v1")
    given["api_key"] = given.get("api_key") or _variable("minimax", "MINIMAX_API_KEY")
    return OpenAICompatible(model=model, provider="minimax", **given)


def _compatible(model: str, given: dict[str, Any]) -> OpenAICompatible:
    if "base_url" not in given:
        raise DefinitionError(
            "Provider 'openai-compatible' needs base_url=, such as 'http://localhost:8080/v1': make the adapter with "
            "create_adapter() and pass it as llm="
        )
    return OpenAICompatible(model=model, **given)


def _variable(provider: str, name: str) -> str:
    value = (os.environ.get(name) or "").strip()
    if not value:
        raise DefinitionError(f"Provider '{provider}': set {name}")
    return value


_PROVIDERS: Mapping[str, Callable[[str, dict[str, Any]], "LLMAdapter"]] = {
    "openai": lambda model, given: OpenAIResponses(model=model, **given),
    "anthropic": lambda model, given: AnthropicMessages(model=model, **given),
    "cloudflare": _cloudflare,
    "minimax": _minimax,
    "openai-compatible": _compatible,
}
