"""Loads the full contents of a gate, including a call's arguments, if the history has only a part of them."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from standfast.agent_loop import Gate, digest_of, edited_call_digest, edited_digest, value_digest
from standfast.errors import InputError, StoreError
from standfast.messages import JSONObject, read_json
from standfast.runtime import outside_decisions
from standfast.stores.kept_values import read_kept
from standfast.stores.protocol import Ledger
from standfast.temporal.wire.shown_gates import read_asked
from standfast.temporal.wire.turn_records import edit_place, gate_of, read_record
from standfast.tools import shown_with_edit


def is_cut(item: Mapping[str, Any]) -> bool:
    """Return whether an item of `pending` has only a part of its contents."""
    return "reference" in item


async def load_arguments(store: Ledger, item: Mapping[str, Any]) -> Any:
    """Return all arguments of a call that waits for approval, which its `digest` covers.

    If the arguments of an item of `pending` (or of a run's `status`) are over 16 KB, or 4 KB if a person has edited
    them, its `arguments` are a text of their first 40 characters. Its `size` is the number of their bytes as JSON, and
    its `reference` is their place in the store. For every other item, its `arguments` are returned, or None.

    Args:
        store: the store of the worker that runs it.
        item: one of `StandfastClient.pending`.

    Raises:
        InputError: the reference is not valid.
        StoreError: the store does not have them, or the stored arguments do not match the digest of the item.
    """
    if not is_cut(item) or "shown" in item:
        return item.get("arguments")
    if "in_process" in item["reference"]:
        return await outside_decisions.load_arguments(store, item)
    run, turn, position, edit = _read(item["reference"])
    kept = await store.load_reply(run, turn)
    if kept is None:
        raise StoreError(f"The arguments of call {item.get('name')} are not in this store: is it the worker's?")
    record = read_record(run, turn, kept)
    gate = (gate_of(record, record.calls[position].id) if position < len(record.calls) else None) or {}
    stages, what = Gate.read(gate).stages if gate else (), f"call {item.get('name')}"
    if edit is None:
        _check_digest(item, stages, what)
        return gate["arguments"]
    written = await store.load_reply(edit_place(run, edit), 0)
    if written is None:
        raise StoreError(f"The edited arguments of {what} are not in this store: is it the worker's?")
    arguments = read_kept(f"edited arguments of run {run}", written, read_json)
    _check_digest(item, [edited_call_digest(stage, value_digest(arguments)) for stage in stages], what)
    return arguments


async def load_shown(store: Ledger, item: Mapping[str, Any]) -> list[JSONObject]:
    """Return the full contents of a pipeline's gate, or of a guardrail's stop, which its `digest` covers.

    If they are over 16 KB, the `shown` of an item of `pending` (or of a run's `status`) has only the sizes of its
    values. Its `reference`, `{"journal_key", "gate"}` and perhaps a "turn", is their place in the store.

    Args:
        store: the store of the worker that runs it.
        item: one of `StandfastClient.pending`.

    Raises:
        InputError: the reference is not valid.
        StoreError: the store does not have them, or the stored contents do not match the digest of the item.
    """
    if not is_cut(item) or "shown" not in item:
        return list(item.get("shown", ()))
    match item["reference"]:
        case {"in_process": str()}:
            return list(await outside_decisions.load_arguments(store, item))
        case {"journal_key": str(run), "turn": int(turn), "gate": str(path)}:
            return await _load_stopped(store, item, run, turn, path)
        case {"journal_key": str(run), "gate": str(path)}:
            pass
        case other:
            raise InputError(f"reference must have journal_key and gate, got {other!r:.200}")
    text = await store.load_reply(f"{run}/steps/{path}?gate", 0)
    if text is None:
        raise StoreError(f"The contents of gate {path} are not in this store: is it the worker's?")
    asked = read_asked(path, run, text)
    digests, edit = [one["digest"] for one in (asked, *asked.get("later", ()))], item["reference"].get("edit")
    if edit is not None:  # they were edited, and others decide on the edit
        digests = [edited_digest(digest, edit) for digest in digests]
    _check_digest(item, digests, f"gate {path}")
    if digest_of(path, asked["message"], asked["shown"]) != asked["digest"]:
        raise StoreError(f"The stored contents of gate {path} have changed since it was opened")
    return list(asked["shown"]) if edit is None else shown_with_edit(asked["shown"], edit)


async def _load_stopped(store: Ledger, item: Mapping[str, Any], run: str, turn: int, name: str) -> list[JSONObject]:
    kept = await store.load_reply(run, turn)
    gate = None if kept is None else gate_of(read_record(run, turn, kept), name)
    if gate is None:
        raise StoreError(f"The contents of gate {name} are not in this store: is it the worker's?")
    _check_digest(item, Gate.read(gate).stages, f"gate {name}")
    return list(gate["arguments"])


async def load_item(store: Ledger, item: Mapping[str, Any]) -> JSONObject:
    """Return an item of `pending` with its full contents; see `load_arguments` and `load_shown`."""
    if not is_cut(item):
        return dict(item)
    if "shown" in item:
        return {**item, "shown": await load_shown(store, item)}
    return {**item, "arguments": await load_arguments(store, item)}


def _read(reference: object) -> tuple[str, int, int, str | None]:
    match reference:
        case {"journal_key": str(run), "turn": int(turn), "position": int(position)} if turn >= 0 <= position:
            return run, turn, position, cast(JSONObject, reference).get("edit")
    raise InputError(f"reference must have journal_key, turn and position, got {reference!r:.200}")


def _check_digest(item: Mapping[str, Any], digests: Collection[str], what: str) -> None:
    if item.get("digest") not in digests:
        raise StoreError(f"The stored contents of {what} do not match the digest: review them again")
