"""Tools that a model's provider runs itself: web search, code execution, file search. No part of them runs here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from standfast.errors import DefinitionError
from standfast.messages import JSONObject

HostedKind = Literal["web_search", "web_fetch", "code_execution", "file_search"]
Declaration = Mapping[str, Any]

# By kind and provider, the declaration of the tool in a request. An option may change each part, such as the version in
# `type`.
_DECLARED: Mapping[str, Mapping[str, Declaration]] = {
    "web_search": {
        "openai": {"type": "web_search"},
        "anthropic": {"type": "web_search_20250305", "name": "web_search"},
    },
    "web_fetch": {"anthropic": {"type": "web_fetch_20250910", "name": "web_fetch"}},
    "code_execution": {
        "openai": {"type": "code_interpreter", "container": {"type": "auto"}},
        "anthropic": {"type": "code_execution_20250825", "name": "code_execution"},
    },
    "file_search": {"openai": {"type": "file_search"}},
}


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A tool that the provider of an agent's model runs; made by `hosted`."""

    name: HostedKind
    options: Mapping[str, Declaration] = field(default_factory=dict, hash=False)

    def declared(self, provider: str) -> JSONObject | None:
        """Return the declaration of the tool in a request to a provider; None if the provider does not have it."""
        declaration = _DECLARED[self.name].get(provider)
        return None if declaration is None else {**declaration, **self.options.get(provider, {})}

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that have it."""
        return tuple(_DECLARED[self.name])


def hosted(kind: HostedKind, **options: Declaration) -> HostedTool:
    """Return a tool for `Agent(tools=[…])` that the provider of the agent's model runs itself.

    Args:
        kind: "web_search", "web_fetch", "code_execution" or "file_search".
        options: by provider, further keys of its declaration, such as `anthropic={"max_uses": 3}`. OpenAI's
            "file_search" needs `openai={"vector_store_ids": […]}`.

    Raises:
        DefinitionError: the tool is unknown, or the named provider does not have it.
    """
    if kind not in get_args(HostedKind):
        raise DefinitionError(f"hosted: unknown tool {kind!r:.80}; the tools are {', '.join(get_args(HostedKind))}")
    providers = _DECLARED[kind]
    for provider, given in options.items():
        if provider not in providers:
            raise DefinitionError(f"hosted: {kind!r} is run by {' and '.join(providers)}, not by {provider!r}")
        try:
            json.dumps(given, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"hosted: the options of {kind!r} for {provider} are not JSON: {error}") from error
        if not isinstance(given, dict):
            raise DefinitionError(f"hosted: the options of {kind!r} for {provider} must be a dict, got {given!r:.80}")
    if kind == "file_search" and not options.get("openai", {}).get("vector_store_ids"):
        raise DefinitionError("hosted: 'file_search' needs openai={'vector_store_ids': […]}, the files to search")
    return HostedTool(kind, MappingProxyType({provider: dict(given) for provider, given in options.items()}))
