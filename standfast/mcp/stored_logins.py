"""Stores users' logins at MCP servers, encrypted, and makes each call with its user's token."""

import asyncio
import base64
import hashlib
import importlib
import json
import os
import re
import shlex
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from standfast.errors import DefinitionError, InputError, StandfastError
from standfast.mcp.transports import SENDING, NotLetInError
from standfast.stores.kept_values import append, length
from standfast.stores.protocol import Ledger

KEY = "STANDFAST_MCP_KEY"
_SHORTEST_KEY = 16  # bytes
_LEEWAY = 30.0  # seconds before its expiry at which a token is renewed
_FORGOTTEN = ""
_TOKEN = re.compile(r"[!-~]+")
_RENEWAL_SECONDS = 15.0  # how long another process may take to renew a token, before this one tries


@dataclass(frozen=True)
class OAuth:
    """Makes each call with the token of its user, who has logged in with `standfast mcp login`.

    Args:
        scope: the scopes requested at a login, separated by spaces; the server's suggestion if None.
        client_id, client_secret: an already registered client. If None, the login registers one.
        shared: one login for all users, which does not belong to a user.
        issuer: the authorization server for users' logins, such as "https://login.example.com". If None, the first user
            to log in must agree to the server that the MCP server names, unless both have the same address. Later
            logins must use the same one.
        key: a secret of at least 16 bytes that encrypts tokens; by default the environment's STANDFAST_MCP_KEY. All
            workers and the login use the same key.
    """

    _: KW_ONLY
    scope: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    shared: bool = False
    issuer: str | None = None
    key: str | bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise DefinitionError("OAuth: client_secret goes with client_id")
        if self.issuer is not None and not is_safe_url(self.issuer):
            raise DefinitionError(f"OAuth: issuer must be an https address, got {self.issuer!r:.200}")
        if self.key is not None and len(self.key) < _SHORTEST_KEY:
            raise DefinitionError(f"OAuth: key must have at least {_SHORTEST_KEY} bytes")


