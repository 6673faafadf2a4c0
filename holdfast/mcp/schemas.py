"""Checks arguments by the schemas of servers, which are strangers' programs: nothing is fetched, nothing takes long.

`jsonschema` fetches what a `$ref` names and matches patterns with `re`, which nothing can interrupt. Here a reference
stays within its schema, patterns are matched by an engine that takes linear time, and the work of one check has an end.
What such an engine does not know (a pattern that looks ahead) is left to the server, which checks its arguments anyway.
"""

import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from holdfast.errors import HoldfastError
from holdfast.messages import cut, error_text, json_problem

MAX_SCHEMA_BYTES = 256 * 1024
MAX_WORK = 200_000  # keywords looked at, and items in them: at most about a second
_LONGEST_PATTERN = 1_000


class _TooMuchError(Exception):
    """A check has no end in sight."""


class _Work:
    def __init__(self) -> None:
        self.left = MAX_WORK

    def take(self, *values: object) -> None:
        self.left -= 1 + sum(len(value) for value in values if isinstance(value, list | dict))
        if self.left < 0:
            raise _TooMuchError


def schema_problem(schema: Any) -> str | None:
    """Say why a schema cannot be used, or None."""
    if not isinstance(schema, dict):
        return f"its schema is a {type(schema).__name__}"
    if problem := json_problem(schema):
        return f"its schema is {problem}"
    if (elsewhere := _reference_elsewhere(schema)) is not None:
        return f"its schema refers to {elsewhere!r:.200}, which nobody fetches"
    size = len(json.dumps(schema))
    return f"its schema has {size:,} bytes, more than {MAX_SCHEMA_BYTES:,}" if size > MAX_SCHEMA_BYTES else None


def _reference_elsewhere(part: Any) -> str | None:
    """Return a reference that leaves the schema, or is the whole of it, which is no schema at all."""
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
        work.set(_Work())
        try:
            fault = jsonschema.exceptions.best_match(checker.iter_errors(arguments))
        except _TooMuchError:
            raise ValueError("they cannot be checked: the tool's schema takes too long") from None
        except Exception as error:  # a schema that is none fails in many ways, one that refers elsewhere in another
            raise ValueError(f"they cannot be checked by the tool's schema: {cut(error_text(error), 300)}") from error
        if fault is not None:
            raise ValueError(f"{'.'.join(map(str, fault.path)) or 'arguments'}: {cut(fault.message, 2_000)}")
        return arguments

    return check


@functools.cache
def _matcher(pattern: str) -> Any:
    """Return what looks for a pattern in linear time; None if it cannot be read so."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _matches(pattern: Any, text: str) -> bool | None:
    """Return whether a pattern is found in a text; None if nobody here can tell."""
    matcher = _matcher(pattern) if isinstance(pattern, str) else None
    return None if matcher is None else bool(matcher.isinstance_python(text))


def _pattern(_: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    jsonschema = importlib.import_module("jsonschema")
    if isinstance(instance, str) and _matches(pattern, instance) is False:
        yield jsonschema.ValidationError(f"{cut(instance, 200)!r} does not match {cut(str(pattern), 200)!r}")


def _pattern_properties(checker: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from checker.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(checker: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    jsonschema = importlib.import_module("jsonschema")
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_matches(pattern, name) is not False for pattern in patterns):
            continue
        if part is False:
            yield jsonschema.ValidationError(f"unexpected argument {cut(name, 200)!r}")
        else:
            yield from checker.descend(value, part, path=name)


def _unique_items(_: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    jsonschema = importlib.import_module("jsonschema")
    if (
        unique
        and isinstance(instance, list)
        and len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance)
    ):
        yield jsonschema.ValidationError("items are repeated")


def _any(_: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
    yield from ()


_OWN = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _any,  # they follow references and match patterns again; the server does so, too
    "unevaluatedItems": _any,
    "uniqueItems": _unique_items,
}


def _bounded(jsonschema: Any, work: ContextVar[_Work]) -> Any:
    """Return a class of validators whose every step counts."""
    usual = jsonschema.Draft202012Validator

    def counted(keyword: Any) -> Any:
        def step(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            work.get().take(value, instance)
            yield from keyword(checker, value, instance, schema) or ()

        return step

    keywords = {**usual.VALIDATORS, **_OWN}
    return jsonschema.validators.extend(usual, {name: counted(keyword) for name, keyword in keywords.items()})


def check_listing(items: list[Any]) -> None:
    """Refuse tools that cannot be used.

    Raises:
        HoldfastError: naming the first.
    """
    for item in items:
        if problem := schema_problem(item.input_schema):
            raise HoldfastError(f"The MCP server's tool {item.name!r:.80} cannot be used: {problem}")
