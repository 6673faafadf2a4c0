"""Checks of users' declarations and names: each refuses a wrong value with a `DefinitionError` that names it."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from standfast.durations import WAYS, Duration, to_seconds
from standfast.errors import DefinitionError, did_you_mean

GUARDED = "__standfast_effect__"
"""The attribute of a function that has a guard."""


C = TypeVar("C", bound=type)


def suggesting(declared: C) -> C:
    """Make a class name the closest of its keywords when it is given an unknown one, as Python 3.13 does."""
    init: Callable[..., None] = declared.__init__  # type: ignore[misc]  # of this class, not of an instance

    @functools.wraps(init)
    def checked(self: Any, /, *arguments: Any, **options: Any) -> None:
        try:
            init(self, *arguments, **options)
        except TypeError as error:
            found = re.search(r"unexpected keyword argument '(\w+)'$", str(error))
            if found is None or found[1] not in options:
                raise
            known = inspect.signature(init).parameters.keys() - {"self"}
            raise TypeError(f"{error}{did_you_mean(found[1], known)}") from None

    declared.__init__ = checked  # type: ignore[misc]
    return declared


def is_guarded(function: Any) -> bool:
    """Whether a function is guarded, or the function that it wraps or is part of."""
    while function is not None:
        if hasattr(function, GUARDED) or hasattr(type(function).__call__, GUARDED):
            return True
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
    return False


def check_handler(tool: str, handler: object, safe_to_retry: bool) -> None:
    """Refuse a handler that cannot be called, and a second guard: it would keep the outcome, and never run `verify`."""
    if handler is not None and not callable(handler):
        raise DefinitionError(f"Tool '{tool}': handler must be callable, got {handler!r}")
    for one in () if handler is None else (handler, type(handler).__call__):
        if inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one):  # which look into partial functions
            raise DefinitionError(
                f"Tool '{tool}': its function is a generator, whose body would not run when it is called: collect what "
                "it yields in a list, and return that"
            )
    if not safe_to_retry and is_guarded(handler):
        raise DefinitionError(
            f"Tool '{tool}': its function has a guard, but a tool already runs at most once: pass the function "
            "without the guard; or, to use the guard's verify=, declare the tool safe with safe_to_retry=True"
        )


def check_deps(owner: str, deps: Callable[..., Any] | None) -> None:
    """Refuse a function that makes no dependencies, or opens dependencies that nothing would close."""
    if deps is None:
        return
    if not callable(deps):
        raise DefinitionError(f"{owner}: deps must be callable, got {deps!r:.80}")
    if inspect.isasyncgenfunction(deps) or inspect.isgeneratorfunction(inspect.unwrap(deps)):
        raise DefinitionError(
            f"{owner}: deps yields what nothing would close again: make it an async def with @asynccontextmanager"
        )


def seconds(value: Duration, what: str) -> float:
    """Return the seconds of a positive duration.

    Raises:
        DefinitionError: it is not one.
    """
    found = to_seconds(value)
    if not found:
        raise DefinitionError(f"{what} must be like {WAYS} above 0, got {value!r}")
    return found


def check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DefinitionError(f"{name} must be >= {least}, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DefinitionError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


AccessRules = Mapping[str, Callable[[str | None], bool]]  # for "start" and "approve"


def check_access(what: str, access: object) -> AccessRules:
    """Return a user's functions that decide who may start a run, and who may approve in it."""
    if not isinstance(access, Mapping) or access.keys() - {"start", "approve"}:
        raise DefinitionError(
            f"{what}: access maps 'start' and 'approve' to functions of a user, got {repr(access)[:80]}"
        )
    for name, rule in access.items():
        check_function(f"{what}: access[{name!r}]", rule, "a user")
    return MappingProxyType(dict(access))


def check_function(what: str, value: object, of: str = "StepContext") -> None:
    """Refuse anything but a plain function. An async one would be called but not awaited, and a coroutine is truthy."""
    if not callable(value):
        raise DefinitionError(f"{what} must be a function of {of}, got {value!r:.80}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise DefinitionError(f"{what} must be a plain function; anything to be awaited belongs in a step or a tool")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise DefinitionError(f"{what} must be a function of one argument, {of}: {error}") from None


NAME = re.compile(r"[a-z][a-z0-9_-]*")


def check_name(name: object, what: str) -> None:
    """Refuse a name that does not match `[a-z][a-z0-9_-]*` as a whole; a final newline is also refused."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(f"{what} name must match ^{NAME.pattern}$, got {name!r}")


def check_former_names(name: str, formerly: object, what: str) -> tuple[str, ...]:
    """Return former names; they must differ from the current name and from each other."""
    if isinstance(formerly, str) or not isinstance(formerly, Iterable):
        raise DefinitionError(f"{what}: formerly must be a list of names, got {formerly!r}")
    names = tuple(formerly)
    for one in names:
        check_name(one, f"{what}: formerly: a")
    if len({name, *names}) <= len(names):
        raise DefinitionError(f"{what}: formerly: a name is given twice: {', '.join([name, *names])}")
    return names
