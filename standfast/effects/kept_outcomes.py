"""Outcomes of effects as the ledger keeps them, and the errors that tell them to callers and to Temporal."""

import json
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from standfast.effects.keys import EffectKey, in_activity, in_workflow
from standfast.errors import EffectFailedError, InputError, StandfastError, ToolDurabilityError
from standfast.messages import cut, error_text
from standfast.tools import Failed, Returned, Unknown
from standfast.tools.kept_results import changed_by_json

_LONGEST = 32 * 1024  # bytes


def lost_error(key: EffectKey, reason: str) -> StandfastError:
    """Return the error of a call whose outcome is unknown."""
    error = ToolDurabilityError(key.name, key.id, reason=reason)
    return _final(error, ToolDurabilityError.__name__, error.payload())


def failed_error(key: EffectKey, reason: str, kind: str = "") -> StandfastError:
    """Return the error of a call that has failed at an earlier attempt, or has run and lost its result."""
    error = EffectFailedError(key.name, key.id, reason=reason, kind=kind)
    return _final(error, kind or EffectFailedError.__name__, {"name": key.name, "key": key.id})


def refused_error(error: InputError) -> StandfastError:
    """Return the error of a call that cannot be made."""
    return _final(error, InputError.__name__, {})


def of_activity(error: Exception) -> Exception:
    """Return the error of a function that is an activity itself, so that Temporal does not call it again in vain."""
    from temporalio.exceptions import ApplicationError

    if isinstance(error, ApplicationError):
        return ApplicationError(
            error.message, *error.details, type=error.type, category=error.category, non_retryable=True
        )
    return ApplicationError(said_by(error), type=type(error).__name__, non_retryable=True)


def said_by(error: BaseException) -> str:
    """Return what an error says, at most as much of it as anybody reads."""
    return cut(error_text(error), _LONGEST)


def _final(error: StandfastError, kind: str, details: dict[str, Any]) -> StandfastError:
    """Return an error that is not retried, if this is an activity, and that fails the run, if it is a workflow."""
    if not in_activity() and not in_workflow():
        return error
    from temporalio.exceptions import ApplicationError

    # Code that catches it sees standfast's error, and the worker sees Temporal's.
    both: Any = type(type(error).__name__, (type(error), ApplicationError), {"__module__": __name__})
    found = both.__new__(both)
    ApplicationError.__init__(found, str(error), details, type=kind, non_retryable=True)
    found.__dict__.update(error.__dict__)
    return cast(StandfastError, found)


@dataclass(frozen=True, slots=True)
class Raised(Failed):
    """The function raised; `kind` is the name of the error's class."""

    kind: str = ""


Kept = Returned | Failed | Unknown


def written(value: Any, result: TypeAdapter[Any]) -> Kept:
    """Return a result as JSON, for the ledger."""
    try:
        text = result.dump_json(value).decode()
        result.validate_json(text)
        problem = changed_by_json(value, text, result)
    except Exception as error:
        return Failed(f"ran, but its result was lost: it cannot be kept as JSON ({said_by(error)})")
    return Returned(text) if problem is None else Failed(f"ran, but its result could not be kept whole: {problem}")


def write_kept(outcome: Kept) -> str:
    match outcome:
        case Returned(content):
            return json.dumps({"returned": content})
        case Raised(error):
            return json.dumps({"failed": error, "kind": outcome.kind})
        case Failed(error):
            return json.dumps({"failed": error})
        case Unknown(reason):
            return json.dumps({"unknown": reason})


def read_kept(text: str) -> Kept:
    kept = json.loads(text)
    if "returned" in kept:
        return Returned(kept["returned"])
    if "kind" in kept:
        return Raised(kept["failed"], kind=kept["kind"])
    return Failed(kept["failed"]) if "failed" in kept else Unknown(kept["unknown"])
