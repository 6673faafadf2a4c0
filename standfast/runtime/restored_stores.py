"""Notes in a store that it was restored to an earlier state, so that missing rows are not taken as proof.

A missing claim in a store proves that the call never ran, unless the claim was among writes that were lost after a
backup. So a store has epochs: each begins when a restore is detected, or reported. Data of an earlier epoch may have
been followed by writes that no longer exist. The notes are in the journal, and never change.
"""

import json
import logging

from standfast.messages import JSONObject
from standfast.stores.kept_values import append, length
from standfast.stores.protocol import Ledger, has_place

NOTES = "standfast/epochs"

_LOG = logging.getLogger("standfast")


async def note_place(store: Ledger) -> None:
    """Record the place of a store's data, unless it is known: from then on, a copy is detected."""
    if await store.load_reply(NOTES, 0) is None:
        await append(store, NOTES, _written(0, await _place(store)), 0)


async def current_epoch(store: Ledger, *, looks: bool = True) -> int:
    """Return the number of a store's epoch, 0 at first.

    Args:
        looks: whether to check the place of the store's data, and to begin another epoch if it has changed.
    """
    count, last = await _last(store)
    if last is None:
        return 0
    place = await _place(store) if looks else last["place"]
    if last["place"] == place:
        return int(last["epoch"])
    _LOG.warning(
        "The store %r is a copy, or was restored from a backup: earlier runs' calls that it lacks now count as "
        "calls of unknown outcome",
        store,
    )
    await append(store, NOTES, _written(last["epoch"] + 1, place), count)
    return int(last["epoch"]) + 1


async def begin_epoch(store: Ledger) -> int:
    """Note that a store was restored to an earlier state, and return the number of the new epoch."""
    epoch = await current_epoch(store) + 1
    count, _ = await _last(store)
    await append(store, NOTES, _written(epoch, await _place(store)), count)
    return epoch


async def note_move(store: Ledger) -> None:
    """Record the place of data that were moved as a whole: the epoch continues."""
    count, last = await _last(store)
    if last is not None:
        await append(store, NOTES, _written(last["epoch"], await _place(store)), count)


async def _last(store: Ledger) -> tuple[int, JSONObject | None]:
    """Return the number of notes, and the last of them."""
    count = await length(store, NOTES)
    kept = await store.load_reply(NOTES, count - 1) if count else None
    return count, None if kept is None else json.loads(kept)


async def _place(store: Ledger) -> str:
    return await store.place() if has_place(store) else ""


def _written(epoch: int, place: str) -> str:
    return json.dumps({"epoch": epoch, "place": place})
