"""Makes forms from JSON schemas, and reads the entries as the data that the schema describes.

A value has a separate field if HTML has a control for it; everything else is entered as JSON. The type itself validates
the entries, so a field must only not misrepresent them. A form with a value returns exactly that value where it was not
changed. An unchanged field keeps its original value, however its text would be read.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal
from urllib.parse import quote

from standfast.errors import InputError
from standfast.messages import JSONObject, cut, read_json, visible, visible_json

Control = Literal["group", "text", "input", "number", "checkbox", "select", "lines", "json"]
_INPUTS = {"date": "date", "time": "time", "email": "email", "uri": "url", "password": "password"}
_SCALARS = {"string", "integer", "number"}
_ABSENT = object()
_EMPTY = object()  # a form without a value
_NAME = "input"  # of the control, or the group, of the whole value
_EDITED = "field"  # the same, of a form with a value
_MOST = 200  # fields of a form with a value; a schema can come from a stranger


@dataclass(frozen=True, slots=True)
class Field:
    """One control of a form, or a group of them.

    Args:
        name: the control's name: the path to its value, with dots between keys, which are percent-encoded.
        key: the key of its value in the containing object; None for the whole value.
        label, help: for people.
        kind: for an "input" or "number", the value of the attribute `type`, or `step`.
        options: for a "select", the JSON of each value, and its text.
        value: its first value, as text; for a checkbox "on" or nothing.
        required: whether it must be filled in; otherwise an empty field is omitted, or null if only that is allowed.
        fields: the fields of a group.
        has: in a form with a value, the part of it that the field represents.
    """

    name: str
    key: str | None
    label: str
    control: Control
    help: str = ""
    kind: str = ""
    options: Sequence[tuple[str, str]] = ()
    value: str = ""
    least: float | None = None
    most: float | None = None
    required: bool = True
    is_null: bool = False
    fields: "tuple[Field, ...]" = ()
    has: Any = _EMPTY

    @property
    def is_filled(self) -> bool:
        """Whether it is a field of a form with a value."""
        return self.has is not _EMPTY

    @property
    def placeholder(self) -> str:
        """The value, as text, if the field is empty although it has one."""
        if not self.is_filled or self.value:
            return ""
        return "not given" if self.has is _ABSENT else "an empty text" if self.has == "" else _data(self.has)

    def read(self, form: Mapping[str, str]) -> Any:
        """Return the entered value.

        Raises:
            FieldError: an entry that should be a number or JSON is not.
        """
        found = self._read(form)
        return None if found is _ABSENT else found

    def _read(self, form: Mapping[str, str]) -> Any:
        if self.control == "group":
            values = {one.key: one._read(form) for one in self.fields}
            found = {key: value for key, value in values.items() if value is not _ABSENT}
            return found if found or self.required or self.is_filled else _ABSENT
        text = form.get(self.name, "").replace("\r\n", "\n")
        if self.is_filled and (self.name not in form or text == self.value):
            return self.has
        if self.control == "checkbox":
            return text == "on"
        if self.control == "lines" and (text.strip() or self.required or self.is_filled):
            return [line for line in text.split("\n") if line.strip()]
        if not (text if self.control == "text" else text.strip()):
            return self._emptied() if self.name in form or not self.value else _ABSENT
        try:
            match self.control:
                case "number":
                    return _number(text)
                case "select" | "json":
                    return read_once(text)
                case _:
                    return text
        except InputError as error:
            raise FieldError(f"{self.label}: {error}", self.name) from error

    def is_as_shown(self, form: Mapping[str, str]) -> bool:
        """Whether the field is unchanged; a checkbox that is missing from a form was left empty."""
        if self.control == "group":
            return all(one.is_as_shown(form) for one in self.fields)
        is_sent = self.name in form or self.control == "checkbox"
        return not is_sent or form.get(self.name, "").replace("\r\n", "\n") == self.value

    def _emptied(self) -> Any:
        """Return the value of a field that was left empty, or whose initial value was deleted."""
        if self.is_null:
            return None
        return "" if self.control == "text" and self.value else _ABSENT


class FieldError(InputError):
    """An entry in a field cannot be read."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


