"""Converts the outcome of an attempt: what is stored of a result or an error, and what a caller receives from it."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from standfast.effects import failures
from standfast.effects.calls import Ending
from standfast.effects.kept import Kept, Raised, written
from standfast.effects.keys import EffectKey, is_cancel
from standfast.errors import StandfastError, ToolDurabilityError
from standfast.messages import error_text
from standfast.tools import Failed, Happened, NotHappened, Returned, Unknown
from standfast.tools.attempts import Verdict
from standfast.tools.open_errors import ErrorTypes, leaves_open
from standfast.tools.signatures import schema_type


def result_of(function: Callable[..., Any], owner: str) -> TypeAdapter[Any]:
    """Return what reads a value of the type that a function is declared to return."""
    return schema_type(_returned(function), owner, "its result")


def result_or_error(function: Callable[..., Any]) -> Any:
    """Return the result type for callers that receive unknown outcomes as values."""
    return _returned(function) | dict[str, Any]


def _returned(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any


def no_awaitable(value: Any) -> Any:
    """Return what a plain function returned, unless that has yet to be awaited."""
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"it returned {type(value).__name__}, which must be awaited: make it an async def")


def broken(
    error: BaseException,
    *,
    safe_to_retry: bool,
    unknown: ErrorTypes = (),
    not_run: ErrorTypes = (),
    cut_off_after: float | None = None,
) -> Kept | Ending:
    """Return what an error of a function means."""
    if cut_off_after is None and isinstance(error, not_run):
        return Ending.NOT_RUN
    if safe_to_retry:
        return Ending.AGAIN
    if cut_off_after is not None:
        return Unknown(f"it was cut off after its timeout of {cut_off_after:g} s")
    if isinstance(error, ToolDurabilityError):
        return Unknown(error.reason)
    if is_cancel(error):
        return Unknown("it was cancelled while it ran")
    if isinstance(error, GeneratorExit):
        return Unknown("its event loop was closed while it ran")
    if isinstance(error, Exception) and leaves_open(error, unknown=unknown, not_run=not_run):
        return Unknown(failures.said_by(error))
    if isinstance(error, Exception):
        return Raised(failures.said_by(error), kind=type(error).__name__)
    return Unknown(f"it was interrupted by {type(error).__name__}")


def is_told(error: BaseException, outcome: Kept | Ending) -> bool:
    """Whether an error is raised as `ToolDurabilityError`; a cancel stays a cancel."""
    return isinstance(outcome, Unknown) and isinstance(error, Exception) and not is_cancel(error)


def settled(found: Verdict | Unknown) -> Kept | Ending:
    """Return the outcome of an attempt that raised an error, given the verdict of `verify`."""
    match found:
        case Happened(value):
            return written(value, TypeAdapter(Any))
        case Unknown():
            return found
        case _:
            return Ending.NOT_RUN


def verdict_of(found: object, reason: str) -> Verdict | Unknown:
    """Return what a `verify` function has found out about a call that was lost for a reason."""
    if found is None or isinstance(found, Happened | NotHappened):
        return Unknown(reason) if found is None else found
    return Unknown(f"{reason}, and verify returned {type(found).__name__} instead of Happened, NotHappened or None")


def not_verified(error: Exception, reason: str) -> Unknown:
    return Unknown(f"{reason}, and verify failed: {error_text(error)}")


def answer(key: EffectKey, kept: Kept, result: TypeAdapter[Any], *, raises: bool) -> Any:
    """Return the result that is kept of a call, or raise what is kept of its failure.

    Args:
        raises: raise an unknown outcome as well, instead of returning it for a model.
    """
    match kept:
        case Returned(content):
            try:
                return result.validate_json(content)
            except ValidationError as error:
                raise _misfit(key, error) from None
        case Raised(reason):
            raise failures.failed(key, reason, kept.kind)
        case Failed(reason):
            raise failures.failed(key, reason)
        case Unknown(reason):
            if not raises:
                return ToolDurabilityError(key.name, key.id, reason=reason).payload()
            raise failures.lost(key, reason)


def _misfit(key: EffectKey, error: ValidationError) -> StandfastError:
    first = error.errors()[0]["msg"]
    return failures.failed(
        key, f"has run, and its result is stored, but does not fit the function's current return type: {first}"
    )
