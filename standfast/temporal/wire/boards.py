"""Rows of the board: a workflow's report on a waiting item, and the item as the store keeps it."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, Required, TypedDict

from standfast.messages import JSONObject, person
from standfast.stores.waits import Board, Wait, searchable

_ARGUMENTS = 2_000  # characters that are searched


class ShownItem(TypedDict):
    """A waiting item, as a workflow shows it; `item` is as `pending` has it."""

    item: JSONObject
    groups: NotRequired[list[str]]
    requesters: NotRequired[list[str]]


class Whose(TypedDict, total=False):
    """The owner of a run: the keys of the run and its session, its tenant, its user, and the run that started it."""

    run: Required[str]
    session: str
    tenant_id: str
    user_id: str
    parent: str


class ShowReference(Whose, total=False):
    """All items that a run shows from a given time on: the new ones, each with its key, and the keys of the others.

    Args:
        first_run: the run id with which its chain of runs began.
    """

    at: Required[str]
    first_run: Required[str]
    put: Required[list[tuple[str, ShownItem]]]
    keep: Required[list[str]]


def key_of(shown: ShownItem) -> str:
    """Return a key that only the same item has; a changed item is a different one."""
    return hashlib.blake2b(json.dumps(shown, sort_keys=True).encode(), digest_size=12).hexdigest()


def wait_of(shown: ShownItem, key: str, board: Board) -> Wait:
    """Return an item as the store keeps it, with its searchable text."""
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
    """Return the people who may end an item: None means anyone; no one if it ends automatically."""
    if item["kind"] == "store" or (item["kind"] == "worker" and not item.get("can_skip")):
        return ()
    return tuple(person(name) for name in item.get("approvers") or ()) or None
