"""Writes Slack's messages of what waits, with buttons where people may decide on what a message shows whole.

Words of models and strangers are plain or preformatted text, in which Slack follows no mark, link or mention; the short
text of a notification, which Slack interprets, is escaped.
"""

import base64
import binascii
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from standfast.errors import DefinitionError, InputError
from standfast.messages import read_json, visible, visible_json

APPROVE, EDIT, REJECT, OPEN = (f"standfast.{name}" for name in ("approve", "edit", "reject", "open"))
_MOST = 9_000  # characters of what is decided on: with each press, Slack sends the message back
_SECTION = 2_900  # characters; Slack takes 3,000 in a block
_BLOCKS = 40  # of Slack's 50, for what is decided on
_FACT = 500  # characters
_MOST_LINES = 1_000  # of a difference; far more than fit, and few enough to be compared at once
_VALUE = 2_000  # characters of a button's value
PASSING = ("fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable", "unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackButtons:
    """Puts buttons on Slack's messages about approvals; a page with `standfast.web.SlackActions` obeys them.

    Args:
        token: the bot token of a Slack app, for a webhook whose url is https://slack.com/api/chat.postMessage; None if
            the url is an incoming webhook of such an app.
        channel: the id of the channel, if there is a token.

    Raises:
        DefinitionError: one of both is missing.
    """

    token: str | None = field(default=None, repr=False)
    channel: str | None = None

    def __post_init__(self) -> None:
        if (self.token is None) != (self.channel is None):
            raise DefinitionError("slack_buttons: token and channel go together; an incoming webhook needs neither")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise DefinitionError("slack_buttons.token must be a bot token, such as 'xoxb-…'")


class Mark(NamedTuple):
    """The gate that a button decides at, what it shows, and since when."""

    workflow_id: str
    gate: str
    since: str
    digest: str

    def is_for(self, item: Mapping[str, Any]) -> bool:
        """Whether the button was made for this item, and not for an earlier or later question of the gate."""
        asked = (item["kind"], item["name"], item.get("since"), item.get("digest"))
        return asked == ("approval", self.gate, self.since, self.digest)

    def write(self) -> str:
        """Return it as text without characters that Slack escapes."""
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode()

    @classmethod
    def read(cls, text: str) -> "Mark":
        """Return what `write` wrote.

        Raises:
            InputError: it wrote another text.
        """
        try:
            found = read_json(base64.urlsafe_b64decode(text.encode()).decode())
        except (binascii.Error, UnicodeError, InputError) as error:
            raise InputError("This button is none of ours") from error
        match found:
            case [str(workflow_id), str(gate), str(since), str(digest)]:
                return cls(workflow_id, gate, since, digest)
        raise InputError("This button is none of ours")


def waiting_message(data: Mapping[str, Any], link: str | None, decide: str | None) -> dict[str, Any]:
    """Return a message about anything that waits, without buttons."""
    run, head = mrkdwn(data["workflow_id"]), _head(data)
    fields = {
        "Run": f"<{link}|{run}>" if link else run,
        "Name": mrkdwn(data["name"]),
        "Tool": mrkdwn(data.get("tool") or ""),
        "Arguments": mrkdwn(json.dumps(data["arguments"], ensure_ascii=False)) if "arguments" in data else "",
        "Approvers": mrkdwn(", ".join(data.get("approvers") or ())),
        "Until": mrkdwn(data.get("deadline") or ""),
        "Decide": f"<{decide}|approve or reject>" if decide else "",
    }
    lines = [f"*{name}:* {value}" for name, value in fields.items() if value]
    return {
        "text": head[:_SECTION],
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*{head[:_SECTION]}*"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": "\n".join(lines)[:_SECTION]}},
        ],
    }


