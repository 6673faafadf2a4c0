"""Repeats writes until the store accepts them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from standfast.errors import StoreError

T = TypeVar("T")

_DELAYS = (0.05, 0.2, 0.5, 1.0)  # seconds between attempts at a write; the last is repeated
_LAST_TRIES = 5  # of a write whose caller has been cancelled


async def retry_write(write: Callable[[], Awaitable[T]], *, tries: int | None = None) -> T:
    """Await a write that is safe to repeat, such as the result of a completed effect.

    A store that refuses is asked again: `tries` times, or until it accepts. If a cancel interrupts the write, it is
    repeated, to learn its result.
    """
    left = tries
    for attempt in itertools.count():
        try:
            return await write()
        except asyncio.CancelledError:
            left = _LAST_TRIES if left is None else left
        except StoreError:
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                raise
            try:
                await asyncio.sleep(_DELAYS[min(attempt, len(_DELAYS) - 1)])
            except asyncio.CancelledError:
                left = _LAST_TRIES if left is None else left
    raise AssertionError
