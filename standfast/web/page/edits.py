"""Reads people's edits before an approval: of a call's arguments, or of the value that a pipeline's gate shows.

A form has fields for the parts, and all of it as JSON, beside the original. People change one of the two, or both
alike; an unchanged value is not an edit.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject, explain, visible_json
from standfast.stores.protocol import AgentStore
from standfast.temporal import StandfastClient
from standfast.web.page.forms import Field, FieldError, filled_form, read_once
from standfast.web.page.gate_contents import Whole, load_all

_MOST = 64_000  # bytes as JSON: a form sends it three times, each byte as up to three; its limit is 1 MB


@dataclass(frozen=True, slots=True)
class Editable:
    """The editable value of a waiting item.

    Args:
        label: for people.
        form: None if the whole value must be entered as JSON.
        is_too_large: for a form of any kind.
    """

    label: str
    value: Any
    schema: Mapping[str, Any] | None
    form: Field | None = None
    is_too_large: bool = False


def editable_of(item: Mapping[str, Any], whole: Whole | None) -> Editable | None:
    """Return the editable value of an item of `pending`, if the item has all of it."""
    if "tool" in item:
        return None if whole is not None else _editable("Arguments", item.get("arguments"), item.get("edit"))
    shown = item.get("shown", ()) if whole is None else whole.shown or ()
    for one in shown:
        if one.get("edit") is not None and "value" in one:
            return _editable(one.get("label") or "Value", one["value"], one["edit"])
    return None


def _editable(label: str, value: Any, schema: Mapping[str, Any] | None) -> Editable:
    if len(visible_json(value)) > _MOST:
        return Editable(label, value, schema, is_too_large=True)
    return Editable(label, value, schema, None if schema is None else filled_form(schema, value))


def read_edit(form: Mapping[str, str]) -> Any:
    """Return the value entered instead of the shown one; None if it is unchanged.

    Raises:
        InputError: it cannot be read, or two different changes were entered.
    """
    shown, typed = form.get("shown"), form.get("edit")
    try:
        had = None if shown is None else read_once(shown)
        given = [] if typed is None else [_json(typed, had)]
        if "schema" in form and (fields := filled_form(read_once(form["schema"]), had)) is not None:
            given.append(fields.read(form))
        changes = {_data(one): one for one in given if shown is None or _data(one) != _data(had)}
    except FieldError as error:
        raise FieldError(f"{error}. Nothing was approved.", error.name) from error
    except ValueError as error:
        raise InputError(f"Arguments: {error}. Nothing was approved.") from error
    if len(changes) > 1:
        raise InputError(
            "The fields and the JSON were changed differently: change only one of them. Nothing was approved."
        )
    edit = next(iter(changes.values()), None)
    if changes and edit is None:
        raise InputError("null cannot replace the shown value. Nothing was approved.")
    return edit


def _json(text: str, had: Any) -> Any:
    value = read_once(text.replace("\r\n", "\n").strip())
    if isinstance(had, dict) and not isinstance(value, dict):
        kinds = {list: "array", str: "string", bool: "boolean", type(None): "null"}
        raise InputError(f"a JSON {kinds.get(type(value), 'number')} instead of an object")
    return value


def _data(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # which distinguishes true, 1 and 1.0


async def asked_again(
    people: StandfastClient, store: AgentStore | None, run: str, form: Mapping[str, str], error: Exception
) -> JSONObject:
    """Return a waiting item as it was when a person tried to approve it, with the errors.

    The card shows it again with them; the result is empty if the run waits for another item or cannot be reached.
    """
    if form.get("decision") != "approve":
        return {}
    asked = (form.get("gate"), form.get("digest"))
    with suppress(StandfastError, RPCError):
        for item in await people.pending(run):
            if (item["name"], item.get("digest")) == asked:
                again = {**item, "workflow_id": run}
                whole = await load_all(store, [again])
                editable = editable_of(again, whole.get((run, item["name"])))
                faults = faults_of(error, None if editable is None else editable.form)
                return {"again": again, "whole": whole, "sent": form, "wrong": faults}
    return {}


def faults_of(error: Exception, form: Field | None) -> dict[str, str]:
    """Return the errors of fields, by name, as far as an error of the page or of the run names them."""
    if isinstance(error, FieldError):
        return {error.name: str(error)}
    found: dict[str, str] = {}
    places = [] if form is None else sorted(_places(form), reverse=True)
    # An error of a type names only the fields; the text before them may also be a field's name.
    cause = error.__cause__
    for fault in (explain(cause) if isinstance(cause, ValidationError) else str(error)).split("; "):
        for path, name in places:
            _, at, rest = f" {fault}".partition(f" {path}")
            if at and rest[:1] in (":", "."):
                found.setdefault(name, rest.partition(": ")[2] or fault)
                break
    return found


def _places(field: Field) -> Iterator[tuple[str, str]]:
    """Return the path to each field's value as errors have it, and the field's name."""
    if field.control != "group":
        yield ".".join(unquote(part) for part in field.name.split(".")[1:]) or "value", field.name
    for one in field.fields:
        yield from _places(one)
