"""Makes the Microsoft Teams cards for editing a call or giving a reason for a rejection, and reads the entries."""

from collections.abc import Mapping, Sequence
from typing import Any

from standfast.errors import InputError
from standfast.messages import visible
from standfast.temporal.activities.chat_messages import APPROVE, REJECT, Decided, Mark
from standfast.temporal.activities.teams_messages import MOST_BYTES, card, execute, line, size_of, words
from standfast.web.chat_forms import COMMENT, LONGEST, Field, Typed

BACK = "standfast.back"
_FORM = "form"  # in the data of a button: the inputs around it are a form


def form_card(
    decision: Decided,
    mark: Mark,
    item: Mapping[str, Any],
    link: str | None,
    fields: Sequence[Field],
    typed: Typed | None = None,
    problem: str | None = None,
) -> dict[str, Any]:
    """Return a card that approves a call with changes, or rejects, with a comment.

    Only the person who requested the card sees it.

    Args:
        typed: the earlier entries, which stay.
        problem: the reason why they are invalid.

    Raises:
        InputError: Teams would not accept it.
    """
    said = typed or {}
    data = {"mark": mark.write(), _FORM: True, **({"link": link} if link else {})}
    verb, title = (APPROVE, "Approve") if decision == "approve" else (REJECT, "Reject")
    style = "positive" if decision == "approve" else "destructive"
    made = card(
        [
            *words(item["message"]),
            *(line(problem) if problem else []),
            *(_control(field, said.get(field.name, field.shown)) for field in fields),
            _text(COMMENT, "Comment", said.get(COMMENT, ""), is_long=True),
        ],
        [execute(title, verb, data, style=style), execute("Back", BACK, data, associatedInputs="none")],
    )
    if size_of(made) > MOST_BYTES:
        raise InputError("These arguments do not fit into a Teams card: edit them on the page")
    return made


def _control(field: Field, value: str) -> dict[str, Any]:
    if field.kind == "choice":
        choices = [{"title": one, "value": one} for one in ("true", "false")]
        return {"type": "Input.ChoiceSet", "id": field.name, "label": field.label, "choices": choices, "value": value}
    return _text(field.name, field.label, value, is_long=field.is_long)


def _text(name: str, label: str, value: str, *, is_long: bool) -> dict[str, Any]:
    """Return a field for a text: also for numbers, which would lose their form in a number field."""
    found = {"type": "Input.Text", "id": name, "label": label, "isMultiline": is_long, "maxLength": LONGEST}
    return found | ({"value": value} if value else {})


def typed_in(data: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the entries of the form around a button; None if the button has none."""
    if data.get(_FORM) is not True:
        return None
    texts = {name: value for name, value in data.items() if isinstance(value, str) and name not in ("mark", "link")}
    return {name: value.replace("\r\n", "\n") for name, value in texts.items()}


def link_in(data: Mapping[str, Any]) -> str | None:
    """Return the address of the run that a card has."""
    link = data.get("link")
    return link if isinstance(link, str) and link.startswith(("https://", "http://")) else None


def said_card(run: str, gate: str, said: str) -> dict[str, Any]:
    """Return a card about an item that no longer waits."""
    return card([*words(said), *line(f"Run: {visible(run)}\nGate: {visible(gate)}")], [])
