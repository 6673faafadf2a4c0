"""Finds silent changes that JSON would make in a result."""

import dataclasses
import json
import math
from typing import Any

from pydantic import BaseModel, TypeAdapter

_NOT_A_NUMBER = "JSON has neither NaN nor infinities"
_SET = "JSON has no sets: return a list, or declare the type of the set"
_KEYS = "two of its keys are the same text in JSON"


def changed_by_json(value: Any, text: str, result: TypeAdapter[Any]) -> str | None:
    """Return the part of a result that is lost when it is written as JSON; None if it is kept whole.

    A value with a declared type, a model or a dataclass is written as declared: a datetime as text, a `set[str]` as a
    list. Without a declared type, a set, NaN, an infinity, or two keys that become one would change silently.

    Args:
        text: the value as JSON, written by its type.
    """
    # NaN and infinities are written as null, unless the type says otherwise.
    is_suspect = "null" in text or "NaN" in text or "Infinity" in text
    if is_suspect and _loses_number(result.dump_python(value, warnings=False), json.loads(text)):
        return _NOT_A_NUMBER
    if not _may_change(value):
        return None
    try:
        return _difference(value, result.validate_json(text))
    except ValueError:  # its type writes a form that it does not read
        return None


def _loses_number(value: Any, read: Any) -> bool:
    """Whether a value has a NaN or an infinity, for which its JSON has null or invalid JSON."""
    if isinstance(value, float):
        return not math.isfinite(value) and (read is None or isinstance(read, float))
    theirs = dict(_parts(read))
    return any(place in theirs and _loses_number(part, theirs[place]) for place, part in _parts(value))


def _may_change(value: Any) -> bool:
    """Whether a value contains a set, or a dict whose keys are not all texts."""
    if value is None or isinstance(value, str | int | float):  # true of most values
        return False
    if isinstance(value, set | frozenset):
        return True
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return True
    return any(_may_change(part) for _, part in _parts(value))


def _difference(value: Any, back: Any) -> str | None:
    """Return the first difference between a value and the value read back from its JSON."""
    if isinstance(value, set | frozenset):
        return None if isinstance(back, set | frozenset) else _SET
    if isinstance(value, dict) and isinstance(back, dict) and len(back) < len(value):
        return _KEYS
    theirs = dict(_parts(back))
    for place, part in _parts(value):
        if place in theirs and (found := _difference(part, theirs[place])):
            return found
    return None


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a value by place; a model or a dataclass is one part, since it defines its own form."""
    if isinstance(value, dict):
        return list(enumerate(value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return list(enumerate(value))
    if isinstance(value, BaseModel):
        return list(value.__dict__.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    return []
