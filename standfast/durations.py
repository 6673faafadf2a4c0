"""Durations as users give them, parsed in one place."""

import re
from datetime import timedelta

Duration = str | float | int | timedelta
"""`"30s"`, `"15m"`, `"2h"`, `"7d"`, `"1w"`, a number of seconds, or a `timedelta`."""

WAYS = '"30s", "15m", "2h", "7d", "1w" or seconds'

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST = 100 * 365 * 86_400  # a century; the limit of an engine's timers


def to_seconds(value: object) -> float | None:
    """Return the seconds of a duration, 0 or more; None if the value is not one."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, str):
        match = re.fullmatch(r"(\d{1,9})([smhdw])", value)
        value = int(match[1]) * _UNITS[match[2]] if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        return None
    return float(value)
