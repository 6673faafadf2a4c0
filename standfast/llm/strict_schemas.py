"""JSON schemas in the form that providers enforce: closed records, in which every key is known and required.

A schema that cannot be written this way is not enforced, since a different one would be: a closed dict of any keys is
an empty one. The model has the full schema in its prompt, which also checks its answer. Nothing here does I/O.
"""

from collections.abc import Mapping
from typing import Any

from standfast.messages import JSONObject

# Of OpenAI's strict mode; Anthropic's SDK turns limits that its models do not know into words.
_KEPT = {
    "string": ("enum", "const", "pattern", "format"),
    "number": ("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": ("const",),
    "null": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")


class _NotHeldError(Exception):
    """A part of the schema cannot be enforced."""


def held_schema(schema: Mapping[str, Any], *, recursive: bool) -> JSONObject | None:
    """Return a schema that a provider can enforce, and whose instances all fit `schema`; else None.

    Args:
        recursive: whether the provider supports schemas that refer to themselves.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    if schema.get("type") != "object" or (not recursive and _refers_to_itself(definitions)):
        return None
    try:
        held = _strict_part(schema)
        if definitions:
            held["$defs"] = {name: _strict_part(part) for name, part in definitions.items()}
    except _NotHeldError:
        return None
    return held


def _strict_part(part: Any) -> JSONObject:
    if not isinstance(part, Mapping):
        raise _NotHeldError
    described = {"description": part["description"]} if "description" in part else {}
    match part:
        case {"$ref": str(reference)} if reference.startswith("#/$defs/"):
            return {"$ref": reference}
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return {"anyOf": [_strict_part(choice) for choice in choices], **described}
        case {"type": "object"}:
            return {**_record(part), **described}
        case {"type": "array", "items": items} if "prefixItems" not in part:
            return {"type": "array", "items": _strict_part(items), **_limits(part, "array"), **described}
        case {"type": "string" | "number" | "integer" | "boolean" | "null" as kind}:
            return {"type": kind, **_limits(part, "number" if kind == "integer" else kind), **described}
    raise _NotHeldError


def _record(part: Mapping[str, Any]) -> JSONObject:
    properties = part.get("properties", {})
    is_open = part.get("additionalProperties", "properties" not in part)
    if is_open or "patternProperties" in part:
        raise _NotHeldError
    return {
        "type": "object",
        "properties": {name: _strict_part(value) for name, value in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def _limits(part: Mapping[str, Any], kind: str) -> JSONObject:
    limits = {name: part[name] for name in _KEPT[kind] if name in part}
    if limits.get("format") not in _FORMATS:
        limits.pop("format", None)
    if "(?" in limits.get("pattern", ""):  # which looks ahead
        del limits["pattern"]
    return limits


def _refers_to_itself(definitions: Mapping[str, Any]) -> bool:
    def references(part: Any) -> set[str]:
        match part:
            case Mapping():
                found = {str(part["$ref"]).removeprefix("#/$defs/")} if "$ref" in part else set()
                return found.union(*map(references, part.values()))
            case list():
                return set().union(*map(references, part))
            case _:
                return set()

    direct = {name: references(part) for name, part in definitions.items()}
    reached = {name: set(found) for name, found in direct.items()}
    for _ in direct:
        for found in reached.values():
            found.update(*(direct.get(name, ()) for name in tuple(found)))
    return any(name in found for name, found in reached.items())