def approval_message(run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> dict[str, Any]:
    """Return a message about an approval, with buttons; `said` is a line about a decision that was sent already."""
    drawn = draw(run, item)
    again = [line("Still waiting")] if item.get("reminder") else []
    blocks = [*again, *drawn.blocks, *([line(said)] if said else [])]
    if not drawn.is_whole:
        blocks.append(line("It cannot be approved from here, since this message does not show all of it."))
    if buttons := _buttons(run, item, link, drawn.is_whole):
        blocks.append({"type": "actions", "elements": buttons})
    return message(_head(item), blocks)


def message(text: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message of these blocks; `text`, which is escaped, is for notifications."""
    return {"text": text[:_SECTION], "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _head(data: Mapping[str, Any]) -> str:
    return f"{'Still waiting' if data.get('reminder') else 'Waiting'} for {data['kind']}: {mrkdwn(data['message'])}"


def _buttons(run: str, item: Mapping[str, Any], link: str | None, is_whole: bool) -> list[dict[str, Any]]:
    mark, found = Mark(run, item["name"], item["since"], item["digest"]).write(), list[dict[str, Any]]()
    if len(mark) <= _VALUE:
        if is_whole:
            found.append({"action_id": APPROVE, "text": plain("Approve"), "value": mark, "style": "primary"})
        if is_whole and isinstance(item.get("arguments"), dict) and item["arguments"]:
            found.append({"action_id": EDIT, "text": plain("Edit…"), "value": mark})
        found.append({"action_id": REJECT, "text": plain("Reject"), "value": mark, "style": "danger"})
    if link is not None and len(link) <= _SECTION:
        found.append({"action_id": OPEN, "text": plain("Open"), "url": link})
    return [{"type": "button", **one} for one in found]


class Drawn(NamedTuple):
    """The blocks that show an approval, and whether they show all that it asks about."""

    blocks: list[dict[str, Any]]
    is_whole: bool


def draw(run: str, item: Mapping[str, Any]) -> Drawn:
    """Return an approval as blocks."""
    drawing = _Drawing()
    drawing.texts(item["message"])
    facts = {
        "Run": run,
        "Gate": item["name"],
        "Tool": item.get("tool"),
        "For": ", ".join(item.get("approvers") or ()) or "anybody who may approve",
        "Approved by": f"{', '.join(item['approved_by']) or 'nobody'} of {item['quorum']}"
        if "quorum" in item
        else None,
        "Until": f"{item['deadline']}{', then ' + item['then'] if 'then' in item else ''}"
        if "deadline" in item
        else None,
    }
    shown = [plain(f"{name}: {_cut(visible(value), _FACT)}") for name, value in facts.items() if value]
    drawing.blocks.append({"type": "section", "fields": shown})
    if "tool" in item:
        drawing.code("Arguments", item["arguments"] if "reference" in item else visible_json(item["arguments"]))
    for one in item.get("shown", ()):
        drawing.value(one)
    return Drawn(drawing.blocks, drawing.is_whole and "reference" not in item)


class _Drawing:
    """Blocks as they are added, until there is no room for more."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.is_whole, self._left = True, _MOST

    def texts(self, text: str) -> None:
        for part in self._parts(text):
            self._add({"type": "section", "text": plain(part)})

    def code(self, label: str, text: str) -> None:
        if label:
            self.texts(label)
        for part in self._parts(text):
            element = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": part}]}
            self._add({"type": "rich_text", "elements": [element]})

    def value(self, shown: Mapping[str, Any]) -> None:
        """Add a value that a gate shows."""
        label = shown.get("label", "")
        match shown["kind"]:
            case "text" | "markdown":
                self.code(label, shown["text"])
            case "json":
                self.code(label, visible_json(shown["value"]))
            case "table":
                rows = [shown["columns"], *shown["rows"]] if shown["columns"] else shown["rows"]
                self.code(label, "\n".join(visible_json(row, indent=None) for row in rows))
            case "diff":
                before, after = shown["before"].split("\n"), shown["after"].split("\n")
                if len(before) + len(after) > _MOST_LINES:
                    self._leave(f"{label}: a long difference")
                else:
                    lines = difflib.ndiff(before, after)
                    self.code(label, "\n".join(one for one in lines if not one.startswith("? ")))
            case kind:
                self._leave(f"{label}: {'an image' if kind == 'image' else 'it is too large'}")

    def _leave(self, what: str) -> None:
        self.texts(f"{what}, which is not shown here")
        self.is_whole = False

    def _parts(self, text: str) -> list[str]:
        """Return a text in parts that fit into a block, as far as there is room."""
        text = visible(text)
        if len(text) > self._left:
            self.is_whole = False
            text = _cut(text, self._left)
        self._left = max(0, self._left - len(text))
        size = _SECTION if max(text, default="") <= "\uffff" else _SECTION // 2  # Slack counts some signs twice
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        return [part if part.strip() else repr(part) for part in parts or [""]]

    def _add(self, block: dict[str, Any]) -> None:
        if len(self.blocks) >= _BLOCKS:
            self.is_whole = False
        else:
            self.blocks.append(block)


def plain(text: str) -> dict[str, Any]:
    """Return a text of Slack in which nothing is a mark, a mention or an emoji."""
    return {"type": "plain_text", "text": text, "emoji": False}


def line(text: str) -> dict[str, Any]:
    """Return a block with a line about a message."""
    return {"type": "context", "elements": [plain(_cut(visible(text), _SECTION // 2))]}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… [{len(text) - most:,} more characters]"


def mrkdwn(text: str) -> str:
    """Escape text that Slack would interpret: a link, or a call of everybody in the channel."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_problem(answer: bytes) -> str | None:
    """Return the error in an answer of Slack's API, which has the status 200 even so; None if there is none."""
    try:
        found = json.loads(answer)
    except ValueError:
        return "unreadable"
    is_object = isinstance(found, dict)
    return (
        None if is_object and found.get("ok") is True else visible(str(found.get("error") if is_object else found))[:80]
    )


def is_slack_api(url: str) -> bool:
    """Whether an address is a method of Slack's API, which needs a token."""
    return urlsplit(url).path.endswith("/chat.postMessage")
