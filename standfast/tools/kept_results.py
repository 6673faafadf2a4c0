"""Finds what JSON would change in a result without anybody having asked for it."""

import dataclasses
import json
import math
from typing import Any

from pydantic import BaseModel, TypeAdapter

_NOT_A_NUMBER = "JSON has neither NaN nor infinities"
_SET = "JSON has no sets: return a list, or declare the type of the set"
_KEYS = "two of its keys are the same text in JSON"


def changed_by_json(value: Any, text: str, result: TypeAdapter[Any]) -> str | None:
    """Return what a result loses when it is written as JSON; None if it is kept whole.

    A declared type, a model or a dataclass is written as it says: a datetime as text, a `set[str]` as a list. Where no
    type says how, a set, NaN, an infinity, or two keys that become one would be changed without a word.

    Args:
        text: the value as JSON, written by its type.
    """
    # What is not a number is written as null, unless its type says otherwise.
    is_suspect = "null" in text or "NaN" in text or "Infinity" in text
    if is_suspect and _loses_number(result.dump_python(value, warnings=False), json.loads(text)):
        return _NOT_A_NUMBER
    if not _may_change(value):
        return None
    try:
        return _difference(value, result.validate_json(text))
    except ValueError:  # its type writes what it does not read
        return None


def _loses_number(value: Any, read: Any) -> bool:
    """Whether a value has what is not a number, and its JSON says null, or nothing that is JSON, in its place."""
    if isinstance(value, float):
        return not math.isfinite(value) and (read is None or isinstance(read, float))
    theirs = dict(_parts(read))
    return any(place in theirs and _loses_number(part, theirs[place]) for place, part in _parts(value))


def _may_change(value: Any) -> bool:
    """Whether there is a set, or a dict with other keys than texts, in a value."""
    if value is None or isinstance(value, str | int | float):  # most are
        return False
    if isinstance(value, set | frozenset):
        return True
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return True
    return any(_may_change(part) for _, part in _parts(value))


def _difference(value: Any, back: Any) -> str | None:
    """Return the first difference between a value and what is read back from its JSON."""
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
    """Return the parts of a value by their places; a model or a dataclass says itself how it is written as a whole."""
    if isinstance(value, dict):
        return list(enumerate(value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return list(enumerate(value))
    if isinstance(value, BaseModel):
        return list(value.__dict__.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    return []
