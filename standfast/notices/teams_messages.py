"""Writes Adaptive Cards for Microsoft Teams about waiting items, with buttons if a card shows the whole item.

Texts from models and strangers are text runs, in which Teams follows no Markdown, link or mention. A card that Teams
might reject is shortened, and then has no button to approve.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from standfast.errors import DefinitionError
from standfast.messages import JSONObject, visible
from standfast.notices.chat_messages import (
    APPROVE,
    EDIT,
    MOST,
    NOT_WHOLE,
    REJECT,
    STILL,
    Mark,
    Shown,
    cut,
    has_form,
    head,
    left_out,
)

GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
MOST_BYTES = 28_000  # of a card, as JSON
_LINK = 2_000  # characters
_SUMMARY = 200  # characters of a notification
_SAID = 3_000  # characters of a line about a decision
_BLANKS = re.compile(r"^ |  +", re.MULTILINE)
_MONOSPACED = {"fontType": "Monospace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamsButtons:
    """Puts buttons on cards about approvals, by a Teams bot; a page with `standfast.web.TeamsActions` handles them.

    The webhook's url is the URL of the bot's conversation:
    https://smba.trafficmanager.net/teams/v3/conversations/19:…@thread.tacv2/activities.

    Args:
        app_id: the id of the bot's app registration in Microsoft Entra.
        app_secret: a client secret of this registration.
        tenant_id: the directory of the app and of the people.
        login: the address from which the bot gets its tokens.

    Raises:
        DefinitionError: naming the argument and the rule.
    """

    app_id: str
    app_secret: str = field(repr=False)
    tenant_id: str
    login: str = "https://login.microsoftonline.com"

    def __post_init__(self) -> None:
        check_ids("teams_buttons", app_id=self.app_id, tenant_id=self.tenant_id)
        if not (self.app_secret and self.app_secret.isascii() and self.app_secret.isprintable()):
            raise DefinitionError("teams_buttons.app_secret must be the value of a client secret")
        check_https("teams_buttons.login", self.login)


def check_ids(what: str, **ids: str) -> None:
    """Raise DefinitionError for a value that is not a GUID."""
    for name, value in ids.items():
        if not isinstance(value, str) or not GUID.fullmatch(value):
            raise DefinitionError(
                f"{what}.{name} must be an id such as '00000000-0000-0000-0000-000000000000', got {value!r:.80}"
            )


def check_https(what: str, url: str) -> None:
    """Raise DefinitionError for an address that is neither https nor on this machine."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or parts.scheme not in (("http", "https") if is_local else ("https",)):
        raise DefinitionError(f"{what} must be an https address, got {url!r:.80}")


def is_conversation(url: str) -> bool:
    """Whether an address belongs to a bot's conversation, which accepts cards with buttons."""
    path = urlsplit(url).path
    return "/v3/conversations/" in path and path.endswith("/activities")


