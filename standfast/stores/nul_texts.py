"""Writes texts with NUL for databases that refuse NUL or cut a text there, and reads them back."""

from typing import Any

# NUL is written as an escape (DLE) and a zero, and the escape itself twice.


def written(value: Any) -> Any:
    """Return a value, or a list of values, without NUL in its texts."""
    if isinstance(value, str):
        if "\x10" in value:
            value = value.replace("\x10", "\x10\x10")
        return value.replace("\0", "\x100") if "\0" in value else value
    return [written(one) for one in value] if isinstance(value, list) else value


def read(value: Any) -> Any:
    """Return the original of a `written` value."""
    if isinstance(value, str) and "\x10" in value:
        return "\x10".join(part.replace("\x100", "\0") for part in value.split("\x10\x10"))
    return value
