"""Microsoft Teams in tests: the Bot Connector, its keys, Microsoft's sign-in, and people who press buttons of cards.

Addresses and payloads follow Microsoft's documents: "Authentication with the Bot Connector API", "Bot Connector
REST API reference", and "Universal Action Model" (`adaptiveCard/action`, its request and its responses).
"""

import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from standfast.temporal import TeamsButtons, Webhook
from standfast.web import TeamsActions
from standfast.web.serving.mounts import TEAMS_PATH
from support.chats import TENANT, teams_id
from support.pages import served

APP = "b7a1f2c4-3a6d-4c0e-9b1a-5b0a2f6d9e11"
SECRET = "the~secret.of-our_bot"
CONVERSATION = "19:253b1f341670408fb6fe51050b6e5ceb@thread.skype"
KEYS = {kid: rsa.generate_private_key(65537, 2048) for kid in ("first", "second", "others")}


class Teams:
    """All of Microsoft that a bot meets; keeps what a channel shows."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}  # activities, by id
        self.kids = ["first"]  # of the keys that are published
        self.endorsements = ["msteams"]
        self.asked = 0  # how often, for keys
        self.signed_in = 0
        self.faults: list[Response] = []  # that come first, when a card is sent
        self.pressed = 0
        self.address = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Teams":
        app = Starlette(
            routes=[
                Route("/openid", self._openid),
                Route("/keys", self._published),
                Route("/{tenant}/oauth2/v2.0/token", self._sign_in, methods=["POST"]),
                Route("/teams/v3/conversations/{id}/activities", self._post, methods=["POST"]),
                Route("/teams/v3/conversations/{id}/activities/{message}", self._put, methods=["PUT"]),
                Route("/workflow", self._workflow, methods=["POST"]),
            ]
        )
        self.address = await self._stack.enter_async_context(served(app))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    # --- how it is used ---

    @property
    def service(self) -> str:
        return f"{self.address}/teams/"

    def webhook(self, **options: Any) -> Webhook:
        """Return a webhook that posts as a bot."""
        buttons = TeamsButtons(app_id=APP, app_secret=SECRET, tenant_id=TENANT, login=self.address)
        url = f"{self.service}v3/conversations/{CONVERSATION}/activities"
        return Webhook(**{"url": url, "format": "teams", "teams_buttons": buttons, "name": "teams"} | options)

    def workflow(self) -> Webhook:
        """Return a webhook of a workflow of Teams, which takes cards and answers nothing."""
        return Webhook(url=f"{self.address}/workflow", format="teams", name="workflow", link="https://x.example/")

    def app(self) -> TeamsActions:
        """Return what the page has to know of the bot."""
        return TeamsActions(app_id=APP, tenant_id=TENANT, openid=f"{self.address}/openid")

    # --- Microsoft ---

    async def _openid(self, request: Request) -> Response:
        return JSONResponse({"issuer": "https://api.botframework.com", "jwks_uri": f"{self.address}/keys"})

    async def _published(self, request: Request) -> Response:
        self.asked += 1
        keys = [json.loads(RSAAlgorithm.to_jwk(KEYS[kid].public_key())) | {"kid": kid} for kid in self.kids]
        return JSONResponse({"keys": [{**key, "use": "sig", "endorsements": self.endorsements} for key in keys]})

    async def _sign_in(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        expected = {
            "grant_type": "client_credentials",
            "client_id": APP,
            "client_secret": SECRET,
            "scope": "https://api.botframework.com/.default",
        }
        if form != expected or request.path_params["tenant"] != TENANT:
            return JSONResponse({"error": "invalid_client"}, 401)
        self.signed_in += 1
        return JSONResponse({"token_type": "Bearer", "expires_in": 3600, "access_token": "the bot's"})

    def _refusal(self, request: Request, body: bytes) -> Response | None:
        if self.faults:
            return self.faults.pop(0)
        if request.headers.get("Authorization") != "Bearer the bot's" or request.path_params["id"] != CONVERSATION:
            return JSONResponse({"error": {"code": "Forbidden"}}, 403)
        problem = problem_of(json.loads(body))
        return None if problem is None else JSONResponse({"error": {"code": "BadSyntax", "message": problem}}, 400)

    async def _post(self, request: Request) -> Response:
        if (refusal := self._refusal(request, body := await request.body())) is not None:
            return refusal
        message = f"{1_700_000_000_000 + len(self.messages)}"
        self.messages[message] = json.loads(body)
        return JSONResponse({"id": message}, 201)

    async def _put(self, request: Request) -> Response:
        if (refusal := self._refusal(request, body := await request.body())) is not None:
            return refusal
        if (message := request.path_params["message"]) not in self.messages:
            return JSONResponse({"error": {"code": "ActivityNotFoundInConversation"}}, 404)
        self.messages[message] = json.loads(body)
        return JSONResponse({"id": message})

    async def _workflow(self, request: Request) -> Response:
        body = await request.body()
        if (problem := problem_of(json.loads(body))) is not None:
            return JSONResponse({"error": problem}, 400)
        self.messages[f"{len(self.messages)}"] = json.loads(body)
        return Response(status_code=202)

    # --- people ---

    @property
    def card(self) -> dict[str, Any]:
        """The latest card, as everyone sees it."""
        return card_of(self.messages[max(self.messages)])

    def press(
        self, button: str, user: str = "ada", *, card: dict[str, Any] | None = None, tenant: str = TENANT, **typed: str
    ) -> dict[str, Any]:
        """Return what the Bot Connector sends when a person presses a button of a card, with the texts typed in it."""
        self.pressed += 1
        shown = self.card if card is None else card
        action = buttons(shown)[button]
        inputs = {one["id"]: one.get("value", "") for one in shown["body"] if one["type"].startswith("Input.")}
        names = {
            one["label"].partition(" (")[0]: one["id"]
            for one in shown["body"]
            if one["id" if "id" in one else "type"] in inputs
        }
        data = {**action["data"], **inputs, **{names[label]: text for label, text in typed.items()}}
        if action.get("associatedInputs") == "none":
            data = action["data"]
        return {
            "type": "invoke",
            "name": "adaptiveCard/action",
            "id": f"f:{self.pressed}",
            "timestamp": "2026-11-23T21:00:00.000Z",
            "channelId": "msteams",
            "serviceUrl": self.service,
            "from": {"id": "29:1XJKJMvc5GBtc2JwZq0oj8tHZmzrQgFmB39ATiQWA85gQtHieVkKilBZ9XHoq9j7Zaqt7CZ-NJWi7me2kHTL3Bw",
                     "name": "Somebody", "aadObjectId": teams_id(user)},
            "conversation": {"isGroup": True, "conversationType": "channel", "tenantId": tenant,
                             "id": f"{CONVERSATION};messageid=1481567603816"},
            "recipient": {"id": f"28:{APP}", "name": "Standfast"},
            "entities": [{"locale": "en-US", "country": "US", "platform": "Web", "type": "clientInfo"}],
            "channelData": {"channel": {"id": CONVERSATION}, "team": {"id": CONVERSATION}, "tenant": {"id": tenant},
                            "source": {"name": "message"}},
            "replyToId": max(self.messages, default="0"),
            "value": {"action": {"type": "Action.Execute", "id": "x", "verb": action["verb"], "data": data},
                      "trigger": "manual"},
            "locale": "en-US",
        }  # fmt: skip

    def token(self, kid: str = "first", *, key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        """Return a token of the Bot Connector; a claim of None is left out."""
        now = int(time.time())
        claims = {
            "serviceurl": self.service,
            "nbf": now,
            "exp": now + 3_600,
            "iss": "https://api.botframework.com",
            "aud": APP,
        } | changes
        given = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(given, KEYS[kid] if key is None else key, algorithm, {"kid": kid})


async def send(
    page: httpx.AsyncClient, teams: Teams, activity: Any, token: str | None = None, kind: str = "Bearer"
) -> httpx.Response:
    """Send an activity as the Bot Connector does."""
    content = activity if isinstance(activity, bytes) else json.dumps(activity).encode()
    headers = {"Content-Type": "application/json; charset=utf-8"}
    given = teams.token() if token is None else token
    return await page.post(
        TEAMS_PATH, content=content, headers=headers | ({"Authorization": f"{kind} {given}"} if given else {})
    )


async def answered(page: httpx.AsyncClient, teams: Teams, activity: Any) -> Any:
    """Return the reply to a pressed button: a card, or a text."""
    answer = await send(page, teams, activity)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["statusCode"] == 200
    if said["type"] == "application/vnd.microsoft.card.adaptive":
        assert problem_of({"type": "message", "attachments": [_attached(said["value"])]}) is None
    else:
        assert said["type"] == "application/vnd.microsoft.activity.message"
    return said["value"]


def _attached(card: Any) -> dict[str, Any]:
    return {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}


def card_of(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = message["attachments"][0]["content"]
    return found


def buttons(card: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the buttons of a card by their texts."""
    return {one["title"]: one for one in card["actions"]}


