"""Reads the servers' declarations of their tools, and compares declarations."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_DECLARED = {"name", "title", "description", "input_schema", "output_schema", "annotations"}


def fingerprint(item: Any) -> str:
    """Return a digest of everything that a server declares about a tool. Another tool of that name has another digest.

    Waiting gates store this digest, so its computation must not change.
    """
    return digest_of(item.model_dump(mode="json", by_alias=True, include=_DECLARED))


def declared(item: Any) -> dict[str, Any]:
    """Return everything that a server declares about a tool, without fields that a later SDK adds to all tools."""
    found: dict[str, Any] = item.model_dump(mode="json", by_alias=True, include=_DECLARED, exclude_none=True)
    return {**found, "inputSchema": item.input_schema} | (
        {} if item.output_schema is None else {"outputSchema": item.output_schema}
    )


def digest_of(declaration: Mapping[str, Any]) -> str:
    """Return the digest of a declaration."""
    return hashlib.blake2b(json.dumps(declaration, sort_keys=True).encode(), digest_size=8).hexdigest()
