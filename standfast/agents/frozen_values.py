"""Keeps an agent's settings from being changed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def thawed(value: Any) -> Any:
    """Return a copy that may be changed."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value


def frozen(value: Any) -> Any:
    """Return a copy that nobody can change."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value
