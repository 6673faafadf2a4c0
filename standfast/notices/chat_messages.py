"""Writes the chat-independent texts of an approval: the request, the data of its buttons, and the decision.

Slack and Teams render the same parts in their own formats. A message has a button to approve only if it shows the whole
request.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from standfast.errors import InputError
from standfast.messages import distinct_people, line_difference, read_json, visible, visible_json, waiting_edit_in_words
from standfast.stores.protocol import DecisionRecord

Decided = Literal["approve", "reject"]
DECIDED: dict[str, str] = {"approve": "Approved", "reject": "Rejected"}
APPROVE, EDIT, REJECT, OPEN = (f"standfast.{name}" for name in ("approve", "edit", "reject", "open"))
NOT_WHOLE = "It cannot be approved from here, since this message does not show all of it."
STILL = "Still waiting"
OVER = "This is no longer waiting"
MOST = 9_000  # characters of the value that is decided on
_FACT = 500  # characters
_TYPED = 1_000  # characters of a comment or an edit that a message shows


class Mark(NamedTuple):
    """The gate that a button decides on, the value it shows, and its start."""

    workflow_id: str
    gate: str
    since: str
    digest: str

    @classmethod
    def of(cls, workflow_id: str, item: Mapping[str, Any]) -> "Mark":
        return cls(workflow_id, item["name"], item["since"], item["digest"])

    def is_for(self, item: Mapping[str, Any]) -> bool:
        """Whether the button was made for this item, and not for an earlier or later question of the gate."""
        asked = (item["kind"], item["name"], item.get("since"), item.get("digest"))
        return asked == ("approval", self.gate, self.since, self.digest)

    def write(self) -> str:
        """Return the mark as text without characters that a chat escapes."""
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode()

    @classmethod
    def read(cls, text: str) -> "Mark":
        """Return the mark that `write` wrote.

        Raises:
            InputError: the text is not from `write`.
        """
        try:
            found = read_json(base64.urlsafe_b64decode(text.encode()).decode())
        except (binascii.Error, UnicodeError, InputError) as error:
            raise InputError("This button is not from standfast") from error
        match found:
            case [str(workflow_id), str(gate), str(since), str(digest)]:
                return cls(workflow_id, gate, since, digest)
        raise InputError("This button is not from standfast")


class Part(NamedTuple):
    """A text of a message: words, or a value in which every character counts."""

    kind: Literal["words", "value"]
    text: str


@dataclass(slots=True)
class Shown:
    """The parts of a message about an approval.

    Args:
        left: the characters that still fit.
        is_whole: the parts show the whole value that is decided on.
        facts: further information for the reader, by name; it comes after the first part.
    """

    left: int
    parts: list[Part] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    is_whole: bool = True

    def words(self, text: str) -> None:
        self._add("words", text)

    def value(self, label: str, text: str) -> None:
        if label:
            self.words(label)
        self._add("value", text)

    def _add(self, kind: Literal["words", "value"], text: str) -> None:
        shown = visible(text[: 2 * self.left + 1])  # the part beyond this cannot fit: at most two characters become one
        if (more := len(shown) - self.left + max(0, len(text) - 2 * self.left - 1)) > 0:
            self.is_whole = False
            shown = f"{shown[: self.left]}… [{more:,} more characters]"
        self.left = max(0, self.left - len(shown))
        self.parts.append(Part(kind, shown))

    def leave(self, what: str) -> None:
        """Note that a part is not shown."""
        self.words(f"{what}, which is not shown here")
        self.is_whole = False

    def _value(self, shown: Mapping[str, Any]) -> None:
        """Add a value that a gate shows."""
        label = shown.get("label", "")
        match shown["kind"]:
            case "text" | "markdown":
                self.value(label, shown["text"])
            case "json":
                self.value(label, visible_json(shown["value"]))
            case "table":
                rows = [shown["columns"], *shown["rows"]] if shown["columns"] else shown["rows"]
                self.value(label, "\n".join(visible_json(row, indent=None) for row in rows))
            case "diff":
                if max(len(shown["before"]), len(shown["after"])) > self.left:
                    self.leave(f"{label}: a long difference")
                else:
                    self.value(label, "\n".join(line_difference(shown["before"], shown["after"])))
            case kind:
                self.leave(f"{label}: {'an image' if kind == 'image' else 'it is too large'}")

    @classmethod
    def of(cls, run: str, item: Mapping[str, Any], most: int = MOST) -> "Shown":
        """Return an approval in at most this many characters."""
        found = cls(most)
        found.words(item["message"])
        facts = {
            "Run": run,
            "Gate": item["name"],
            "Tool": item.get("tool"),
            "Edited": waiting_edit_in_words(item["edited_by"], item.get("changes")) if "edited_by" in item else None,
            "For": ", ".join(item.get("approvers") or ()) or "anyone who may approve",
            "Approved by": f"{', '.join(item['approved_by']) or 'none'} of {item['quorum']}"
            if "quorum" in item
            else None,
            "Until": f"{item['deadline']}{', then ' + item['then'] if 'then' in item else ''}"
            if "deadline" in item
            else None,
        }
        found.facts = {name: cut(visible(value), _FACT) for name, value in facts.items() if value}
        if "tool" in item:
            has_all = "reference" not in item
            found.value("Arguments", visible_json(item["arguments"]) if has_all else item["arguments"])
            found.is_whole = found.is_whole and has_all
        for one in item.get("shown", ()):
            found._value(one)
        return found


def left_out(item: Mapping[str, Any]) -> str:
    """Return a line on the values of a gate, which a message without buttons does not show; "" if it has none."""
    count = len(item.get("shown") or ())
    return f"{count} {'value' if count == 1 else 'values'}, not shown here: see the page or `standfast pending`" * (
        count > 0
    )


def has_form(item: Mapping[str, Any]) -> bool:
    """Whether there are arguments to edit."""
    return isinstance(item.get("arguments"), dict) and bool(item["arguments"])


def head(item: Mapping[str, Any]) -> str:
    """Return a line about the waiting item, for notifications; some chats interpret it, so each escapes it."""
    return f"{STILL if item.get('reminder') else 'Waiting'} for {item['kind']}: {visible(item['message'])}"


def progress(item: Mapping[str, Any], typed: str = "") -> str:
    """Return who has approved so far, as text, while further approvals are needed."""
    approved = item.get("approved_by") or ()
    return f"Approved by {', '.join(approved)}, {len(approved)} of {item['quorum']}{typed}"


def passed_on(by: str, typed: str = "") -> str:
    """Return the text of a message whose item was edited, so that other people must approve the edit."""
    return f"Edited by {by}. Other people must approve the edit, in another message{typed}"


def counted(rows: Sequence[DecisionRecord], mark: Mark) -> list[DecisionRecord]:
    """Return the audit entries that counted at a gate since it opened."""
    since = datetime.fromisoformat(mark.since)
    return [
        row
        for row in rows
        if (row.gate, row.refused) == (mark.gate, None) and row.decision in DECIDED and row.at >= since
    ]


def outcome(rows: Sequence[DecisionRecord], mark: Mark) -> str:
    """Return the outcome of a gate as text, as far as the run's audit trail has it."""
    if not (found := counted(rows, mark)):
        return OVER
    last = found[-1]
    edits = [place for place, row in enumerate(found) if row.edit is not None]
    found = found[edits[-1] if edits else 0 :]  # an edit voids earlier approvals
    same = [row for row in found if row.decision == last.decision]
    by = ", ".join(distinct_people(row.by for row in same)) or "somebody"
    typed = "".join(said_with(row.edit, row.comment) for row in same)
    return f"{OVER}: {DECIDED[last.decision]} by {by}, {at(last.at)}{typed}"


def said_with(edit: Any, comment: str | None) -> str:
    """Return a person's edit and comment, as far as a message shows them."""
    changed = "" if edit is None else f"\nInstead with: {_short(visible_json(edit, indent=None))}"
    return changed + ("" if comment is None else f"\nComment: {_short(visible(comment))}")


def _short(text: str) -> str:
    return text if len(text) <= _TYPED else f"{text[:_TYPED]}… [{len(text) - _TYPED:,} more characters on the page]"


def at(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… [{len(text) - most:,} more characters]"