def texts(card: dict[str, Any]) -> str:
    """Return everything that can be read in a card, a line for each element."""
    lines = ["".join(run["text"] for run in one["inlines"]) for one in card["body"] if one["type"] == "RichTextBlock"]
    return "\n".join(lines).replace("\u00a0", " ")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)


_KINDS = {
    "AdaptiveCard",
    "RichTextBlock",
    "TextRun",
    "Input.Text",
    "Input.ChoiceSet",
    "Action.Execute",
    "Action.OpenUrl",
}


def problem_of(activity: dict[str, Any]) -> str | None:
    """Return what Teams would refuse in a message, or follow in a text."""
    if activity.get("type") != "message" or len(activity.get("attachments", ())) != 1 or "text" in activity:
        return "it is not a message with one card"
    card = card_of(activity)
    if len(json.dumps(card, ensure_ascii=False).encode()) > 28 * 1024:
        return "the card is too large"
    if card["version"] != "1.5" or len(card["actions"]) > 6:
        return "the card is not one that Teams shows"
    for one in _objects(card["body"] + card["actions"]):
        if "type" in one and one["type"] not in _KINDS:
            return f"a {one['type']} would follow marks"
        if one.get("type") == "TextRun" and (not one["text"] or "\n" in one["text"]):
            return "a run of text is empty, or has invisible lines"
    return None
