"""Reads what was kept: whoever wrote it, or whatever has happened to it since, ends in an error in words."""

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
    """Read something kept; what nobody could have written as it is, is an error of the store that names it.

    Raises:
        StoreError: it cannot be read; any other error would be retried without a word of what is wrong.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # pydantic's own words show what was there, which is the session's.
        why = explain(error) if isinstance(error, ValidationError) else cut(error_text(error), 600)
        raise StoreError(f"The store has {what}, but it cannot be read: {why}. Put back a copy of the store") from error


def read_kept(what: str, text: str, read: Callable[[str], T]) -> T:
    """Return what `read` makes of a kept text.

    Raises:
        StoreError: it cannot be read.
    """
    with reading(what):
        return read(text)


def read_kept_object(what: str, text: str) -> dict[str, Any]:
    """Return a kept JSON object; what is in it may be as deep as what was kept in it, and its frame.

    Raises:
        StoreError: it is not one.
    """
    return read_kept(what, text, _object)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {type(value).__name__}, and no object")
    return value
