"""Checks of what users declare: each refuses a wrong value with a `DefinitionError` that names the setting."""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType

from standfast.errors import DefinitionError

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

_LONGEST = 100 * 365 * 86_400  # a century; what an engine's timers can hold

Duration = str | float | int | timedelta


def seconds(value: Duration, what: str) -> float:
    """Read a duration: "30s", "15m", "2h", "7d", "1w", a number of seconds, or a timedelta.

    Raises:
        DefinitionError: it is none of these, or not above zero.
    """
    result: float | None = None
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        match = re.fullmatch(r"(\d{1,9})([smhdw])", value)
        result = int(match[1]) * _UNITS[match[2]] if match else None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = value if 0 < value <= _LONGEST else None
    if result is None or not 0 < result <= _LONGEST:
        raise DefinitionError(f'{what} must be like "30s", "15m", "2h", "7d", "1w" or seconds above 0, got {value!r}')
    return float(result)


def check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DefinitionError(f"{name} must be >= {least}, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DefinitionError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_access(what: str, access: object) -> Mapping[str, Callable[[str | None], object]]:
    """Return the functions of a user that say who may start something, and who may approve in it."""
    if not isinstance(access, Mapping) or access.keys() - {"start", "approve"}:
        raise DefinitionError(
            f"{what}: access maps 'start' and 'approve' to functions of a user, got {repr(access)[:80]}"
        )
    for name, rule in access.items():
        check_function(f"{what}: access[{name!r}]", rule, "a user")
    return MappingProxyType(dict(access))


def check_function(what: str, value: object, of: str = "StepContext") -> None:
    """Refuse anything but a plain function. An async one would be called but not awaited, and a coroutine is true."""
    if not callable(value):
        raise DefinitionError(f"{what} must be a function of {of}, got {value!r:.80}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise DefinitionError(f"{what} must be a plain function; what has to be awaited belongs into a step or a tool")
