"""Writes and reads the context of a run by the type that its agent has declared."""

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from standfast.agents.limits import CONTEXT_BYTES
from standfast.errors import InputError
from standfast.messages import error_text, explain, read_json, size_over


def write_context(agent: str, kind: TypeAdapter[Any], given: Any) -> str:
    """Write a context as JSON.

    Raises:
        InputError: it does not fit the type, is not JSON, or is too large.
    """
    try:
        value = kind.validate_python({} if given is None else given)
        text = kind.dump_json(value, warnings=False, by_alias=True, round_trip=True).decode()
        read_json(text)
        read = kind.validate_json(text)
    except ValidationError as error:
        what = "needs a context (context=…)" if given is None else "the context does not fit its type"
        raise InputError(f"Agent '{agent}': {what}: {explain(error)}") from error
    except (PydanticSerializationError, ValueError) as error:
        raise InputError(f"Agent '{agent}': the context is not JSON: {error}") from error
    except Exception as error:  # of a validator of the user's
        raise InputError(f"Agent '{agent}': the context cannot be read: {error_text(error)}") from error
    if _is_another(kind, value, read, text):
        raise InputError(
            f"Agent '{agent}': the context is another one once it is kept as JSON. What JSON does not show as it is, "
            "such as a secret, NaN, a tuple in a field of any type, or the fields of a subclass, cannot be in it"
        )
    if size_over(text, CONTEXT_BYTES):
        raise InputError(f"Agent '{agent}': the context is longer than {CONTEXT_BYTES:,} bytes")
    return text


def _is_another(kind: TypeAdapter[Any], value: Any, read: Any, text: str) -> bool:
    """Whether a context is read back as another value; False if its type has no equality that could tell."""
    try:
        return bool(read == kind.validate_json(text) and read != value)
    except Exception:  # from a type of the user's
        return False


def read_context(agent: str, kind: TypeAdapter[Any], written: str | None) -> Any:
    """Read what `write_context` wrote.

    Raises:
        InputError: it does not fit the type any more.
    """
    try:
        return kind.validate_json("{}" if written is None else written)
    except ValidationError as error:
        raise InputError(f"Agent '{agent}': the run's context does not fit its type: {explain(error)}") from error
