"""Rows of the board: what a workflow tells of an item that waits, and the item as the store keeps it."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, Required, TypedDict

from standfast.messages import person
from standfast.stores.waits import Board, Wait, searchable

_ARGUMENTS = 2_000  # characters that are searched


class ShownItem(TypedDict):
    """An item that waits, as a workflow shows it; `item` is as `pending` has it."""

    item: dict[str, Any]
    groups: NotRequired[list[str]]
    requesters: NotRequired[list[str]]


class Whose(TypedDict, total=False):
    """Whose run it is: the keys of the run and its session, its tenant, its user, and the run that started it."""

    run: Required[str]
    session: str
    tenant_id: str
    user_id: str
    parent: str


class ShowReference(Whose, total=False):
    """Everything that a run shows from a time on: items that are new, each with its key, and the keys of others.

    Args:
        first_run: the run id with which its chain of runs began.
    """

    at: Required[str]
    first_run: Required[str]
    put: Required[list[tuple[str, ShownItem]]]
    keep: Required[list[str]]


def key_of(shown: ShownItem) -> str:
    """Return a key that only the same item has; one that has changed is another."""
    return hashlib.blake2b(json.dumps(shown, sort_keys=True).encode(), digest_size=12).hexdigest()


def wait_of(shown: ShownItem, key: str, board: Board) -> Wait:
    """Return an item as the store keeps it, with what is searched in it."""
    item, deadline = shown["item"], shown["item"].get("deadline")
    more = {name: shown[name] for name in ("groups", "requesters") if shown.get(name)}
    arguments = item.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    whose = (
        board.workflow_id,
        board.user_id,
        board.tenant_id,
        *shown.get("groups", ()),
        *(item.get("approvers") or ()),
    )
    return Wait(
        key=key,
        kind=item["kind"],
        name=item["name"],
        since=datetime.fromisoformat(item["since"]),
        deadline=None if deadline is None else datetime.fromisoformat(deadline),
        people=_people(item),
        groups=tuple(shown.get("groups", ())),
        words=searchable(
            item["name"], item.get("tool") or "", *filter(None, whose), item["message"], written[:_ARGUMENTS]
        ),
        item=json.dumps({**item, **more}),
    )


def _people(item: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return who may end an item: anybody if None, nobody if it ends by itself."""
    if item["kind"] == "store" or (item["kind"] == "worker" and not item.get("can_skip")):
        return ()
    return tuple(person(name) for name in item.get("approvers") or ()) or None
