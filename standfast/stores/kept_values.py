"""Reads stored values; a value that cannot be read, for whatever reason, raises an error that says so."""

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
    """Read a stored value in a `with` block; a malformed one is an error of the store, which names the value.

    Raises:
        StoreError: it cannot be read; any other error would be retried without saying what is wrong.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # pydantic's own words would show the value, which belongs to the session.
        why = explain(error) if isinstance(error, ValidationError) else cut(error_text(error), 600)
        raise StoreError(f"The store has {what}, but it cannot be read: {why}. Put back a copy of the store") from error


def read_kept(what: str, text: str, read: Callable[[str], T]) -> T:
    """Return a kept text as `read` reads it.

    Raises:
        StoreError: it cannot be read.
    """
    with reading(what):
        return read(text)


def read_kept_object(what: str, text: str) -> dict[str, Any]:
    """Return a kept JSON object, which may be deeper, by its frame, than the values that were kept in it.

    Raises:
        StoreError: it is not one.
    """
    return read_kept(what, text, _object)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {type(value).__name__}, not an object")
    return value
