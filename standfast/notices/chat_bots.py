"""Posts to Slack and Microsoft Teams as a bot, which can change its messages later."""

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from temporalio.exceptions import ApplicationError

from standfast.messages import JSONObject, visible
from standfast.notices import slack_messages, teams_messages
from standfast.notices.chat_messages import head
from standfast.notices.posts import failure, request
from standfast.notices.slack_messages import IN_DOUBT, PASSING, SlackButtons, slack_problem
from standfast.notices.teams_messages import TeamsButtons

Place = dict[str, str]  # the chat's identifier of a posted message
_JSON = "application/json; charset=utf-8"
_EARLY = 300.0  # seconds before its expiry at which a token is no longer used


class Bot(Protocol):
    """A bot in a chat's conversation."""

    def approval(self, run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> JSONObject:
        """Return a message about an approval, with buttons."""
        ...

    def closed(self, run: str, item: Mapping[str, Any], link: str | None, said: str) -> JSONObject:
        """Return a message about an approval that no longer waits."""
        ...

    async def post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Place | None:
        """Post a message, and return its place.

        Raises:
            ApplicationError: the chat did not accept it.
        """
        ...

    async def change(self, place: Place, message: Mapping[str, Any]) -> None:
        """Replace a message.

        Raises:
            ApplicationError: the chat did not accept it.
        """
        ...


class SlackBot:
    """A Slack app with a token, in a channel."""

    def __init__(self, url: str, buttons: SlackButtons) -> None:
        self._url, self._buttons = url, buttons

    def approval(self, run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> JSONObject:
        return slack_messages.approval_message(run, item, link, said)

    def closed(self, run: str, item: Mapping[str, Any], link: str | None, said: str) -> JSONObject:
        return slack_messages.closed_message(slack_messages.draw(run, item).blocks, said)

    async def post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Place | None:
        answer = await self._call(self._url, {**message, "channel": self._buttons.channel}, headers)
        channel, ts = answer.get("channel", self._buttons.channel), answer.get("ts")
        return {"channel": channel, "ts": ts} if isinstance(channel, str) and isinstance(ts, str) else None

    async def change(self, place: Place, message: Mapping[str, Any]) -> None:
        await self._call(self._url.removesuffix("postMessage") + "update", {**message, **place}, {})

    async def _call(self, url: str, data: Mapping[str, Any], headers: Mapping[str, str]) -> JSONObject:
        ours = {**headers, "Authorization": f"Bearer {self._buttons.token}", "Content-Type": _JSON}
        answer = await request("POST", url, json.dumps(data, ensure_ascii=False).encode(), ours)
        if (problem := slack_problem(answer.content)) is not None:
            why = f"Slack did not accept the message: {problem}"
            raise failure(why, problem in PASSING, is_open=problem in IN_DOUBT)
        return _object(answer.content)


class TeamsBot:
    """A Teams bot, in a conversation."""

    def __init__(self, url: str, buttons: TeamsButtons) -> None:
        self._url, self._buttons = url, buttons
        self._token, self._until = "", 0.0

    def approval(self, run: str, item: Mapping[str, Any], link: str | None, said: str | None = None) -> JSONObject:
        return teams_messages.message(teams_messages.approval_card(run, item, link, said), head(item))

    def closed(self, run: str, item: Mapping[str, Any], link: str | None, said: str) -> JSONObject:
        return teams_messages.message(teams_messages.closed_card(run, item, link, said), said)

    async def post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Place | None:
        answer = _object(await self._call("POST", self._url, message, headers))
        return {"id": answer["id"]} if isinstance(answer.get("id"), str) else None

    async def change(self, place: Place, message: Mapping[str, Any]) -> None:
        await self._call("PUT", f"{self._url}/{quote(place['id'], safe='')}", message, {})

    async def _call(self, method: str, url: str, data: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        ours = {**headers, "Authorization": f"Bearer {await self._sign_in()}", "Content-Type": _JSON}
        answer = await request(method, url, json.dumps(data, ensure_ascii=False).encode(), ours)
        return answer.content

    async def _sign_in(self) -> str:
        """Return a token of the bot, which is valid for about an hour."""
        if time.monotonic() < self._until:
            return self._token
        given = {
            "grant_type": "client_credentials",
            "client_id": self._buttons.app_id,
            "client_secret": self._buttons.app_secret,
            "scope": "https://api.botframework.com/.default",
        }
        url = f"{self._buttons.login.rstrip('/')}/{self._buttons.tenant_id}/oauth2/v2.0/token"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            found = _object((await request("POST", url, urlencode(given).encode(), kind)).content)
        except ApplicationError as error:  # nothing was posted, whatever came of this
            raise failure(error.message, not error.non_retryable) from None
        token, seconds = found.get("access_token"), found.get("expires_in")
        if not isinstance(token, str) or not isinstance(seconds, int):
            raise failure(f"Microsoft did not give the bot a token: {visible(str(found.get('error')))[:80]}")
        self._token, self._until = token, time.monotonic() + seconds - _EARLY
        return token


def _object(content: bytes) -> JSONObject:
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}
