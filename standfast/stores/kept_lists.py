"""Lists in a store's journal: values under one place and the numbers from 0, which never change."""

from standfast.stores.protocol import Ledger


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
