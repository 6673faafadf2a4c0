"""Slack in tests: a server that takes what Slack's API takes, and people who press buttons and send forms.

Limits, methods and payloads follow Slack's reference (https://docs.slack.dev/reference): `block-kit/blocks`,
`methods/chat.postMessage`, `interaction-payloads/block_actions-payload`, `…/view_interactions-payload`, and
https://docs.slack.dev/authentication/verifying-requests-from-slack for signatures.
"""

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx

from standfast.temporal import SlackButtons, Webhook
from standfast.testing import ModelServer, Reply, Request
from standfast.web import SlackActions
from standfast.web.chats.slack import slack_signature
from standfast.web.serving.mounts import SLACK_PATH
from support.chats import TEAM

SIGNING = "8f742231b10e8888abcd99yyyzzz85a5"  # the example of Slack's documents
TOKEN = "xoxb-of-our-app"
CHANNEL = "C0123"


class Slack(ModelServer):
    """Slack's API and the addresses at which it takes answers; keeps what a channel and its people see."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.messages: dict[str, dict[str, Any]] = {}  # by ts
        self.told: list[tuple[str, str]] = []  # what one person alone sees
        self.views: list[dict[str, Any]] = []
        self.faults: list[Reply] = []  # that come first
        self.pressed = 0

    # --- how it is used ---

    def webhook(self, **options: Any) -> Webhook:
        """Return a webhook that posts as an app with a token."""
        buttons = SlackButtons(token=TOKEN, channel=CHANNEL)
        url = f"http://{self.address}/api/chat.postMessage"
        return Webhook(**{"url": url, "format": "slack", "slack_buttons": buttons, "name": "slack"} | options)

    def incoming(self) -> Webhook:
        """Return an incoming webhook of an app."""
        url = f"http://{self.address}/services/T0CAG/B0/secret"
        return Webhook(url=url, format="slack", slack_buttons=SlackButtons(), name="incoming")

    def app(self, token: str | None = TOKEN) -> SlackActions:
        """Return what the page has to know of the app."""
        origin = f"http://{self.address}"
        return SlackActions(signing_secret=SIGNING, token=token, api=f"{origin}/api", answer_at=(origin,))

    # --- the API ---

    def _take(self, request: Request) -> Reply:
        if self.faults:
            return self.faults.pop(0)
        path = request.path
        if path.startswith("/api/") and request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply({"ok": False, "error": "invalid_auth"})
        if (problem := problem_of(request.body)) is not None:
            return Reply({"ok": False, "error": "invalid_blocks", "of": problem}, 200 if "/api/" in path else 400)
        return self._do(path, request.body)

    def _do(self, path: str, body: dict[str, Any]) -> Reply:
        match path.split("/")[1:]:
            case ["api", "chat.postMessage"] if body.get("channel") == CHANNEL:
                return Reply({"ok": True, "ts": self._post(body)})
            case ["services", *_]:
                self._post(body)
                return Reply(b"ok")
            case ["api", "chat.update"] if body["ts"] in self.messages:
                self.messages[body["ts"]] = body
            case ["actions", _, ts] if body.get("replace_original"):
                self.messages[ts] = body
            case ["api", "chat.postEphemeral"]:
                self.told.append((body["user"], body["text"]))
            case ["actions", user, _] if body["response_type"] == "ephemeral":
                self.told.append((user, body["text"]))
            case ["api", "views.open"]:
                self.views.append(body["view"])
            case _:
                return Reply({"ok": False, "error": "unknown_method"}, 404)
        return Reply({"ok": True})

    def _post(self, message: dict[str, Any]) -> str:
        ts = f"{1_700_000_000 + len(self.messages)}.000100"
        self.messages[ts] = message
        return ts

    # --- people ---

    @property
    def message(self) -> dict[str, Any]:
        """The latest message, in its current form."""
        return self.messages[max(self.messages)]

    def press(self, button: str, user: str = "U0ADA", team: str = TEAM, **changes: Any) -> dict[str, Any]:
        """Return what Slack sends when someone presses a button of the latest message."""
        ts, message = max(self.messages), self.message
        action = dict(buttons(message)[button])
        return self.pressing(action, message, ts, user, team) | changes

    def pressing(
        self, action: dict[str, Any], message: dict[str, Any], ts: str, user: str = "U0ADA", team: str = TEAM
    ) -> dict[str, Any]:
        self.pressed += 1
        return {
            "type": "block_actions",
            "user": {"id": user, "username": "somebody", "name": "somebody", "team_id": team},
            "api_app_id": "A0CA5",
            "token": "Shh_its_a_seekrit",
            "container": {"type": "message", "message_ts": ts, "channel_id": CHANNEL, "is_ephemeral": False},
            "trigger_id": "12466734323.1395872398",
            "team": {"id": TEAM, "domain": "acme-creamery"},
            "enterprise": None,
            "is_enterprise_install": False,
            "channel": {"id": CHANNEL, "name": "approvals"},
            "message": {"type": "message", "bot_id": "B0", "ts": ts, **message},
            "state": {"values": {}},
            "response_url": f"http://{self.address}/actions/{user}/{ts}",
            "actions": [{**action, "block_id": "=qXel", "action_ts": f"1548426417.{self.pressed}"}],
        }

    def fill(self, user: str = "U0ADA", team: str = TEAM, **typed: str | None) -> dict[str, Any]:
        """Return what Slack sends when someone sends the latest form, with other words in fields of these labels."""
        view, values = self.views[-1], {}
        for block in view["blocks"]:
            element, label = block["element"], block["label"]["text"].partition(" (")[0]
            first = element.get("initial_value", element.get("initial_option", {}).get("value"))
            said = typed.pop(label, first)
            kind = element["type"]
            has = {"selected_option": {"value": said}} if kind == "static_select" else {"value": said}
            values[block["block_id"]] = {element["action_id"]: {"type": kind, **has}}
        assert not typed, "the form has no such field"
        return {
            "type": "view_submission",
            "team": {"id": TEAM, "domain": "acme-creamery"},
            "user": {"id": user, "username": "somebody", "name": "somebody", "team_id": team},
            "view": {"id": f"V{len(self.views)}", "hash": "156772938.1827394", "state": {"values": values}, **view},
        }


def buttons(message: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the buttons of a message by their texts."""
    rows = [block["elements"] for block in message["blocks"] if block["type"] == "actions"]
    return {one["text"]["text"]: one for row in rows for one in row}


