"""Logs a user in at an MCP server with a browser, which is redirected to a port of this machine."""

import asyncio
import importlib
import json
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from standfast.errors import StandfastError
from standfast.mcp.stored_logins import Logins, OAuth, is_safe_url, login_of
from standfast.mcp.transports import MAX_ANSWER_BYTES, SENDING, Access, Sending, bounded_client
from standfast.messages import error_text
from standfast.stores.protocol import Ledger
from standfast.time_limits import time_limit

LOGIN_TIMEOUT = 600.0  # seconds for the person to log in
_LONGEST_ANSWER = 16 * 1024


async def login(
    url: str,
    *,
    store: Ledger,
    show: Callable[[str], object],
    user_id: str | None = None,
    tenant_id: str | None = None,
    oauth: OAuth | None = None,
    port: int = 0,
    consent: Callable[[str], bool] | None = None,
) -> None:
    """Log a user in at a server, and save the login in a store.

    Args:
        url: of the MCP server.
        store: the workers' store.
        show: called with the address that the user must open in a browser on this machine.
        user_id, tenant_id: the user who logs in, as in `run`; None for the shared login.
        oauth: the toolset's `OAuth`.
        port: the port of this machine for the redirect; any free one if 0.
        consent: asked before the first login at an authorization server whose address is not the MCP server's. Its
            argument is a sentence that names both. If None, such a login needs an `oauth` with an issuer.

    Raises:
        StandfastError: the login failed or took longer than ten minutes, or the server names a different authorization
            server than before, or does not require a login.
        InputError: the encryption key is missing.
    """
    mcp, oauth = importlib.import_module("mcp"), oauth or OAuth()
    if not is_safe_url(url):
        raise StandfastError(f"A login needs https, and {url} is an address without it")
    logins = Logins(store, url, oauth.key)
    pinned = oauth.issuer or await logins.load_issuer()
    async with _callback(port) as (address, answered):
        provider = _provider(url, oauth, address, partial(_agree, url, pinned, consent), show, answered)
        sending = Sending()
        token = SENDING.set(sending)
        try:
            async with (
                time_limit(LOGIN_TIMEOUT),
                bounded_client(mcp, url, MAX_ANSWER_BYTES, print, Access(auth=provider)) as client,
            ):
                await client.list_tools()
        except TimeoutError as error:
            raise StandfastError(f"No login within {LOGIN_TIMEOUT:g} s") from error
        except Exception as error:
            why = sending.refused or error_text(_first(error))
            raise StandfastError(f"The login at {url} failed: {why}") from error
        finally:
            SENDING.reset(token)
    known = provider.context
    if known.current_tokens is None:
        raise StandfastError(f"{url} does not require a login: leave out auth=")
    endpoint = known.oauth_metadata and known.oauth_metadata.token_endpoint
    found = login_of(
        known.current_tokens,
        str(endpoint or f"{known.get_authorization_base_url(url)}/token"),
        json.loads(known.client_info.model_dump_json(exclude_none=True)),
        known.get_resource_url() if known.should_include_resource_param(known.protocol_version) else None,
    )
    await logins.save((tenant_id, user_id), found)
    await logins.save_issuer(_issuer_of(known))


def _issuer_of(known: Any) -> str:
    """Return the authorization server of a login, as found by the SDK.

    If the SDK has found no metadata, it uses the MCP server's own endpoints, whichever issuer that server names.
    """
    if known.oauth_metadata is not None:
        return str(known.oauth_metadata.issuer)
    return str(known.get_authorization_base_url(known.server_url))


