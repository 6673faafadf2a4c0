"""Argument patterns, which select the later calls that a person approves in advance; none is a regular expression.

Nor is there one for how a text begins: `/srv/data/../../etc` begins with `/srv/data/`.
"""

import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from standfast.durations import to_seconds
from standfast.errors import InputError
from standfast.messages import JSONObject, Record, check_whole, json_problem
from standfast.tools import Scope

LONGEST_STANDING = timedelta(days=90)
_BOUNDS = {"minimum", "maximum"}
_TAKES = '{"const": …}, {"enum": […]}, {"minimum": …, "maximum": …} with one or both, or {} for anything'


class Remember(Record):
    """A request to approve later calls like this one in advance: a standing approval.

    Args:
        scope: for later calls of this run, of its session, or of all runs of the agent and tenant.
        until: when it ends: a time with its zone in ISO 8601, or a duration from the decision on, such as "7d"; at
            most 90 days.
        arguments: by argument, what it may be: `{"const": 1}`, `{"enum": [1, 2]}`, `{"minimum": 1, "maximum": 9}` with
            one or both, or `{}` for anything. An omitted argument must be exactly as approved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scope: Scope
    until: Annotated[str, Field(max_length=64)]
    arguments: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("until")
    @classmethod
    def _check_until(cls, value: str) -> str:
        return check_whole(value, "until")

    @field_validator("arguments", mode="before")
    @classmethod
    def _check_arguments(cls, value: Any) -> Any:
        if problem := json_problem(value):
            raise ValueError(problem)
        if isinstance(value, Mapping):
            for name, one in value.items():
                _check_pattern(name, one)
        return value

    def ends(self, at: datetime) -> datetime:
        """Return when it ends if it is decided on at a time.

        Raises:
            InputError: that is not a time to come, or more than 90 days away.
        """
        duration = to_seconds(self.until)
        try:
            end = at + timedelta(seconds=duration) if duration else datetime.fromisoformat(self.until)
        except ValueError:
            end = None
        if end is None or end.tzinfo is None:
            raise InputError(
                f'until must be a duration such as "7d", or a time with its zone such as "2026-12-01T17:00:00+01:00", '
                f"got {self.until!r}"
            )
        if not at < end <= at + LONGEST_STANDING:
            raise InputError(
                f"until must be a time to come, at most {LONGEST_STANDING.days} days away, got {self.until}"
            )
        return end


def _check_pattern(name: object, pattern: object) -> None:
    """Refuse what is not the pattern of an argument.

    Raises:
        ValueError: saying what is.
    """
    keys = set(pattern) if isinstance(pattern, Mapping) else {""}
    if not isinstance(pattern, Mapping) or not (keys in ({"const"}, {"enum"}) or keys <= _BOUNDS):
        raise ValueError(f"the pattern of {name!r:.80} must be {_TAKES}")
    if "enum" in pattern and not (isinstance(pattern["enum"], list) and pattern["enum"]):
        raise ValueError(f"enum of {name!r:.80} must be a list of values")
    for bound in _BOUNDS & pattern.keys():
        if not _is_number(pattern[bound]):
            raise ValueError(f"{bound} of {name!r:.80} must be a number")


def pattern_of(arguments: Mapping[str, Any], given: Mapping[str, Any]) -> JSONObject:
    """Return the pattern of all arguments of a call: as given, else exactly what they are.

    Raises:
        InputError: the call lacks the argument, or does not fit the pattern itself.
    """
    if unknown := sorted(given.keys() - arguments.keys()):
        raise InputError(f"the call has no argument {unknown[0]!r:.80}; it has {', '.join(arguments) or 'none'}")
    for name, pattern in given.items():
        if not _fits(pattern, arguments[name]):
            raise InputError(f"{name} of this call does not fit {json.dumps(pattern):.200} itself")
    return {name: given.get(name, {"const": value}) for name, value in arguments.items()}


def fits(pattern: Mapping[str, Any], arguments: object) -> bool:
    """Whether arguments fit a pattern, which names each of them."""
    if not isinstance(arguments, Mapping) or arguments.keys() != pattern.keys():
        return False
    return all(_fits(one, arguments[name]) for name, one in pattern.items())


def _fits(pattern: Mapping[str, Any], value: Any) -> bool:
    if "const" in pattern:
        return _same(pattern["const"], value)
    if "enum" in pattern:
        return any(_same(one, value) for one in pattern["enum"])
    if not pattern:
        return True
    return _is_number(value) and pattern.get("minimum", -math.inf) <= value <= pattern.get("maximum", math.inf)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike, which tells true, 1, 1.0 and "1" apart, and a text from its other forms."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def pattern_in_words(pattern: Mapping[str, Any]) -> str:
    """Return what an argument may be, for people."""
    words = []
    if "const" in pattern:
        words.append(f"= {json.dumps(pattern['const'], ensure_ascii=False)}")
    if "enum" in pattern:
        words.append(f"one of {json.dumps(pattern['enum'], ensure_ascii=False)}")
    if "minimum" in pattern:
        words.append(f"≥ {pattern['minimum']}")
    if "maximum" in pattern:
        words.append(f"≤ {pattern['maximum']}")
    return " and ".join(words) or "anything"