def texts(message: dict[str, Any]) -> str:
    """Return everything that can be read in a message."""
    return "\n".join(one["text"] for one in _objects(message["blocks"]) if isinstance(one.get("text"), str))


async def send(
    page: httpx.AsyncClient,
    payload: Any,
    *,
    secret: str = SIGNING,
    at: float | None = None,
    signed: bytes | None = None,
) -> httpx.Response:
    """Send an interaction as Slack does."""
    body = urlencode({"payload": payload if isinstance(payload, str) else json.dumps(payload)}).encode()
    stamp = str(int(time.time() if at is None else at))
    headers = {
        b"Content-Type": b"application/x-www-form-urlencoded",
        b"X-Slack-Request-Timestamp": stamp.encode(),
        b"X-Slack-Signature": slack_signature(secret, stamp, body).encode() if signed is None else signed,
    }
    return await page.post(SLACK_PATH, content=body, headers=headers)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)


_TEXTS = {"section": 3_000, "button": 75, "option": 75, "label": 2_000, "title": 24, "submit": 24, "close": 24}


def problem_of(body: dict[str, Any]) -> str | None:
    """Return what Slack would refuse in a message or a form."""
    view = body.get("view", {})
    blocks = view.get("blocks", body.get("blocks", []))
    if len(blocks) > (100 if view else 50) or len(view.get("private_metadata", "")) > 3_000:
        return "it is too large"
    for one in _objects([blocks, {name: {"type": name, "text": view[name]} for name in ("title", "submit") if view}]):
        text = one.get("text")
        words = text.get("text", "") if isinstance(text, dict) else text
        if words is not None and not 1 <= len(words.encode("utf-16-le")) // 2 <= _TEXTS.get(one.get("type", ""), 3_000):
            return f"a text of {one.get('type')} has {len(words)} characters"
        if len(one.get("value") or "") > 2_000 or len(one.get("initial_value") or "") > 3_000:
            return "a value is too long"
        if len(one.get("fields", [])) > 10 or any(len(field["text"]) > 2_000 for field in one.get("fields", [])):
            return "there are too many fields"
        if one.get("type") == "context" and len(one["elements"]) > 10:
            return "a context is too long"
    return None
