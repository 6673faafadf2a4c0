"""Checks arguments by the schemas of servers, which strangers wrote: nothing is fetched, and nothing takes long.

`jsonschema` fetches what a `$ref` names and matches patterns with `re`, which nothing can interrupt. Here a reference
stays within its schema, patterns are matched by an engine that takes linear time, and one check has a twentieth of a
second. What cannot be checked so is left to the server, which checks its arguments anyway: a pattern that looks ahead,
arguments of over a megabyte, a schema that takes longer.
"""

import functools
import importlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema, to_json

from standfast.errors import StandfastError
from standfast.messages import cut, error_text, json_problem, with_article

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SECONDS = 0.05  # of processor time; the last keyword may take as long again
MAX_ARGUMENTS_BYTES = 2**20
_LONGEST_LIST = 5_000  # items that one keyword looks at
_LONGEST_PATTERN, _LONGEST_TEXT = 1_000, 64 * 1024
_MOST_REPEATED, _MOST_CLASSES = 2_000, 64  # see `_is_quick`


class _TooMuchError(Exception):
    """A check takes too long."""


class _Work:
    def __init__(self) -> None:
        self._until = time.thread_time() + MAX_SECONDS

    def check(self, *values: object) -> None:
        """Raise if there is no time left, or a value of a keyword to look at is too long for one look."""
        longest = max((len(one) for one in values if isinstance(one, list | dict)), default=0)
        if time.thread_time() > self._until or longest > _LONGEST_LIST:
            raise _TooMuchError


def schema_problem(schema: Any) -> str | None:
    """Say why a schema cannot be used, or None."""
    if not isinstance(schema, dict):
        return f"its schema is {with_article(type(schema).__name__)}"
    if problem := json_problem(schema):
        return f"its schema is {problem}"
    if (elsewhere := _reference_elsewhere(schema)) is not None:
        return f"its schema refers to {elsewhere!r:.200}, which nobody fetches"
    size = len(json.dumps(schema))
    return f"its schema has {size:,} bytes, more than {MAX_SCHEMA_BYTES:,}" if size > MAX_SCHEMA_BYTES else None


def _reference_elsewhere(part: Any) -> str | None:
    """Return a reference that leaves the schema, or that is the whole of it and so is not a schema at all."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    own = part.get("$ref") if isinstance(part, dict) else None
    if isinstance(own, str) and not own.startswith("#/"):
        return own
    return next((found for one in inner if (found := _reference_elsewhere(one)) is not None), None)


def checked_by(schema: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that returns arguments which fit a schema, and raises a `ValueError` for others."""
    jsonschema, referencing = importlib.import_module("jsonschema"), importlib.import_module("referencing")

    work: ContextVar[_Work] = ContextVar("work")  # of one check; several threads may each have one
    checker = _bounded(jsonschema, work)(schema, registry=referencing.Registry())  # which fetches nothing

    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        if len(to_json(arguments)) > MAX_ARGUMENTS_BYTES:
            return arguments
        work.set(_Work())
        try:
            fault = jsonschema.exceptions.best_match(checker.iter_errors(arguments))
        except _TooMuchError:
            return arguments
        except Exception as error:  # a schema that is none fails in many ways, one that refers elsewhere in another
            raise ValueError(f"they cannot be checked by the tool's schema: {cut(error_text(error), 300)}") from error
        if fault is not None:
            raise ValueError(f"{'.'.join(map(str, fault.path)) or 'arguments'}: {cut(fault.message, 2_000)}")
        return arguments

    return check


_COUNT = re.compile(r"(\)?)\{(\d*)(?:,(\d*))?\}")
_CLASS = re.compile(r"\\[wWdDsSpPbB]|\[\[:|\(\?[a-z]*i")  # of Unicode: a thousand ranges each


def _is_quick(pattern: str) -> bool:
    """Whether a pattern can be read in some milliseconds, judged by how often it repeats its parts."""
    counts = [(bool(group), max(int(least or 0), int(most or 1))) for group, least, most in _COUNT.findall(pattern)]
    inner = sum(count for is_group, count in counts if not is_group)
    outer = math.prod(count for is_group, count in counts if is_group)
    classes = len(_CLASS.findall(pattern))
    return (len(pattern) + inner) * outer <= _MOST_REPEATED and (
        not classes or (classes + inner) * outer <= _MOST_CLASSES
    )


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    """Return a matcher for a pattern that takes linear time; None if there is none."""
    if len(pattern) > _LONGEST_PATTERN or not _is_quick(pattern):
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


class _Keywords:
    """The keywords that are checked differently than by `jsonschema`: without `re`, and never for long at a time."""

    def __init__(self, jsonschema: Any, work: ContextVar[_Work]) -> None:
        self._fault, self._work = jsonschema.ValidationError, work

    def all(self) -> dict[str, Any]:
        return {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "unevaluatedProperties": self._any,  # they follow references and match patterns again; the server does, too
            "unevaluatedItems": self._any,
            "uniqueItems": self._unique_items,
        }

    def _matches(self, pattern: Any, text: str) -> bool | None:
        """Return whether a pattern is found in a text; None if nobody here can tell."""
        self._work.get().check()
        matcher = _matcher(pattern) if isinstance(pattern, str) and len(text) <= _LONGEST_TEXT else None
        return None if matcher is None else bool(matcher.isinstance_python(text))

    def _pattern(self, _: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and self._matches(pattern, instance) is False:
            yield self._fault(f"{cut(instance, 200)!r} does not match {cut(str(pattern), 200)!r}")

    def _pattern_properties(self, checker: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, dict):
            for pattern, part in patterns.items():
                for name, value in instance.items():
                    if self._matches(pattern, name):
                        yield from checker.descend(value, part, path=name, schema_path=pattern)

    def _additional_properties(self, checker: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, dict):
            return
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in known or any(self._matches(pattern, name) is not False for pattern in patterns):
                continue
            if part is False:
                yield self._fault(f"unexpected argument {cut(name, 200)!r}")
            else:
                yield from checker.descend(value, part, path=name)

    def _unique_items(self, _: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if (
            unique
            and isinstance(instance, list)
            and len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance)
        ):
            yield self._fault("items are repeated")

    def _any(self, _: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
        yield from ()


def _bounded(jsonschema: Any, work: ContextVar[_Work]) -> Any:
    """Return a class of validators whose every step looks at the time."""
    usual = jsonschema.Draft202012Validator

    def counted(keyword: Any) -> Any:
        def step(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            work.get().check(value, instance)
            yield from keyword(checker, value, instance, schema) or ()

        return step

    keywords = {**usual.VALIDATORS, **_Keywords(jsonschema, work).all()}
    return jsonschema.validators.extend(usual, {name: counted(keyword) for name, keyword in keywords.items()})


def check_listing(items: list[Any]) -> None:
    """Refuse tools that cannot be used.

    Raises:
        StandfastError: naming the first.
    """
    for item in items:
        if problem := schema_problem(item.input_schema):
            raise StandfastError(f"The MCP server's tool {item.name!r:.80} cannot be used: {problem}")
