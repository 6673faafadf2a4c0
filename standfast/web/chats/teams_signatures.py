"""Checks that a request comes from Microsoft's Bot Connector: a current token signed by one of its keys, for this bot.

The rules come from Microsoft's "Authentication with the Bot Connector API". The keys are requested once a day, and
when a token names an unknown key, at most once a minute.
"""

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from standfast.errors import InputError, StandfastError
from standfast.extras import MissingExtraError, install
from standfast.messages import JSONObject, visible
from standfast.notices.teams_messages import check_https, check_ids
from standfast.tls import tls_context

_LOG = logging.getLogger("standfast.web")
_ISSUER = "https://api.botframework.com"
_CHANNEL = "msteams"
_SKEW = 300  # seconds by which clocks may differ, according to Microsoft
_KEPT = 86_400.0  # seconds that keys are used
_UNKNOWN = 60.0  # seconds between two searches for an unknown key
_TIMEOUT = 10.0  # seconds
_MOST = 262_144  # bytes of a document of keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamsActions:
    """Handles the buttons of cards that a worker posts with `TeamsButtons`.

    The messaging endpoint of the bot is the page's `/teams/messages`. A `Person` is identified by `teams`; nobody else
    can decide there. The page does not need the bot's secret.

    Args:
        app_id: the id of the bot's app registration in Microsoft Entra.
        tenant_id: the directory whose people decide; presses from another directory are refused.
        openid: the address of the document with the address of the Bot Connector's keys.

    Raises:
        DefinitionError: naming the argument and the rule.
        ImportError: PyJWT or httpx is not installed.
    """

    app_id: str
    tenant_id: str
    openid: str = "https://login.botframework.com/v1/.well-known/openidconfiguration"

    def __post_init__(self) -> None:
        try:
            import httpx  # noqa: F401  # fails at start, not at the first button press
            import jwt.algorithms
        except ImportError as error:
            raise MissingExtraError(f"Buttons in Microsoft Teams need {error.name}: {install('teams')}") from error
        if not jwt.algorithms.has_crypto:
            raise MissingExtraError(f"Buttons in Microsoft Teams need cryptography: {install('teams')}")
        check_ids("teams", app_id=self.app_id, tenant_id=self.tenant_id)
        check_https("teams.openid", self.openid)


class NotAskedError(StandfastError):
    """The keys are unavailable now, so the sender of a request is unknown."""


class Connector:
    """The Bot Connector, as a bot knows it: by its keys."""

    def __init__(self, settings: TeamsActions) -> None:
        self._settings = settings
        self._keys: dict[str, JSONObject] = {}  # by `kid`
        self._asked_at = -_KEPT  # by the monotonic clock
        self._asking = asyncio.Lock()

    async def check(self, authorization: str) -> JSONObject:
        """Return the claims of the token in a header.

        Raises:
            InputError: the Bot Connector has not made it for this bot, or it has expired.
            NotAskedError: the keys are unavailable.
        """
        import jwt

        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise InputError("It lacks the Bot Connector's token")
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: JSONObject = jwt.decode(
                token,
                jwt.PyJWK(key, algorithm="RS256"),
                algorithms=["RS256"],
                audience=self._settings.app_id,
                issuer=_ISSUER,
                leeway=_SKEW,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise InputError(f"Its token is not from the Bot Connector for this bot: {error}") from error
        if _CHANNEL not in key.get("endorsements", ()):
            raise InputError("The key of its token is not for Teams")
        return claims

    def check_activity(self, claims: JSONObject, activity: "JSONObject") -> None:
        """Check that a token belongs to this activity, and that its tenant is the configured one.

        Raises:
            InputError: it belongs to another.
        """
        claimed = claims.get("serviceurl", claims.get("serviceUrl"))
        if not isinstance(claimed, str) or claimed.rstrip("/") != str(activity.get("serviceUrl")).rstrip("/"):
            raise InputError("Its token was made for another service URL")
        if activity.get("channelId") != _CHANNEL:
            raise InputError("It does not come from Teams")
        if tenant_of(activity) != self._settings.tenant_id.lower():
            raise InputError("It comes from a different tenant")

    async def _key(self, kid: str) -> JSONObject:
        """Return a key, from the cache if it is there."""
        async with self._asking:
            age = time.monotonic() - self._asked_at
            if age > _KEPT or (kid not in self._keys and age > _UNKNOWN):
                await self._ask()
        if kid not in self._keys:
            raise InputError(f"Its token names a key that the Bot Connector does not have: {visible(kid)[:80]!r}")
        return self._keys[kid]

    async def _ask(self) -> None:
        """Request the keys; if that fails, the cached keys stay."""
        import httpx

        try:
            async with httpx.AsyncClient(verify=tls_context(), timeout=_TIMEOUT, follow_redirects=False) as client:
                known = await _document(client, self._settings.openid)
                url = str(known.get("jwks_uri"))
                check_https("jwks_uri", url)
                if known.get("issuer") != _ISSUER:
                    raise ValueError(f"they are those of {known.get('issuer')!r:.80}")
                found = (await _document(client, url)).get("keys")
                rsa = [key for key in found or () if isinstance(key, dict) and key.get("kty") == "RSA"]
                self._keys = {str(key["kid"]): key for key in rsa if "kid" in key}
        except (httpx.HTTPError, ValueError, StandfastError) as error:
            _LOG.warning("The Bot Connector's keys are unavailable: %s", error)
            if not self._keys:
                raise NotAskedError("The Bot Connector's keys are unavailable now; see the log") from error
        self._asked_at = time.monotonic()


async def _document(client: Any, url: str) -> JSONObject:
    """Return a JSON object from an address.

    Raises:
        ValueError: it is something else, or too long.
    """
    content = b""
    async with client.stream("GET", url) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > _MOST:
                raise ValueError("a document is too long")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("a document is not a JSON object")
    return found


def tenant_of(activity: JSONObject) -> str:
    """Return the directory from which an activity comes; "" if it has none."""
    data = activity.get("channelData")
    tenant = data.get("tenant") if isinstance(data, dict) else None
    conversation = activity.get("conversation")
    found = tenant.get("id") if isinstance(tenant, dict) else None
    found = found or (conversation.get("tenantId") if isinstance(conversation, dict) else None)
    return found.lower() if isinstance(found, str) else ""
