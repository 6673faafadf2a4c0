"""Writes as JSON what is kept of a run, and refuses what would be another value when it is read again.

Contexts and states are written here, so that the same rule holds for both.
"""

from typing import Any

from pydantic import TypeAdapter

_CHANGED = (
    "is another one once it is kept as JSON. What JSON does not show as it is, "
    "such as a secret, NaN, a tuple in a field of any type, or the fields of a subclass, cannot be in it"
)


class ChangedValueError(Exception):
    """JSON would change a value; the message goes on from its name."""


def write_kept(kind: TypeAdapter[Any], given: Any) -> str:
    """Write a value as JSON that is read back as the same value.

    Raises:
        ValidationError: it does not fit its type.
        PydanticSerializationError, ValueError: it is not JSON. That it is strict JSON is for `read_json` to say, which
            takes ten times as long.
        ChangedValueError: it would be read back as another value.
        Exception: of a validator of the user's.
    """
    value = kind.validate_python(given)
    text = kind.dump_json(value, warnings=False, by_alias=True, round_trip=True).decode()
    read = kind.validate_json(text)
    if _is_another(kind, value, read, text):
        raise ChangedValueError(_CHANGED)
    return text


def _is_another(kind: TypeAdapter[Any], value: Any, read: Any, text: str) -> bool:
    """Whether a value is read back as another one; False if its type has no equality that could tell."""
    try:
        return bool(read == kind.validate_json(text) and read != value)
    except Exception:  # from a type of the user's
        return False
