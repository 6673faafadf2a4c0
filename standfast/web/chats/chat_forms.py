"""Makes the fields for editing a call in a chat, and reads people's entries.

A value has a separate field if the chat has one that shows all of it; everything else is entered as JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from standfast.errors import InputError
from standfast.messages import cut, read_json, visible, visible_json
from standfast.web.page.forms import read_once

COMMENT = "comment"  # the name of the field for a comment
LONGEST = 3_000  # characters of a field
_FIELDS = 40
_ONE_LINE = 80  # characters
_LABEL = 1_500  # bytes
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
Kind = Literal["text", "number", "choice", "json"]
Typed = Mapping[str, str]  # the entries of a form, by the names of its fields


class FormError(InputError):
    """An entry is invalid; `field` names it."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Field:
    """A control of a form for one argument of a call."""

    name: str
    key: str
    kind: Kind
    value: Any
    shown: str

    @property
    def label(self) -> str:
        label = cut(visible(self.key), _LABEL) or '""'
        return f"{label} (JSON)" if self.kind == "json" else label

    @property
    def is_long(self) -> bool:
        return self.kind == "json" or "\n" in self.shown or len(self.shown) > _ONE_LINE

    def read(self, form: Typed) -> Any:
        """Return the entered value.

        Raises:
            FormError: it is not such a value.
        """
        typed = form.get(self.name, "")
        if typed == self.shown:
            return self.value
        try:
            match self.kind:
                case "text":
                    return typed
                case "number" | "choice":
                    return _number(typed) if self.kind == "number" else typed == "true"
                case "json":
                    return read_once(typed)
        except InputError as error:
            raise FormError(self.name, f"{error}. Nothing was approved.") from error


def fields_of(arguments: Any, chat: str) -> list[Field]:
    """Return the fields for the arguments of a call.

    Raises:
        InputError: there are too many, or one is too long for a form of the chat.
    """
    if not isinstance(arguments, dict) or not 0 < len(arguments) <= _FIELDS:
        raise InputError(f"These arguments do not fit into a {chat} form: edit them on the page")
    fields = [_field(f"field-{at}", key, value) for at, (key, value) in enumerate(arguments.items())]
    if long := [field.key for field in fields if len(field.shown) > LONGEST]:
        raise InputError(f"{cut(visible(long[0]), 80)} is too long for a {chat} form: edit it on the page")
    return fields


def _field(name: str, key: str, value: Any) -> Field:
    match value:
        case bool():
            return Field(name, key, "choice", value, json.dumps(value))
        case int() | float() if _PLAIN_NUMBER.fullmatch(text := json.dumps(value)):
            return Field(name, key, "number", value, text)
        case str() if visible(value) == value and value == value.strip():  # otherwise a field would hide a part of it
            return Field(name, key, "text", value, value)
    return Field(name, key, "json", value, visible_json(value))


def _number(text: str) -> int | float:
    value = read_json(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{cut(text, 40)!r} is not a number")
    return value
