"""Reads stored values. A value that cannot be read, for whatever reason, raises an error that names it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError

from standfast.errors import StoreError
from standfast.messages import cut, error_text, explain

T = TypeVar("T")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Read a stored value in a `with` block. A malformed value is a store error that names the value.

    Raises:
        StoreError: the value cannot be read. Any other error would be retried without naming the cause.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # pydantic's own message would show the value, which belongs to the session.
        why = explain(error) if isinstance(error, ValidationError) else cut(error_text(error), 600)
        raise StoreError(f"The store has {what}, but it cannot be read: {why}. Put back a copy of the store") from error


def read_kept(what: str, text: str, read: Callable[[str], T]) -> T:
    """Return a stored text as parsed by `read`.

    Raises:
        StoreError: the text cannot be read.
    """
    with reading(what):
        return read(text)


def read_kept_object(what: str, text: str) -> dict[str, Any]:
    """Return a stored JSON object. Its frame may make it deeper than the values that were stored in it.

    Raises:
        StoreError: it is not one.
    """
    return read_kept(what, text, _object)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {type(value).__name__}, not an object")
    return value
