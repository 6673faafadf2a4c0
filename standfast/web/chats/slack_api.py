"""Answers people in Slack: replaces messages, sends private messages, opens forms."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from standfast.errors import DefinitionError, StandfastError
from standfast.extras import MissingExtraError, install
from standfast.llm.provider_errors import seconds_to_wait
from standfast.messages import visible
from standfast.notices.slack_messages import PASSING, mrkdwn, slack_problem
from standfast.tls import tls_context

_LOG = logging.getLogger("standfast.web")
_TIMEOUT = 10.0  # seconds
_AGAIN = (0.0, 1.0, 4.0)  # seconds before each attempt
_LONGEST = 30.0  # seconds that Slack may request as a wait
_TEXT = 2_900  # characters
SHORTEST_SIGNING_SECRET = 16  # characters; Slack's have 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackActions:
    """Handles the buttons of messages that a worker posts with `SlackButtons`.

    The request URL of the Slack app's interactivity is the page's `/slack/actions`. A `Person` is identified by
    `slack`; nobody else can decide there.

    Args:
        signing_secret: the signing secret of the Slack app.
        token: its bot token, for comments, forms to edit, and messages that are older than half an hour.
        api: the address of Slack's API.
        answer_at: the origins at which Slack accepts answers to a press; a press that names another is not answered.

    Raises:
        DefinitionError: naming the argument and the rule.
        ImportError: httpx is not installed.
    """

    signing_secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    api: str = "https://slack.com/api"
    answer_at: tuple[str, ...] = ("https://hooks.slack.com",)

    def __post_init__(self) -> None:
        try:
            import httpx  # noqa: F401  # fails at start, not at the first button press
        except ImportError as error:
            raise MissingExtraError(f"Buttons in Slack need httpx: {install('httpx')}") from error
        if len(self.signing_secret) < SHORTEST_SIGNING_SECRET:
            raise DefinitionError(f"slack.signing_secret must have at least {SHORTEST_SIGNING_SECRET} characters")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise DefinitionError("slack.token must be a bot token, such as 'xoxb-…'")
        for url in (self.api, *self.answer_at):
            parts = urlsplit(url)
            is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
            if not parts.hostname or parts.scheme not in (("http", "https") if is_local else ("https",)):
                raise DefinitionError(f"slack: {url!r:.80} must be an https address")


class Place(NamedTuple):
    """The message of a pressed button, and the ways to answer there."""

    user: str
    channel: str
    message: str
    answer_to: str | None


class SlackApi:
    """Slack's API, with one app's token if there is one."""

    def __init__(self, settings: SlackActions) -> None:
        self._settings = settings

    @property
    def has_token(self) -> bool:
        return self._settings.token is not None

    async def replace(self, place: Place, message: Mapping[str, Any]) -> None:
        """Replace a message; a refusal by Slack is logged."""
        to = {"channel": place.channel, "ts": place.message}
        await self._answer(place, {"replace_original": True, **message}, "chat.update", {**to, **message})

    async def tell(self, place: Place, text: str) -> None:
        """Send the person who pressed a button a message that only they see."""
        said = {"text": mrkdwn(text)[:_TEXT]}
        ephemeral = {"response_type": "ephemeral", "replace_original": False, **said}
        to = {"channel": place.channel, "user": place.user}
        await self._answer(place, ephemeral, "chat.postEphemeral", {**to, **said})

    async def open(self, trigger: str, view: Mapping[str, Any]) -> None:
        """Open a form for the person who pressed a button at most three seconds ago.

        Raises:
            StandfastError: Slack has not opened it.
        """
        problem = await self._call("views.open", {"trigger_id": trigger, "view": view}, attempts=1)
        if problem is not None:
            raise StandfastError(f"Slack could not open the form ({problem}): press the button again")

    async def _answer(self, place: Place, answer: Mapping[str, Any], method: str, call: Mapping[str, Any]) -> None:
        """Answer at the address of the press, or by the API if that address has expired or is foreign."""
        problem: str | None = "the press has no Slack address for an answer"
        if place.answer_to is not None and _origin(place.answer_to) in map(_origin, self._settings.answer_at):
            problem = await self._post(place.answer_to, answer, {}, len(_AGAIN))
        if problem is not None and self.has_token and place.channel:
            problem = await self._call(method, call)
        if problem is not None:
            _LOG.warning("Slack did not get the outcome of a press on message %s: %s", visible(place.message), problem)

    async def _call(self, method: str, data: Mapping[str, Any], attempts: int = len(_AGAIN)) -> str | None:
        headers = {"Authorization": f"Bearer {self._settings.token}"}
        return await self._post(f"{self._settings.api.rstrip('/')}/{method}", data, headers, attempts)

    async def _post(self, url: str, data: Mapping[str, Any], headers: Mapping[str, str], attempts: int) -> str | None:
        """Send JSON to Slack, with retries while they may help; return the error, or None."""
        import httpx

        problem: str | None = None
        wait = 0.0
        for pause in _AGAIN[:attempts]:
            await asyncio.sleep(max(pause, wait))
            try:
                async with httpx.AsyncClient(verify=tls_context(), timeout=_TIMEOUT, follow_redirects=False) as client:
                    answer = await client.post(url, json=data, headers=dict(headers))
            except httpx.HTTPError as error:
                problem = f"Slack gave no answer: {type(error).__name__}"
                continue
            wait = min(seconds_to_wait(answer.headers.get("Retry-After"), datetime.now(UTC)) or 0.0, _LONGEST)
            problem = _problem(answer.status_code, answer.content, is_api=bool(headers))
            if problem is None or not (problem in PASSING or answer.status_code == 429 or answer.status_code >= 500):
                return problem
        return problem


def _problem(status: int, content: bytes, *, is_api: bool) -> str | None:
    if status != 200:
        return f"status {status}"
    return slack_problem(content) if is_api else None


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    try:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            return None
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
