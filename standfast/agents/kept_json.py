"""Writes the stored data of a run as JSON, and refuses values that would differ when read again.

Contexts and states are written here, so that the same rule applies to both.
"""

from typing import Any

from pydantic import TypeAdapter

_CHANGED = (
    "would change when it is stored as JSON. It cannot contain values that JSON does not keep unchanged, "
    "such as a secret, NaN, a tuple in a field of type Any, or the fields of a subclass"
)


class ChangedValueError(Exception):
    """JSON would change a value; the message continues after its name."""


def write_kept(kind: TypeAdapter[Any], given: Any) -> str:
    """Write a value as JSON that is read back as the same value.

    Raises:
        ValidationError: it does not fit its type.
        PydanticSerializationError, ValueError: it is not JSON. `read_json` checks that it is strict JSON, which takes
            ten times as long.
        ChangedValueError: it would be read back as another value.
        Exception: raised by a user's validator.
    """
    value = kind.validate_python(given)
    text = kind.dump_json(value, warnings=False, by_alias=True, round_trip=True).decode()
    read = kind.validate_json(text)
    if _is_another(kind, value, read, text):
        raise ChangedValueError(_CHANGED)
    return text


def _is_another(kind: TypeAdapter[Any], value: Any, read: Any, text: str) -> bool:
    """Whether a value is read back as another one; False if its type cannot compare values."""
    try:
        return bool(read == kind.validate_json(text) and read != value)
    except Exception:  # from a user's type
        return False
