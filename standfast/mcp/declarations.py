"""Reads what servers declare about their tools, and tells one declaration from another."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DECLARED = {"name", "title", "description", "input_schema", "output_schema", "annotations"}


def fingerprint(item: Any) -> str:
    """Return a digest of everything that a server declares about a tool, which tells it from another of its name.

    Gates that wait hold this digest, so how it is made must not change.
    """
    return digest_of(item.model_dump(mode="json", by_alias=True, include=_DECLARED))


def declared(item: Any) -> dict[str, Any]:
    """Return everything that a server declares about a tool, without what a later SDK adds to all tools."""
    found: dict[str, Any] = item.model_dump(mode="json", by_alias=True, include=_DECLARED, exclude_none=True)
    return {**found, "inputSchema": item.input_schema} | (
        {} if item.output_schema is None else {"outputSchema": item.output_schema}
    )


def digest_of(declaration: Mapping[str, Any]) -> str:
    """Return the digest of a declaration."""
    return hashlib.blake2b(json.dumps(declaration, sort_keys=True).encode(), digest_size=8).hexdigest()
