"""Writes Slack messages about waiting items, with buttons if a message shows the whole item.

Texts from models and strangers are plain or preformatted, so Slack follows no markup, link or mention in them. The
short text of a notification, which Slack interprets, is escaped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from standfast.errors import DefinitionError
from standfast.messages import JSONObject, visible
from standfast.notices.chat_messages import (
    APPROVE,
    EDIT,
    NOT_WHOLE,
    OPEN,
    REJECT,
    STILL,
    Mark,
    Shown,
    cut,
    has_form,
    head,
    left_out,
)

_SECTION = 2_900  # characters; Slack takes 3,000 in a block
_BLOCKS = 40  # of Slack's 50, for the value that is decided on
_FACT = 500  # characters
_VALUE = 2_000  # characters of a button's value
IN_DOUBT = ("fatal_error", "internal_error", "unreadable")  # after which Slack may have done what it was asked
PASSING = ("fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable", "unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackButtons:
    """Puts buttons on Slack's messages about approvals; a page with `standfast.web.SlackActions` handles them.

    Args:
        token: the bot token of a Slack app, for a webhook whose url is https://slack.com/api/chat.postMessage; None if
            the url is an incoming webhook of such an app.
        channel: the id of the channel, if there is a token.

    Raises:
        DefinitionError: only one of the two is given.
    """

    token: str | None = field(default=None, repr=False)
    channel: str | None = None

    def __post_init__(self) -> None:
        if (self.token is None) != (self.channel is None):
            raise DefinitionError("slack_buttons: token and channel go together; an incoming webhook needs neither")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise DefinitionError("slack_buttons.token must be a bot token, such as 'xoxb-…'")


def waiting_message(data: Mapping[str, Any], link: str | None, decide: str | None) -> JSONObject:
    """Return a message about any waiting item, without buttons."""
    run, first = mrkdwn(data["workflow_id"]), _cut(escaped(head(data)))
    fields = {
        "Run": f"<{link}|{run}>" if link else run,
        "Name": mrkdwn(cut(data["name"], _FACT)),
        "Tool": mrkdwn(data.get("tool") or ""),
        "Approvers": mrkdwn(cut(", ".join(data.get("approvers") or ()), _FACT)),
        "Until": mrkdwn(data.get("deadline") or ""),
        "Decide": f"<{decide}|approve or reject>" if decide else "",
        "Shown": left_out(data),
        # Last, since the end may be cut.
        "Arguments": mrkdwn(json.dumps(data["arguments"], ensure_ascii=False)) if "arguments" in data else "",
    }
    lines = [f"*{name}:* {value}" for name, value in fields.items() if value]
    return {
        "text": first,
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*{first}*"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": _cut("\n".join(lines))}},
        ],
    }


def approval_message(run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> JSONObject:
    """Return a message about an approval, with buttons; `said` is a line about a decision that was already sent."""
    drawn = draw(run, item)
    again = [line(STILL)] if item.get("reminder") else []
    blocks = [*again, *drawn.blocks, *([line(said)] if said else [])]
    if not drawn.is_whole:
        blocks.append(line(NOT_WHOLE))
    if buttons := _buttons(run, item, link, drawn.is_whole):
        blocks.append({"type": "actions", "elements": buttons})
    return message(escaped(head(item)), blocks)


def closed_message(blocks: Sequence[JSONObject], said: str) -> JSONObject:
    """Return a message without buttons, with a line about the decision."""
    left = [block for block in blocks if block.get("type") != "actions"]
    return message(escaped(said), [*left, line(said)])


def message(text: str, blocks: list[JSONObject]) -> JSONObject:
    """Return a message of these blocks; `text`, which must be escaped, is for notifications."""
    return {"text": _cut(text), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _buttons(run: str, item: Mapping[str, Any], link: str | None, is_whole: bool) -> list[JSONObject]:
    mark, found = Mark.of(run, item).write(), list[JSONObject]()
    if len(mark) <= _VALUE:
        if is_whole:
            found.append({"action_id": APPROVE, "text": plain("Approve"), "value": mark, "style": "primary"})
        if is_whole and has_form(item):
            found.append({"action_id": EDIT, "text": plain("Edit…"), "value": mark})
        found.append({"action_id": REJECT, "text": plain("Reject"), "value": mark, "style": "danger"})
    if link is not None and len(link) <= _SECTION:
        found.append({"action_id": OPEN, "text": plain("Open"), "url": link})
    return [{"type": "button", **one} for one in found]


class Drawn(NamedTuple):
    """The blocks that show an approval, and whether they show the whole request."""

    blocks: list[JSONObject]
    is_whole: bool


def draw(run: str, item: Mapping[str, Any]) -> Drawn:
    """Return an approval as blocks."""
    shown = Shown.of(run, item)
    first, *rest = ([_block(part.kind, text) for text in _pieces(part.text)] for part in shown.parts)
    facts = {"type": "section", "fields": [plain(f"{name}: {value}") for name, value in shown.facts.items()]}
    blocks = [*first, facts, *(block for blocks in rest for block in blocks)]
    if len(blocks) <= _BLOCKS:
        return Drawn(blocks, shown.is_whole)
    more = len(blocks) - _BLOCKS + 1
    return Drawn([*blocks[: _BLOCKS - 1], line(f"… and {more} more parts, not shown here")], is_whole=False)


def _block(kind: str, text: str) -> JSONObject:
    if kind == "words":
        return {"type": "section", "text": plain(text)}
    element = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [element]}


def _pieces(text: str) -> list[str]:
    """Return a text in pieces that fit into a block."""
    size = _SECTION if max(text, default="") <= "\uffff" else _SECTION // 2  # Slack counts some characters twice
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [piece if piece.strip() else repr(piece) for piece in pieces or [""]]


def _cut(text: str) -> str:
    """Return an escaped text that fits into a block."""
    return cut(text, _SECTION - 40)


def plain(text: str) -> JSONObject:
    """Return a Slack text in which nothing is markup, a mention or an emoji."""
    return {"type": "plain_text", "text": text, "emoji": False}


def line(text: str) -> JSONObject:
    """Return a block with a line about a message."""
    return {"type": "context", "elements": [plain(cut(visible(text), _SECTION // 2))]}


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mrkdwn(text: str) -> str:
    """Escape text that Slack would interpret: a link, or a mention of everybody in the channel."""
    return escaped(visible(text))


def slack_problem(answer: bytes) -> str | None:
    """Return the error in an answer of Slack's API, whose status is 200 even for errors; None if there is none."""
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
