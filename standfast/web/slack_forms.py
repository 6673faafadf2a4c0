"""Makes the forms that people fill in in Slack, to edit a call or to say why, and reads what they have typed.

A value has a field of its own if Slack has one that shows all of it; everything else is typed as JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from standfast.errors import InputError
from standfast.messages import cut, read_json, visible, visible_json
from standfast.temporal.activities.slack_messages import Mark, plain
from standfast.web.forms import read_once
from standfast.web.slack_api import Place

COMMENT = "comment"  # the block of the comment
VALUE = "value"  # the control in each block
_FIELDS = 40
_LONGEST = 3_000  # characters of a field, and of a form's metadata
_ONE_LINE = 80  # characters
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
Kind = Literal["text", "number", "choice", "json"]
Values = Mapping[str, Mapping[str, Any]]  # of a form, by block


class FormError(InputError):
    """Something that was typed cannot be used; `block` is where."""

    def __init__(self, block: str, why: str) -> None:
        self.block = block
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Field:
    """A control of a form for one argument of a call."""

    block: str
    key: str
    kind: Kind
    value: Any
    shown: str

    def control(self) -> dict[str, Any]:
        """Return it as a block of Slack."""
        match self.kind:
            case "number":
                element: dict[str, Any] = {
                    "type": "number_input",
                    "is_decimal_allowed": isinstance(self.value, float),
                    "initial_value": self.shown,
                }
            case "choice":
                options = {one: {"text": plain(one), "value": one} for one in ("true", "false")}
                options_ = {"options": list(options.values()), "initial_option": options[self.shown]}
                element = {"type": "static_select", **options_}
            case kind:
                is_long = kind == "json" or "\n" in self.shown or len(self.shown) > _ONE_LINE
                element = {"type": "plain_text_input", "multiline": is_long, "max_length": _LONGEST}
                if self.shown:
                    element["initial_value"] = self.shown
        label = cut(visible(self.key), 1_500) or '""'
        return {
            "type": "input",
            "block_id": self.block,
            "label": plain(f"{label} (JSON)" if self.kind == "json" else label),
            "optional": self.kind == "text",
            "element": {**element, "action_id": VALUE},
        }

    def read(self, values: Values) -> Any:
        """Return the value that was typed.

        Raises:
            FormError: it is not such a value.
        """
        typed = _typed(values, self.block)
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
            raise FormError(self.block, f"{error}. Nothing was approved.") from error


def fields_of(arguments: Any) -> list[Field]:
    """Return the fields for the arguments of a call.

    Raises:
        InputError: there are too many, or one is too long for Slack.
    """
    if not isinstance(arguments, dict) or not 0 < len(arguments) <= _FIELDS:
        raise InputError("These arguments do not fit into a form of Slack: edit them on the page")
    fields = [_field(f"field-{at}", key, value) for at, (key, value) in enumerate(arguments.items())]
    if long := [field.key for field in fields if len(field.shown) > _LONGEST]:
        raise InputError(f"{cut(visible(long[0]), 80)} is too long for a form of Slack: edit it on the page")
    return fields


def _field(block: str, key: str, value: Any) -> Field:
    match value:
        case bool():
            return Field(block, key, "choice", value, json.dumps(value))
        case int() | float() if _PLAIN_NUMBER.fullmatch(text := json.dumps(value)):
            return Field(block, key, "number", value, text)
        case str() if visible(value) == value and value == value.strip():  # else a field would hide a part of it
            return Field(block, key, "text", value, value)
    return Field(block, key, "json", value, visible_json(value))


def _typed(values: Values, block: str) -> str:
    found = values.get(block, {}).get(VALUE, {})
    option = found.get("selected_option") or {}
    text = found.get("value") if "value" in found else option.get("value")
    return text.replace("\r\n", "\n") if isinstance(text, str) else ""


def _number(text: str) -> int | float:
    value = read_json(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{cut(text, 40)!r} is not a number")
    return value


def comment_of(values: Values) -> str | None:
    """Return the comment that was typed."""
    return _typed(values, COMMENT).strip() or None


class Sent(NamedTuple):
    """The contents of a form that nobody sees: what it decides at, and the message with its button."""

    mark: Mark
    place: Place
    link: str | None


def form(decision: Literal["approve", "reject"], sent: Sent, fields: list[Field]) -> dict[str, Any]:
    """Return a form that approves a call with changes, or rejects, with a comment.

    Raises:
        InputError: it cannot be made, since the name of the run or of the gate is too long.
    """
    hidden = json.dumps([sent.mark.write(), *sent.place, sent.link])
    if len(hidden) > _LONGEST:
        hidden = json.dumps([sent.mark.write(), *sent.place, None])
    if len(hidden) > _LONGEST:
        raise InputError("The names of this run and gate are too long for a form of Slack: decide on the page")
    word = "Approve" if decision == "approve" else "Reject"
    comment = {"type": "plain_text_input", "action_id": VALUE, "multiline": True, "max_length": _LONGEST}
    return {
        "type": "modal",
        "callback_id": f"standfast.{decision}",
        "title": plain("Edit and approve" if decision == "approve" else "Reject"),
        "submit": plain(word),
        "close": plain("Back"),
        "private_metadata": hidden,
        "blocks": [
            *(field.control() for field in fields),
            {"type": "input", "block_id": COMMENT, "label": plain("Comment"), "optional": True, "element": comment},
        ],
    }


def read_sent(hidden: str) -> Sent:
    """Return the hidden contents of a form.

    Raises:
        InputError: `form` has not written them.
    """
    match read_json(hidden):
        case [str(mark), str(user), str(channel), str(message), str() | None as answer_to, str() | None as link]:
            return Sent(Mark.read(mark), Place(user, channel, message, answer_to), link)
    raise InputError("This form is none of ours")