def read_once(text: str) -> Any:
    """Read strict JSON in which no object has a key twice: people would see one value, and the other would be used."""
    value = read_json(text)
    json.loads(text, object_pairs_hook=_keys_once)
    return value


def _keys_once(pairs: list[tuple[str, Any]]) -> JSONObject:
    if len(pairs) > len(found := dict(pairs)):
        raise InputError("an object has a key twice")
    return found


def form_of(schema: Mapping[str, Any] | None, name: str = _NAME) -> Field:
    """Return the form for a value; a schema of None accepts any."""
    if schema is None:
        return Field(name, None, name.capitalize(), "json", help="As JSON; it may be left empty.", required=False)
    return _field({"title": name.capitalize(), **schema}, name, None, _Known(schema.get("$defs", {})), required=True)


def filled_form(schema: Mapping[str, Any], value: Any) -> Field | None:
    """Return the form with a value; None if the whole value must be entered as JSON, or the schema is unusable."""
    try:
        found = _field(schema, _EDITED, None, _Known(schema.get("$defs", {})), required=True, value=value)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, _TooManyError):
        return None  # a stranger's schema may have anything anywhere
    return None if found.control == "json" else found


class _TooManyError(Exception):
    """A form would have more fields than people fill in."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The definitions that parts of a schema refer to.

    Args:
        definitions: all of them, by name.
        within: those around the part; a type that contains itself is entered as JSON.
        numbers: count the fields.
    """

    definitions: Mapping[str, Any]
    within: tuple[str, ...] = ()
    numbers: Iterator[int] = field(default_factory=count)

    def resolve(self, schema: Mapping[str, Any]) -> "tuple[JSONObject, _Known]":
        """Return the schema that a reference points to, with the keys beside the reference."""
        name = str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else None
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if name is None or name in self.within or name not in self.definitions:
            return rest, self
        inner = replace(self, within=(*self.within, name))
        return inner.resolve({**self.definitions[name], **rest})


def _field(
    part: Mapping[str, Any], name: str, key: str | None, known: _Known, *, required: bool, value: Any = _EMPTY
) -> Field:
    """Return the field of a part of a schema, and of a part of a value if there is one."""
    if value is not _EMPTY and next(known.numbers) >= _MOST:
        raise _TooManyError
    schema, is_null = _not_null(part)
    schema, known = known.resolve(schema)
    has: dict[str, Any] = {
        "name": name,
        "key": key,
        "label": str(schema.get("title", "Input" if key is None else key)),
        "help": str(schema.get("description", "")),
        "required": required and not is_null,
        "is_null": is_null and (value is not _EMPTY or required or schema.get("default") is not None),
        "has": value,
    }
    if value is not _EMPTY:
        has["label"] = _true_label(has["label"], key)
    is_object = schema.get("type") == "object" and not schema.get("additionalProperties")
    parts: Mapping[str, Any] = schema.get("properties", {})
    # An optional group is entered as JSON: its controls would always produce some value. A group with a value would do
    # so anyway.
    is_group = required and not is_null if value is _EMPTY else isinstance(value, dict) and value.keys() <= parts.keys()
    if is_object and is_group:
        has["fields"] = tuple(
            _field(
                one,
                f"{name}.{_escaped(inner)}",
                inner,
                known,
                required=inner in schema.get("required", ()),
                value=_EMPTY if value is _EMPTY else value.get(inner, _ABSENT),
            )
            for inner, one in parts.items()
        )
        return Field(control="group", **has)
    if value is _EMPTY:
        made = _control(schema, is_optional=is_null or (not required and schema.get("default") is None))
    else:
        made = _filled({**schema, "default": None}, value, is_optional=is_null or not isinstance(value, bool))
    made["help"] = f"{has['help']} {made.get('help', '')}".strip()
    return Field(**has | made)