def is_safe_url(url: str) -> bool:
    """Whether an address may receive secrets: it uses HTTPS, or is on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1"))
    )


@dataclass(frozen=True, slots=True)
class Login:
    """A user's stored login at a server.

    Args:
        expires_at: seconds since 1970; None if the server has not given it.
        token_endpoint: the endpoint that renews the token.
        client: the client's registration, as an SDK object.
        resource: the token's resource, as in RFC 8707; None if it was not requested.
    """

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    expires_at: float | None
    token_endpoint: str
    client: Mapping[str, Any] = field(repr=False)
    scope: str | None = None
    resource: str | None = None

    def is_old(self) -> bool:
        return self.expires_at is not None and time.time() > self.expires_at - _LEEWAY


class Logins:
    """The logins at one server.

    Args:
        url: the server's URL.
    """

    def __init__(self, store: Ledger, url: str, key: str | bytes | None) -> None:
        self._store, self.url = store, url
        self._cipher_key = _cipher_key(key)
        self._overdue: set[tuple[str, int]] = set()  # logins that another process should have renewed, and has not

    async def load(self, who: tuple[str | None, str | None]) -> Login | None:
        """Return the login of a tenant's user; None if there is none."""
        place = self._place(who)
        count = await length(self._store, place)
        kept = await self._store.load_reply(place, count - 1) if count else None
        if not kept:
            return None
        sealed = base64.b64decode(kept)
        try:
            plain = self._cipher().decrypt(sealed[:12], sealed[12:], place.encode())
        except importlib.import_module("cryptography.exceptions").InvalidTag as error:
            raise StandfastError(
                f"The login at {self.url} cannot be read: it was encrypted with another key than {KEY}"
            ) from error
        return Login(**json.loads(plain))

    async def save(self, who: tuple[str | None, str | None], login: Login) -> None:
        """Save a login, replacing an earlier one."""
        place, nonce = self._place(who), os.urandom(12)
        plain = json.dumps({name: getattr(login, name) for name in Login.__slots__}).encode()
        sealed = nonce + self._cipher().encrypt(nonce, plain, place.encode())
        await self._append(place, base64.b64encode(sealed).decode())

    async def load_issuer(self) -> str | None:
        """Return the authorization server for users of this server; None before the first login."""
        place = self._issuers
        count = await length(self._store, place)
        return await self._store.load_reply(place, count - 1) if count else None

    async def save_issuer(self, issuer: str) -> None:
        """Save the authorization server for later logins."""
        if await self.load_issuer() != issuer:
            await append(self._store, self._issuers, issuer, await length(self._store, self._issuers))

    @property
    def _issuers(self) -> str:
        return f"standfast/mcp/issuers/{hashlib.blake2b(self.url.encode(), digest_size=20).hexdigest()}"

    async def renewed_elsewhere(self, who: tuple[str | None, str | None], old: Login, me: str) -> Login | None:
        """Return the login with which another process has replaced an old one; None if this process must renew it.

        A refresh token can often be used once, so only one process uses it. If that process does not renew it in time,
        it is not waited for again.

        Args:
            me: a word that identifies this process.
        """
        place, until = self._place(who), time.monotonic() + _RENEWAL_SECONDS
        count = await length(self._store, place)
        while True:
            later = await self.load(who)
            if later is not None and later.access_token != old.access_token:
                return later
            if (place, count) in self._overdue or await self._store.save_reply(f"{place}/renewals", count, me) == me:
                return None
            if time.monotonic() > until:
                self._overdue.add((place, count))
            await asyncio.sleep(0.1)

    async def forget(self, who: tuple[str | None, str | None]) -> bool:
        """Delete a login. Return whether there was one."""
        if await self.load(who) is None:
            return False
        await self._append(self._place(who), _FORGOTTEN)
        return True

    async def _append(self, place: str, value: str) -> None:
        await append(self._store, place, value, await length(self._store, place))

    def _place(self, who: tuple[str | None, str | None]) -> str:
        whole = json.dumps([self.url, *who]).encode()
        return f"standfast/mcp/logins/{hashlib.blake2b(whole, digest_size=20).hexdigest()}"

    def _cipher(self) -> Any:
        return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(self._cipher_key)


def _cipher_key(key: str | bytes | None) -> bytes:
    given = os.environ.get(KEY) if key is None else key
    if not given:
        raise InputError(f"Logins at MCP servers are kept encrypted: set {KEY} to a secret, the same for all workers")
    plain = given.encode() if isinstance(given, str) else given
    if len(plain) < _SHORTEST_KEY:
        raise InputError(f"{KEY} must have at least {_SHORTEST_KEY} bytes, got {len(plain)}")
    hashes = importlib.import_module("cryptography.hazmat.primitives.hashes")
    derive = importlib.import_module("cryptography.hazmat.primitives.kdf.hkdf").HKDF
    found: bytes = derive(algorithm=hashes.SHA256(), length=32, salt=None, info=b"standfast mcp logins").derive(plain)
    return found


def auth_of(logins: Logins, who: tuple[str | None, str | None]) -> Any:
    """Return an `httpx2.Auth` that sends a user's token, and renews it."""
    httpx2 = importlib.import_module("httpx2")

    class UsersToken(httpx2.Auth):  # type: ignore[misc, name-defined]  # its base is known when the SDK is there
        def __init__(self) -> None:
            self._renewing, self._me = asyncio.Lock(), os.urandom(8).hex()

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            login = await logins.load(who)
            if login is None:
                raise _needed(logins.url, who, "has not logged in")
            if login.is_old():
                async with self._renewing:
                    later = await logins.renewed_elsewhere(who, login, self._me)
                    if later is None:
                        _note_refusal(f"the token for {logins.url} cannot be renewed: there is no answer")
                        answer = yield _renewal(httpx2, login)
                        later = await _renewed(logins, who, login, answer)
                    login = later
            request.headers["Authorization"] = f"Bearer {login.access_token}"
            _note_refusal(None)
            response = yield request
            if response.status_code != 401:
                return
            async with self._renewing:
                later = await logins.renewed_elsewhere(who, login, self._me)
                if later is None:
                    _note_refusal(f"the token for {logins.url} cannot be renewed: there is no answer")
                    answer = yield _renewal(httpx2, login)
                    later = await _renewed(logins, who, login, answer)
            request.headers["Authorization"] = f"Bearer {later.access_token}"
            _note_refusal(None)
            yield request

    return UsersToken()