def waiting_card(data: Mapping[str, Any], link: str | None, decide: str | None) -> JSONObject:
    """Return a card about any waiting item, without buttons that decide."""
    facts = {
        "Run": data["workflow_id"],
        "Name": data["name"],
        "Tool": data.get("tool") or "",
        "Arguments": cut(json.dumps(data["arguments"], ensure_ascii=False), MOST // 3) if "arguments" in data else "",
        "Approvers": ", ".join(data.get("approvers") or ()),
        "Until": data.get("deadline") or "",
        "Shown": left_out(data),
    }
    first = [*_lines(cut(head(data), MOST // 3), {"weight": "Bolder"})]
    body = [*first, *_facts({name: visible(value) for name, value in facts.items() if value})]
    return card(body, [*_open(link), *_open(decide, "Approve or reject")])


class Drawn(NamedTuple):
    """The elements that show an approval, and whether they show the whole request."""

    body: list[JSONObject]
    is_whole: bool


def approval_card(run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> JSONObject:
    """Return a card about an approval, with buttons; `said` is a line about a decision that was already sent."""
    return _fitting(run, item, lambda drawn: _asking(run, item, drawn, link, said))


def closed_card(run: str, item: Mapping[str, Any], link: str | None, said: str) -> JSONObject:
    """Return a card without buttons, with a line about the decision."""
    return _fitting(run, item, lambda drawn: card([*drawn.body, *line(said)], _open(link)))


def is_whole(run: str, item: Mapping[str, Any]) -> bool:
    """Whether a card shows all of an approval."""
    return any(action.get("verb") == APPROVE for action in approval_card(run, item, None)["actions"])


def _fitting(run: str, item: Mapping[str, Any], make: Any) -> JSONObject:
    """Return a card that Teams accepts: it gets fewer and fewer characters of the value until it is small enough."""
    most, shown = MOST, Shown.of(run, item)
    made: JSONObject = make(_draw(shown, is_shortened=False))
    while most and size_of(made) > MOST_BYTES:
        most //= 2
        made = make(_draw(Shown.of(run, item, most), is_shortened=True))
    return made


def size_of(made: Mapping[str, Any]) -> int:
    return len(json.dumps(made, ensure_ascii=False).encode())


def _draw(shown: Shown, *, is_shortened: bool) -> Drawn:
    first, *rest = ([*_lines(part.text, _MONOSPACED if part.kind == "value" else {})] for part in shown.parts)
    facts = _facts(shown.facts)
    return Drawn([*first, *facts, *(one for lines in rest for one in lines)], shown.is_whole and not is_shortened)


def _asking(run: str, item: Mapping[str, Any], drawn: Drawn, link: str | None, said: str | None) -> JSONObject:
    again = line(STILL) if item.get("reminder") else []
    body = [*again, *drawn.body, *(line(said) if said else []), *([] if drawn.is_whole else line(NOT_WHOLE))]
    mark = Mark.of(run, item).write()
    data, actions = {"mark": mark, **({"link": link} if link else {})}, list[JSONObject]()
    if drawn.is_whole:
        actions.append(execute("Approve", APPROVE, data, style="positive"))
    if drawn.is_whole and has_form(item):
        actions.append(execute("Edit…", EDIT, data))
    actions.append(execute("Reject…", REJECT, data, style="destructive"))
    return card(body, [*actions, *_open(link)])


def card(body: Sequence[JSONObject], actions: Sequence[JSONObject]) -> JSONObject:
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.5",
        "msteams": {"width": "Full"},
        "body": [*body],
        "actions": [*actions],
    }


def message(made: Mapping[str, Any], summary: str) -> JSONObject:
    """Return an activity, or the body of a Workflows webhook, with one card; `summary` is for notifications."""
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": made}
    return {"type": "message", "summary": visible(summary)[:_SUMMARY], "attachments": [attachment]}


def execute(title: str, verb: str, data: Mapping[str, Any], **more: Any) -> JSONObject:
    """Return a button that the page handles."""
    return {"type": "Action.Execute", "title": title, "verb": verb, "data": dict(data), **more}


def _open(link: str | None, title: str = "Open") -> list[JSONObject]:
    if link is None or len(link) > _LINK:
        return []
    return [{"type": "Action.OpenUrl", "title": title, "url": link}]


def line(text: str) -> list[JSONObject]:
    """Return elements with a remark about a message."""
    return [*_lines(visible(cut(text, _SAID)), {"isSubtle": True})]


def words(text: str) -> list[JSONObject]:
    """Return elements with a text."""
    return [*_lines(visible(text), {})]


def _lines(text: str, style: Mapping[str, Any]) -> Iterator[JSONObject]:
    """Yield an element for each line: in a text run, Teams follows no Markdown and breaks no line."""
    for number, one in enumerate(text.split("\n")):
        shown = _BLANKS.sub(lambda blanks: "\u00a0" * len(blanks[0]), one) or "\u00a0"
        yield _text([{"type": "TextRun", "text": shown, **style}], is_first=number == 0)


def _facts(facts: Mapping[str, str]) -> list[JSONObject]:
    return [
        _text(
            [
                {"type": "TextRun", "text": f"{name}: ", "weight": "Bolder", "size": "Small"},
                {"type": "TextRun", "text": value.replace("\n", " "), "size": "Small"},
            ],
            is_first=number == 0,
        )
        for number, (name, value) in enumerate(facts.items())
    ]


def _text(runs: list[JSONObject], *, is_first: bool) -> JSONObject:
    return {"type": "RichTextBlock", "inlines": runs, **({} if is_first else {"spacing": "None"})}
