"""Reads and writes values of a declared type, and tells whether the type has changed."""

import hashlib
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from standfast.errors import InputError
from standfast.messages import read_json


def digest_of(kind: TypeAdapter[Any] | None, shape: Any) -> str:
    """Return a digest that identifies a type: of its schema, or of its source text if only code reads it."""
    if kind is None:
        return ""
    try:
        schema = to_json(kind.json_schema())
    except Exception:  # whatever pydantic, or the user's part in it, raises
        schema = repr(shape).encode()
    return hashlib.blake2b(schema, digest_size=8).hexdigest()


def plain_value(kind: TypeAdapter[Any] | None, value: Any, whose: str) -> Any:
    try:
        text = to_json(value) if kind is None else kind.dump_json(value, warnings=False, by_alias=True, round_trip=True)
        return read_json(text.decode())
    except (PydanticSerializationError, ValueError) as error:
        raise InputError(f"{whose}: its value is not JSON: {error}") from error
