"""Lists in a store's journal: what is kept under one place and the numbers from 0, and never changed."""

from standfast.stores.protocol import Ledger


async def length(store: Ledger, place: str) -> int:
    """Return how many values a list has; of a long one few are looked at."""

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
    """Add to a list. Of those who add at the same time each finds a place of its own."""
    number = await length(store, place)
    while await store.save_reply(place, number, value) != value:
        number += 1
