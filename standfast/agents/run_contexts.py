"""Writes and reads the context of a run by the type that its agent has declared."""

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from standfast.agents.kept_json import ChangedValueError, write_kept
from standfast.agents.limits import CONTEXT_BYTES
from standfast.errors import InputError
from standfast.messages import error_text, explain, read_json, size_over


def write_context(agent: str, kind: TypeAdapter[Any], given: Any) -> str:
    """Write a context as JSON.

    Raises:
        InputError: it does not fit the type, is not JSON, would be changed by JSON, or is too large.
    """
    try:
        text = write_kept(kind, {} if given is None else given)
        read_json(text)
    except ValidationError as error:
        what = "needs a context (context=…)" if given is None else "the context does not fit its type"
        raise InputError(f"Agent '{agent}': {what}: {explain(error)}") from error
    except ChangedValueError as error:
        raise InputError(f"Agent '{agent}': the context {error}") from error
    except (PydanticSerializationError, ValueError) as error:
        raise InputError(f"Agent '{agent}': the context is not JSON: {error}") from error
    except Exception as error:  # of a validator of the user's
        raise InputError(f"Agent '{agent}': the context cannot be read: {error_text(error)}") from error
    if size_over(text, CONTEXT_BYTES):
        raise InputError(f"Agent '{agent}': the context is longer than {CONTEXT_BYTES:,} bytes")
    return text


def read_context(agent: str, kind: TypeAdapter[Any], written: str | None) -> Any:
    """Read what `write_context` wrote.

    Raises:
        InputError: it does not fit the type any more.
    """
    try:
        return kind.validate_json("{}" if written is None else written)
    except ValidationError as error:
        raise InputError(f"Agent '{agent}': the run's context does not fit its type: {explain(error)}") from error
