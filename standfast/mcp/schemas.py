"""Reads the declarations of servers' tools, which strangers wrote, and checks arguments by their schemas.

Nothing is fetched, and nothing takes long.

`jsonschema` fetches the target of a `$ref`, and matches patterns with `re`, which cannot be interrupted. Here a
reference stays within its schema, an engine with linear time matches patterns, and one check gets a twentieth of a
second. The server checks its arguments anyway, so it gets the cases that are not checked here: a pattern that looks
ahead, arguments of over a megabyte, a schema that takes longer.
"""

import functools
import hashlib
import importlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema, to_json

from standfast.mcp.transports import LEFT_OUT
from standfast.messages import JSONObject, cut, error_text, json_problem, with_article

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DECLARED_BYTES = 384 * 1024  # about one tool
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
        """Raise if the time is up, or if a keyword's value is too long for one look."""
        longest = max((len(one) for one in values if isinstance(one, list | dict)), default=0)
        if time.thread_time() > self._until or longest > _LONGEST_LIST:
            raise _TooMuchError


def schema_problem(schema: Any) -> str | None:
    """Return why a schema cannot be used, or None."""
    if not isinstance(schema, dict):
        return f"its schema is {with_article(type(schema).__name__)}"
    if problem := json_problem(schema):
        return f"its schema is {problem}"
    if (elsewhere := _reference_elsewhere(schema)) is not None:
        return f"its schema refers to {elsewhere!r:.200}, which is not fetched"
    if schema.get("$ref") == "#":
        return "its schema is a reference to itself"
    for name in _PARTS:
        if not isinstance(schema.get(name, {}), dict):
            return f"its schema has a {name!r} of type {type(schema[name]).__name__} instead of an object"
    size = len(json.dumps(schema))
    return f"its schema has {size:,} bytes, more than {MAX_SCHEMA_BYTES:,}" if size > MAX_SCHEMA_BYTES else None


def _reference_elsewhere(part: Any) -> str | None:
    """Return a reference that leaves the schema."""
    inner: Any = part if isinstance(part, list) else ()
    if isinstance(part, dict):
        inner = [value for key, value in part.items() if key not in _DATA]
    own = part.get("$ref") if isinstance(part, dict) else None
    if isinstance(own, str) and not own.startswith("#"):
        return own
    return next((found for one in inner if (found := _reference_elsewhere(one)) is not None), None)


_DATA = ("const", "enum", "default", "examples", "example")  # keywords with data instead of schemas
_PARTS = ("properties", "patternProperties", "$defs", "definitions")


# From the newest to the oldest. MCP assigns a schema without `$schema` to the first.
_DRAFTS = ("Draft202012", "Draft201909", "Draft7", "Draft6", "Draft4", "Draft3")


def checked_by(schema: Mapping[str, Any]) -> Callable[[JSONObject], JSONObject]:
    """Return a function that returns arguments which fit a schema, and raises a `ValueError` for others.

    `$schema` names the draft. If the schema is invalid under that draft, the newest draft under which it is valid
    decides, so that calls of older servers are not rejected.
    """
    checker = _Checker(schema)

    def check(arguments: JSONObject) -> JSONObject:
        try:
            fault = None if len(to_json(arguments)) > MAX_ARGUMENTS_BYTES else checker.fault(arguments)
        except _TooMuchError:
            return arguments
        except Exception as error:  # an invalid schema fails in many ways, an outside reference in yet another
            raise ValueError(f"they cannot be checked by the tool's schema: {cut(error_text(error), 300)}") from error
        if fault is not None:
            raise ValueError(f"{'.'.join(map(str, fault.path)) or 'arguments'}: {cut(fault.message, 2_000)}")
        return arguments

    return check


