"""Makes the Slack forms for editing a call or giving a reason, and reads people's entries."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from standfast.errors import InputError
from standfast.messages import read_json
from standfast.temporal.activities.chat_messages import Decided, Mark
from standfast.temporal.activities.slack_messages import plain
from standfast.web.chat_forms import COMMENT, LONGEST, Field
from standfast.web.slack_api import Place

VALUE = "value"  # the control in each block
Values = Mapping[str, Mapping[str, Any]]  # of a form, by block


def _control(field: Field) -> dict[str, Any]:
    """Return a field as a block."""
    match field.kind:
        case "number":
            is_decimal = isinstance(field.value, float)
            element: dict[str, Any] = {"type": "number_input", "is_decimal_allowed": is_decimal}
            element["initial_value"] = field.shown
        case "choice":
            options = {one: {"text": plain(one), "value": one} for one in ("true", "false")}
            options_ = {"options": list(options.values()), "initial_option": options[field.shown]}
            element = {"type": "static_select", **options_}
        case _:
            element = {"type": "plain_text_input", "multiline": field.is_long, "max_length": LONGEST}
            if field.shown:
                element["initial_value"] = field.shown
    return {
        "type": "input",
        "block_id": field.name,
        "label": plain(field.label),
        "optional": field.kind == "text",
        "element": {**element, "action_id": VALUE},
    }


def typed_in(values: Values) -> dict[str, str]:
    """Return the entries, by block."""
    return {block: _typed(values, block) for block in values}


def _typed(values: Values, block: str) -> str:
    found = values.get(block, {}).get(VALUE, {})
    option = found.get("selected_option") or {}
    text = found.get("value") if "value" in found else option.get("value")
    return text.replace("\r\n", "\n") if isinstance(text, str) else ""


class Sent(NamedTuple):
    """The hidden contents of a form: the gate, and the message with its button."""

    mark: Mark
    place: Place
    link: str | None


def form(decision: Decided, sent: Sent, fields: list[Field]) -> dict[str, Any]:
    """Return a form that approves a call with changes, or rejects, with a comment.

    Raises:
        InputError: it cannot be made, since the name of the run or of the gate is too long.
    """
    hidden = json.dumps([sent.mark.write(), *sent.place, sent.link])
    if len(hidden) > LONGEST:
        hidden = json.dumps([sent.mark.write(), *sent.place, None])
    if len(hidden) > LONGEST:
        raise InputError("The names of this run and gate are too long for a Slack form: decide on the page")
    word = "Approve" if decision == "approve" else "Reject"
    comment = {"type": "plain_text_input", "action_id": VALUE, "multiline": True, "max_length": LONGEST}
    return {
        "type": "modal",
        "callback_id": f"standfast.{decision}",
        "title": plain("Edit and approve" if decision == "approve" else "Reject"),
        "submit": plain(word),
        "close": plain("Back"),
        "private_metadata": hidden,
        "blocks": [
            *(_control(field) for field in fields),
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
    raise InputError("This form is not from standfast")
