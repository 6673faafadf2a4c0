"""Describes the user for whom an agent runs, and the context of its hooks and instructions."""

from dataclasses import dataclass
from typing import Any, Generic

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from typing_extensions import TypeVar

from standfast.agents.limits import CONTEXT_BYTES
from standfast.errors import InputError
from standfast.messages import error_text, explain, read_json, size_over
from standfast.tools import DepsT_co

DepsT = TypeVar("DepsT", default=Any)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The agent and the run that a hook belongs to."""

    id: str
    name: str


@dataclass(slots=True)
class AgentContext(Generic[DepsT_co]):
    """The argument of hooks, callable instructions and `deps`.

    Args:
        state: the run's own copy, which may be changed.
        session_id: the session, or None without a store.
        context: the context given to the run, in the agent's type; None if the agent has none.
        deps: the result of the agent's `deps`, or the context itself.
    """

    agent: AgentIdentity
    state: Any
    user_id: str | None = None
    tenant_id: str | None = None
    session_id: str | None = None
    context: Any = None
    deps: DepsT_co = None  # type: ignore[assignment]  # until it is made

    def authenticated(self) -> bool:
        return self.user_id is not None


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
    except Exception as error:  # from a user's validator
        raise InputError(f"Agent '{agent}': the context cannot be read: {error_text(error)}") from error
    if size_over(text, CONTEXT_BYTES):
        raise InputError(f"Agent '{agent}': the context is longer than {CONTEXT_BYTES:,} bytes")
    return text


def read_context(agent: str, kind: TypeAdapter[Any], written: str | None) -> Any:
    """Read the value that `write_context` wrote.

    Raises:
        InputError: it no longer fits the type.
    """
    try:
        return kind.validate_json("{}" if written is None else written)
    except ValidationError as error:
        raise InputError(f"Agent '{agent}': the run's context does not fit its type: {explain(error)}") from error
