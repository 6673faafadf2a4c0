"""Keeps the contents of a gate small enough for a history, with a reference to the stored values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import Gate
from standfast.messages import JSONObject, cut, edit_in_words
from standfast.stores.kept_values import read_kept_object
from standfast.temporal.wire.inputs import PENDING_BYTES, SHOWN_BYTES
from standfast.tools import shown_with_edit

_SIZES = 100  # values whose sizes are listed
_BEGINNING = 200  # bytes of a message that does not fit


def asked_inline(asked: Mapping[str, Any], journal_key: str, path: str) -> JSONObject:
    """Return a gate's contents as a history has them: of large values only the sizes, and their place in the store."""
    found = {name: value for name, value in asked.items() if name != "value"}
    return found | (_inline(asked["shown"], {"journal_key": journal_key, "gate": path}) if "shown" in asked else {})


def shown_inline(shown: Sequence[Mapping[str, Any]], journal_key: str, turn: int, gate: str) -> JSONObject:
    """Return the same of content other than a call that a guardrail has stopped; a record of the turn has it."""
    return _inline(shown, {"journal_key": journal_key, "turn": turn, "gate": gate})


def _inline(shown: Sequence[Mapping[str, Any]], reference: JSONObject) -> JSONObject:
    return {"shown": shown} if len(to_json(shown)) <= SHOWN_BYTES else _left_out(shown, reference)


def _left_out(shown: Sequence[Mapping[str, Any]], reference: JSONObject) -> JSONObject:
    size = len(to_json(shown))
    sizes = [{"label": one.get("label", ""), "kind": "left-out", "size": len(to_json(one))} for one in shown[:_SIZES]]
    return {"shown": sizes, "size": size, "reference": reference}


def within_query(items: Iterable[JSONObject], journal_key: str) -> list[JSONObject]:
    """Return waiting items so that they fit together into the answer to a query.

    Items that do not fit have a cut message, and only the sizes of the values that a gate shows. The board has them in
    full.
    """
    found, room = list[JSONObject](), PENDING_BYTES
    for item in items:
        size = len(to_json(item))
        if size > room:
            item = {**item, "message": cut(item["message"], _BEGINNING)}
            if "shown" in item and not item.keys() & {"reference", "edited_by"}:
                item |= _left_out(item["shown"], {"journal_key": journal_key, "gate": item["name"]})
            size = len(to_json(item))
        room = max(0, room - size)
        found.append(item)
    return found


def shown_with(asked: Mapping[str, Any]) -> JSONObject:
    """Return the part of these contents that a card shows beside the message; see `Waiting`."""
    return {name: asked[name] for name in ("shown", "size", "reference") if name in asked}


def shown_changed(seen: Mapping[str, Any], gate: Gate) -> Mapping[str, Any]:
    """Return the contents of a card for a gate whose value or arguments may have been edited."""
    edit = gate.changed
    if edit is None:
        return seen
    by = {"edited_by": gate.editor or ""}
    if gate.is_call:
        return {**_call_changed(seen, edit), **by}
    if "reference" in seen:
        return {**seen, "reference": {**seen["reference"], "edit": edit}, **by}
    before = next((one.get("value") for one in seen["shown"] if "edit" in one), None)
    return {**seen, "shown": shown_with_edit(seen["shown"], edit), "changes": edit_in_words(before, edit), **by}


def _call_changed(seen: Mapping[str, Any], edit: Mapping[str, Any]) -> JSONObject:
    """Return a call with edited arguments.

    Args:
        edit: its reference.
    """
    place = {**seen["reference"], "edit": edit["digest"]}
    found = {**seen, "arguments": edit["shown"], "size": edit.get("size"), "reference": place}
    is_whole = "size" not in seen and "size" not in edit
    return {**found, "changes": edit_in_words(seen["arguments"], edit["shown"])} if is_whole else found


def read_asked(path: str, run: str, kept: str) -> JSONObject:
    """Read the stored contents of a gate.

    Raises:
        StoreError: it cannot be read.
    """
    return read_kept_object(f"gate {path} of run {run}", kept)