def _note_refusal(why: str | None) -> None:
    """Note that the request has not been sent yet. On any failure now, the server has not accepted it."""
    if (sending := SENDING.get()) is not None:
        sending.refused = why


def _needed(url: str, who: tuple[str | None, str | None], why: str) -> NotLetInError:
    tenant, user = who
    words = ["standfast", "mcp", "login", url]
    words += [] if user is None else ["--user", user]
    words += [] if tenant is None else ["--tenant", tenant]
    command = shlex.join(words)  # the user's name may come from a stranger
    name = "the shared account" if user is None else f"user {user!r}"
    return NotLetInError(f"{name} {why} at {url}; log in with `{command}`")


def _renewal(httpx2: Any, login: Login) -> Any:
    """Return the request that renews a token. Without a refresh token, it sends an empty one, and is refused."""
    shared = importlib.import_module("mcp.shared.auth")
    client = shared.OAuthClientInformationFull.model_validate(dict(login.client))
    data = {"grant_type": "refresh_token", "refresh_token": login.refresh_token or "", "client_id": client.client_id}
    headers = {"Accept": "application/json"}
    if login.resource is not None:
        data["resource"] = login.resource
    secret, method = client.client_secret, client.token_endpoint_auth_method
    if secret and method == "client_secret_basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif secret:
        data["client_secret"] = secret
    if not is_safe_url(login.token_endpoint):
        raise NotLetInError("the token cannot be renewed: its authorization server is not at an https address")
    return httpx2.Request("POST", login.token_endpoint, data=data, headers=headers)


async def _renewed(logins: Logins, who: tuple[str | None, str | None], login: Login, answer: Any) -> Login:
    """Return the renewed login, and save it. If another process was quicker, return its login."""
    await answer.aread()
    if answer.status_code >= 500:
        raise NotLetInError(f"the token for {logins.url} cannot be renewed: HTTP {answer.status_code}")
    if answer.status_code != 200:
        later = await logins.load(who)
        if later is not None and later.access_token != login.access_token:
            return later
        raise _needed(logins.url, who, "must log in again")
    try:
        token = importlib.import_module("mcp.shared.auth").OAuthToken.model_validate_json(answer.content)
        new = login_of(token, login.token_endpoint, login.client, login.resource, before=login)
    except (ValueError, OverflowError):  # the error's text may contain the token
        raise NotLetInError(f"the token for {logins.url} cannot be renewed: the answer has none") from None
    await logins.save(who, new)
    return new


def login_of(
    token: Any, token_endpoint: str, client: Mapping[str, Any], resource: str | None, before: Login | None = None
) -> Login:
    """Return a login with an SDK token. Fields that the token omits stay unchanged.

    Raises:
        ValueError: the token cannot be sent as a header.
    """
    if not _TOKEN.fullmatch(token.access_token):
        raise ValueError("the access token has characters that a header cannot contain")
    return Login(
        access_token=token.access_token,
        refresh_token=token.refresh_token or (None if before is None else before.refresh_token),
        expires_at=None if token.expires_in is None else time.time() + token.expires_in,
        token_endpoint=token_endpoint,
        client=dict(client),
        scope=token.scope or (None if before is None else before.scope),
        resource=resource,
    )
