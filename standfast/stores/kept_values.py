"""Writes and reads stored values, lists and texts. A value that cannot be read raises an error that names it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError

from standfast.errors import StoreError
from standfast.messages import cut, error_text, explain
from standfast.stores.protocol import Ledger

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


async def length(store: Ledger, place: str) -> int:
    """Return the number of values in a list. Only a few values of a long list are read."""
    beyond = 1
    while await store.load_reply(place, beyond - 1) is not None:
        beyond *= 2
    known, beyond = beyond // 2, beyond - 1
    while known < beyond:
        middle = (known + beyond) // 2
        if await store.load_reply(place, middle) is None:
            beyond = middle
        else:
            known = middle + 1
    return known


async def append(store: Ledger, place: str, value: str, number: int) -> int:
    """Add to a list, and return its length. Values that are added at the same time each get a separate place.

    Args:
        number: the known length of the list.
    """
    while await store.save_reply(place, number, value) != value:
        number += 1
    return number + 1


# NUL is written as an escape (DLE) and a zero, and the escape itself twice.


def without_nul(value: Any) -> Any:
    """Return a value, or a list of values, without NUL in its texts."""
    if isinstance(value, str):
        if "\x10" in value:
            value = value.replace("\x10", "\x10\x10")
        return value.replace("\0", "\x100") if "\0" in value else value
    return [without_nul(one) for one in value] if isinstance(value, list) else value


def with_nul(value: Any) -> Any:
    """Return the original of a value of `without_nul`."""
    if isinstance(value, str) and "\x10" in value:
        return "\x10".join(part.replace("\x100", "\0") for part in value.split("\x10\x10"))
    return value