class _Checker:
    """Finds faults in arguments by a schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._jsonschema, self._schema = importlib.import_module("jsonschema"), schema
        self._drafts = [getattr(self._jsonschema, f"{name}Validator") for name in _DRAFTS]
        self._own = self._jsonschema.validators.validator_for(schema, default=self._drafts[0])
        self._work: ContextVar[_Work] = ContextVar("work")  # of one check; each thread may have its own
        self._validator = functools.cache(functools.partial(_bounded, self._jsonschema, self._work))

    def fault(self, arguments: JSONObject) -> Any:
        """Return the fault that matters most, or None."""
        try:
            if (fault := self._fault_by(self._own, arguments)) is None:
                return None
        except _TooMuchError:
            raise
        except Exception:
            if (other := self._other_draft()) is None:
                raise
        else:
            if (other := self._other_draft()) is None:
                return fault
        return self._fault_by(other, arguments)

    def _fault_by(self, draft: Any, arguments: JSONObject) -> Any:
        self._work.set(_Work())
        none = importlib.import_module("referencing").Registry()  # which fetches nothing
        faults = self._validator(draft)(self._schema, registry=none).iter_errors(arguments)
        return self._jsonschema.exceptions.best_match(faults)

    def _other_draft(self) -> Any:
        """Return the newest draft under which the schema is valid, if it is invalid under its own."""
        if self._is_valid_by(self._own):
            return None
        return next((draft for draft in self._drafts if draft is not self._own and self._is_valid_by(draft)), None)

    def _is_valid_by(self, draft: Any) -> bool:
        self._work.set(_Work())
        known = self._jsonschema.validators.SPECIFICATIONS  # the drafts themselves
        try:
            return bool(self._validator(draft)(draft.META_SCHEMA, registry=known).is_valid(self._schema))
        except Exception:  # for example, it takes too long
            return False


_COUNT = re.compile(r"(\)?)\{(\d*)(?:,(\d*))?\}")
_CLASS = re.compile(r"\\[wWdDsSpPbB]|\[\[:|\(\?[a-z]*i")  # of Unicode: a thousand ranges each


def _is_quick(pattern: str) -> bool:
    """Whether a pattern can be compiled in some milliseconds, judged by the repetition of its parts."""
    counts = [(bool(group), max(int(least or 0), int(most or 1))) for group, least, most in _COUNT.findall(pattern)]
    inner = sum(count for is_group, count in counts if not is_group)
    outer = math.prod(count for is_group, count in counts if is_group)
    classes = len(_CLASS.findall(pattern))
    return (len(pattern) + inner) * outer <= _MOST_REPEATED and (
        not classes or (classes + inner) * outer <= _MOST_CLASSES
    )


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    """Return a linear-time matcher for a pattern; None if there is none."""
    if len(pattern) > _LONGEST_PATTERN or not _is_quick(pattern):
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


class _Keywords:
    """The keywords that are checked differently from `jsonschema`: without `re`, and never for long at a time."""

    def __init__(self, jsonschema: Any, work: ContextVar[_Work]) -> None:
        self._fault, self._work = jsonschema.ValidationError, work

    def all(self) -> JSONObject:
        return {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "unevaluatedProperties": self._any,  # follows references and matches patterns again; left to the server
            "unevaluatedItems": self._any,
            "uniqueItems": self._unique_items,
        }

    def _matches(self, pattern: Any, text: str) -> bool | None:
        """Return whether a pattern is found in a text; None if that cannot be determined here."""
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


def _bounded(jsonschema: Any, work: ContextVar[_Work], usual: Any) -> Any:
    """Return a validator class for a draft that checks the time at every step."""

    def counted(keyword: Any) -> Any:
        def step(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            work.get().check(value, instance)
            if instance is not None or schema.get("nullable") is not True:  # OpenAPI's
                yield from keyword(checker, value, instance, schema) or ()

        return step

    keywords = {**usual.VALIDATORS, **_Keywords(jsonschema, work).all()}
    return jsonschema.validators.extend(usual, {name: counted(keyword) for name, keyword in keywords.items()})


def tool_problem(item: Any) -> str | None:
    """Return why a tool of a listing cannot be used, or None."""
    if (marked := (item.meta or {}).get(LEFT_OUT)) is not None:
        return str(marked)
    if problem := schema_problem(item.input_schema):
        return problem
    size = len(json.dumps(declared(item)))
    return (
        f"its declaration has {size:,} bytes, more than {MAX_DECLARED_BYTES:,}" if size > MAX_DECLARED_BYTES else None
    )


_OF_PROVIDERS = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # argument names that every provider accepts
_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const")  # providers refuse these there


def shown_schema(schema: Mapping[str, Any]) -> tuple[JSONObject, dict[str, str]]:
    """Return a tool's schema in a form that every provider accepts, and the server's argument names by the shown ones.

    A model sees other names for arguments such as `$filter`, and no choice between whole schemas. The server's schema
    still decides about the arguments.
    """
    parts = dict(_properties_of(schema))
    names, used, numbers = dict[str, str](), set(parts), dict[str, int]()
    for name in parts:
        free = name
        if not _OF_PROVIDERS.fullmatch(name):
            free = numbered(re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:60] or "_", used, numbers)
        names[free] = name
    ours = {theirs: free for free, theirs in names.items()}
    shown = {key: value for key, value in schema.items() if key not in _AT_THE_TOP}
    shown["properties"] = {
        ours[name]: {} if part is True else part for name, part in parts.items() if part is not False
    }
    if isinstance(needed := schema.get("required"), list):
        shown["required"] = [ours.get(name, name) for name in needed if isinstance(name, str)]
    return shown, {free: theirs for free, theirs in names.items() if free != theirs}


def numbered(name: str, used: set[str], numbers: dict[str, int]) -> str:
    """Return a name, with a number if it is already used, and note it as used.

    Args:
        numbers: the last number of each name. Without it, a thousand equal names would take cubic time.
    """
    free = name
    while free in used:
        numbers[name] = numbers.get(name, 1) + 1
        free = f"{name}_{numbers[name]}"
    used.add(free)
    return free


def _properties_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the properties at the top of a schema and in its alternatives."""
    own = schema.get("properties", {})
    yield from own.items()
    for keyword in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(keyword)
        for choice in choices if isinstance(choices, list) else ():
            inner = choice.get("properties") if isinstance(choice, dict) else None
            if isinstance(inner, dict):
                yield from ((name, part) for name, part in inner.items() if name not in own)


_DECLARED = {"name", "title", "description", "input_schema", "output_schema", "annotations"}


def fingerprint(item: Any) -> str:
    """Return a digest of everything that a server declares about a tool. Another tool of that name has another digest.

    Waiting gates store this digest, so its computation must not change.
    """
    return digest_of(item.model_dump(mode="json", by_alias=True, include=_DECLARED))


def declared(item: Any) -> JSONObject:
    """Return everything that a server declares about a tool, without fields that a later SDK adds to all tools."""
    found: JSONObject = item.model_dump(mode="json", by_alias=True, include=_DECLARED, exclude_none=True)
    return {**found, "inputSchema": item.input_schema} | (
        {} if item.output_schema is None else {"outputSchema": item.output_schema}
    )


def digest_of(declaration: Mapping[str, Any]) -> str:
    """Return the digest of a declaration."""
    return hashlib.blake2b(json.dumps(declaration, sort_keys=True).encode(), digest_size=8).hexdigest()