def _agree(url: str, pinned: str | None, consent: Callable[[str], bool] | None, known: Any) -> None:
    """Check the authorization server before a user logs in or a secret is sent.

    The MCP server itself names it. A malicious server could otherwise redirect the client's secret and the user's code
    anywhere.

    Raises:
        StandfastError: the authorization server is not the intended one.
    """
    issuer, metadata = _issuer_of(known), known.oauth_metadata
    if pinned is not None:
        if issuer.rstrip("/") != pinned.rstrip("/"):
            raise StandfastError(
                f"{url} names {issuer} as its authorization server, and not {pinned}: if that is right, say "
                f"OAuth(issuer={issuer!r}), or `standfast mcp login --issuer {shlex.quote(issuer)}`"
            )
        return
    places = [issuer]
    if metadata is not None:
        places += [str(metadata.authorization_endpoint), str(metadata.token_endpoint)]
    hosts = list(dict.fromkeys(urlsplit(place).netloc for place in places))
    if hosts == [urlsplit(url).netloc]:
        return
    words = f"{url} has its users log in at {issuer}, which uses {', '.join(hosts)}"
    if consent is None:
        raise StandfastError(f"{words}: if that is right, say OAuth(issuer={issuer!r})")
    if not consent(words):
        raise StandfastError(f"{words}, and that was not agreed to")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Kept:
    """The SDK's storage of one login. The caller saves the final login."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def _by_https(auth: Any) -> Any:
    """Return the SDK's flow class, restricted to HTTPS requests."""

    class Provider(auth.OAuthClientProvider):  # type: ignore[misc]  # its base is known when the SDK is there
        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            flow = super().async_auth_flow(request)
            try:
                sent = await anext(flow)
                while True:
                    if not is_safe_url(str(sent.url)):
                        raise StandfastError(f"it asks for a request to {sent.url}, which does not use https")
                    sent = await flow.asend((yield sent))
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    return Provider


def _provider(
    url: str,
    oauth: OAuth,
    address: str,
    agree: Callable[[Any], None],
    show: Callable[[str], object],
    answered: Any,
) -> Any:
    auth, shared = importlib.import_module("mcp.client.auth"), importlib.import_module("mcp.shared.auth")

    secret_method = "none" if oauth.client_secret is None else "client_secret_post"
    storage, said = _Kept(), {"redirect_uris": [address], "scope": oauth.scope}
    if oauth.client_id is not None:
        storage.client = shared.OAuthClientInformationFull(
            client_id=oauth.client_id,
            client_secret=oauth.client_secret,
            token_endpoint_auth_method=secret_method,
            **said,
        )

    async def redirect(page: str) -> None:
        await asyncio.to_thread(agree, provider.context)  # it may ask a person
        if not is_safe_url(page):
            raise StandfastError(f"its login page does not use https: {page.partition('?')[0]!r:.200}")
        show(page)

    async def callback() -> Any:
        query = await answered
        if "error" in query:
            raise StandfastError(f"the server said {query['error'][0]!r:.200}")
        one = {name: values[0] for name, values in query.items() if name in ("code", "state", "iss")}
        return shared.AuthorizationCodeResult(**one)

    metadata = shared.OAuthClientMetadata(client_name="standfast", token_endpoint_auth_method="none", **said)
    provider = _by_https(auth)(url, metadata, storage, redirect_handler=redirect, callback_handler=callback)
    return provider


@asynccontextmanager
async def _callback(port: int) -> AsyncIterator[tuple[str, "asyncio.Future[dict[str, list[str]]]"]]:
    """Listen on this machine for the browser's redirect. Yield the address and the redirect's parameters."""
    answered: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readuntil(b"\r\n")).decode(errors="replace").split()
            where = urlsplit(line[1]) if len(line) > 1 else urlsplit("")
            query = parse_qs(where.query)
            is_ours = where.path == "/callback" and bool(query.keys() & {"code", "error"})
            if is_ours and not answered.done():
                answered.set_result(query)
            text = b"You are logged in, and may close this page." if is_ours else b"There is nothing here."
            status = b"200 OK" if is_ours else b"404 Not Found"
            head = b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % (status, len(text)) + text)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_LONGEST_ANSWER)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback", answered
    finally:
        server.close()
