"""Reads values from the store that are too large for a card; an unreadable value cannot be approved here."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.errors import StandfastError
from standfast.stores.protocol import AgentStore, has_ledger
from standfast.temporal.client.board.gate_contents import is_cut, load_item

_PAGE = 20_000  # characters
_ON_CARD = 100_000  # bytes of a gate's contents, up to which a card has no link to all of it
_TOO_LARGE = "{} cannot be shown in full. Let the gate define with show= what people see."


@dataclass(frozen=True, slots=True)
class Whole:
    """All arguments of a call, or all contents that a gate `shown`, as a JSON file; or `why` they cannot be shown."""

    file: str = ""
    why: str | None = None
    shown: Sequence[Mapping[str, Any]] | None = None

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.file) // _PAGE))

    def page(self, number: int) -> str:
        """Return a part of it; the first is number 1."""
        return self.file[(number - 1) * _PAGE : number * _PAGE]

    @property
    def size(self) -> int:
        return len(self.file.encode())

    @property
    def is_on_card(self) -> bool:
        """Whether a card shows all of it."""
        return self.why is None and (self.pages == 1 if self.shown is None else self.size <= _ON_CARD)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.encode()).hexdigest()


async def load_whole(store: AgentStore | None, item: Mapping[str, Any]) -> Whole | None:
    """Return the full contents of an item of `pending`; None if the item itself has them."""
    if not is_cut(item):
        left = [one["label"] for one in item.get("shown", ()) if one["kind"] == "left-out"]
        return Whole(why=_TOO_LARGE.format(", ".join(left)), shown=item["shown"]) if left else None
    if not has_ledger(store):
        return Whole(why="This page has no store to read them from: start it with the workers' store.")
    try:
        found = await load_item(store, item)
    except (StandfastError, ValueError) as error:
        return Whole(why=f"{error}.".replace("..", "."))
    if (shown := found.get("shown")) is None:
        return Whole(_file(found["arguments"]))
    left = [one["label"] for one in shown if one["kind"] == "left-out"]
    return Whole(_file(shown), _TOO_LARGE.format(", ".join(left)) if left else None, shown)


def _file(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


async def load_all(store: AgentStore | None, items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Whole]:
    """Return the arguments that are missing from the items, by run and gate."""
    found = {(item["workflow_id"], item["name"]): await load_whole(store, item) for item in items}
    return {key: whole for key, whole in found.items() if whole is not None}
