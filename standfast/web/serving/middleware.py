"""Wraps standfast's applications in the common middleware: addresses, proxies, origins, senders, headers."""

from collections.abc import Iterable, Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from standfast.errors import DefinitionError
from standfast.web.api.errors import refusal
from standfast.web.api.senders import CORS, check_origins
from standfast.web.identity.connection_owners import LOCAL
from standfast.web.identity.people import Access
from standfast.web.identity.proxies import Proxied
from standfast.web.identity.visitors import InFlight, Recognised, Visitors
from standfast.web.serving.mounts import note_root, path_of


def check_listening(host: str, access: Access, names: Iterable[str]) -> None:
    """Refuse to listen where strangers could decide without signing in, or could read the traffic.

    Raises:
        DefinitionError: others could reach it without signing in, or without https.
    """
    if (host not in LOCAL or [*names]) and not access.people:
        raise DefinitionError(
            f"The page would listen at {', '.join([host, *names])}, where anyone who reaches it could decide. "
            "Define who may (--people FILE), or listen at 127.0.0.1 only"
        )
    if host not in LOCAL and not access.https:
        raise DefinitionError(
            f"The page speaks plain HTTP and would listen at {host}: everyone on the network could read its tokens "
            "and cookies. Put a proxy that terminates TLS in front of it (--https), or listen at 127.0.0.1"
        )


def hosts_of(host: str, names: Iterable[str]) -> list[str]:
    """Return the host names of the page; a request for another name may come from a malicious site."""
    return ["127.0.0.1", "localhost", "[::1]", *names] if host in LOCAL else [*names] or ["*"]


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without any referrer, the page's own form would seem to come from nowhere
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Health:
    """Records the page's path, and answers `/healthz`: for everyone, by any name of the host."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_root(scope)
        is_asked = scope["type"] == "http" and path_of(scope) == "/healthz"
        await (PlainTextResponse("ok") if is_asked else self._app)(scope, receive, send)


def front(
    visitors: Visitors,
    *,
    host: str,
    names: Sequence[str],
    cors: Sequence[str],
    root: str,
    headers: Sequence[str] = (),
    every_answer: Sequence[Middleware] = (),
) -> list[Middleware]:
    """Return the middleware, the outermost first.

    Args:
        host, names: the address on which the application listens, and the host names in its requests.
        cors: origins whose pages may send requests.
        root: the path under which a proxy serves it.
        headers: allowed in requests from other origins, in addition to the API's headers.
        every_answer: also wraps the refusals of the other middleware.

    Raises:
        DefinitionError: an origin is invalid.
    """
    allowed = CORS | {"allow_headers": [*CORS["allow_headers"], *headers], "allow_origins": check_origins(cors)}
    return [
        Middleware(Proxied, access=visitors.access, root=root),
        Middleware(Health),
        *every_answer,
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts_of(host, names), www_redirect=False),
        *([Middleware(CORSMiddleware, **allowed)] if cors else []),
        Middleware(Recognised, visitors=visitors, to_program=refusal),
        Middleware(InFlight, to_program=refusal),
    ]