def _control(schema: Mapping[str, Any], *, is_optional: bool) -> JSONObject:
    """Return the attributes of the control for a schema without properties."""
    default, items = schema.get("default"), schema.get("items")
    if options := [schema["const"]] if "const" in schema else schema.get("enum"):
        first = "" if default is None else json.dumps(default)
        texts = [_text(one) for one in options]
        data = [json.dumps(one) for one in options]
        shown = [(one, text if text and texts.count(text) == 1 else one) for one, text in zip(data, texts, strict=True)]
        return {"control": "select", "options": shown, "value": first}
    match schema.get("type"):
        case "boolean" if is_optional:
            first = "" if default is None else json.dumps(default)
            return {"control": "select", "options": [("true", "yes"), ("false", "no")], "value": first}
        case "boolean":
            return {"control": "checkbox", "value": "on" if default else ""}
        case "integer" | "number" as kind:
            limits = {"least": schema.get("minimum"), "most": schema.get("maximum")}
            return {"control": "number", "kind": "1" if kind == "integer" else "any", "value": _text(default), **limits}
        case "string" if kind := _INPUTS.get(schema.get("format", "")):
            # A schema shows a placeholder for a secret, not the secret.
            return {"control": "input", "kind": kind, "value": "" if kind == "password" else _text(default)}
        case "array" if items == {"type": "string"} and not default:
            return {"control": "lines", "help": "One per line."}
        case "string":
            return {"control": "text", "value": _text(default)}
    if {"string"} <= {str(one.get("type")) for one in schema.get("anyOf", ())} <= _SCALARS:  # such as a Decimal
        return {"control": "text", "value": _text(default)}
    return {"control": "json", "help": "As JSON.", "value": "" if default is None else json.dumps(default, indent=2)}


def _filled(schema: Mapping[str, Any], value: Any, *, is_optional: bool) -> JSONObject:
    """Return the attributes of a value's control: JSON, if another control could not show and keep all of it."""
    made = _control(schema, is_optional=is_optional)
    if made["control"] == "input":  # which a browser empties if it is invalid
        made = {"control": "text"}
    if value is _ABSENT or value is None:
        return {**made, "value": ""}
    match made["control"], value:
        case "checkbox", bool():
            return {**made, "value": "on" if value else "off"}
        case "select", _ if _data(value) in [data for data, _ in made["options"]]:
            return {**made, "value": _data(value)}
        case "number", int() | float() if not isinstance(value, bool):
            return {**made, "value": _data(value)}
        case "text", str() if _is_plain(value):
            return {**made, "value": value}
        case "lines", [*lines] if all(isinstance(one, str) and one.strip() and "\n" not in one for one in lines):
            if _is_plain(text := "\n".join(lines)):
                return {**made, "value": text}
    return {"control": "json", "help": "As JSON.", "value": visible_json(value)}


def _is_plain(text: str) -> bool:
    """Whether a text can be read and typed unchanged: nothing in it hides, or looks like a Latin letter or digit."""
    return "\r" not in text and visible(f"a {text}") == f"a {text}"


def _true_label(label: str, key: str | None) -> str:
    """Return a label with its key, unless the two differ only in spelling."""
    if key is None or label.casefold().replace("_", " ") == key.casefold().replace("_", " "):
        return label
    return f"{label} ({key})"


def _data(value: Any) -> str:
    return json.dumps(value)


def _not_null(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return a schema without its null, and whether it had one."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    is_null = len(kinds) < len(schema.get("anyOf", ()))
    if len(kinds) != 1:
        return ({**schema, "anyOf": kinds} if is_null else schema), is_null
    return {**kinds[0], **{key: value for key, value in schema.items() if key != "anyOf"}}, is_null


def _escaped(key: str) -> str:
    """Return a key as a part of a control's name and id, without dots and blanks."""
    return quote(key, safe="").replace(".", "%2E")


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(text)):
                return number
        raise InputError(f"{cut(text, 40)!r} is not a number") from None


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
