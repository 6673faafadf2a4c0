"""Limits tool results to the size of a store's row: a larger one is lost at once, and the model reads that."""

from pydantic_core import to_json

from standfast.stores.capabilities import largest_row
from standfast.tools import Failed, Outcome, Returned

_ROOM = 20_000  # bytes for the rest of the row, such as keys and the names of people


def within_row(outcome: Outcome, tool: str, store: object) -> Outcome:
    """Return an outcome of a tool in a form that a store can keep, as JSON in its ledger, and as a message."""
    largest = largest_row(store)
    if largest is None or not isinstance(outcome, Returned):
        return outcome
    largest -= 0 if outcome.state is None else len(to_json(outcome.state.text))
    if 6 * len(outcome.content) + _ROOM <= largest or (size := len(to_json(outcome.content)) + _ROOM) <= largest:
        return outcome
    return Failed(
        f'Tool "{tool}" ran, but its result was lost: {size - _ROOM:,} bytes as JSON, more than the '
        f"{largest - _ROOM:,} that the store keeps of a result"
    )
