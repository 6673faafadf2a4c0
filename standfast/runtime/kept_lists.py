"""Lists in a store's journal: values under one place and the numbers from 0, which never change."""

from standfast.stores.protocol import Ledger


async def length(store: Ledger, place: str) -> int:
    """Return the number of values in a list; few of a long one are looked at."""

    async def has(number: int) -> bool:
        return await store.load_reply(place, number) is not None

    if not await has(0):
        return 0
    last, beyond = 0, 1
    while await has(beyond):
        last, beyond = beyond, 2 * beyond
    while beyond - last > 1:
        middle = (last + beyond) // 2
        last, beyond = (middle, beyond) if await has(middle) else (last, middle)
    return beyond


async def append(store: Ledger, place: str, value: str) -> None:
    """Add to a list. Values that are added at the same time each get a place of their own."""
    number = await length(store, place)
    while await store.save_reply(place, number, value) != value:
        number += 1
