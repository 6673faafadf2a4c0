"""Wraps standfast's applications in the common middleware: proxies, host names, origins, senders."""

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from standfast.web.api.errors import refusal
from standfast.web.api.senders import CORS, check_origins
from standfast.web.listening import Health, hosts_of
from standfast.web.proxies import Proxied
from standfast.web.visitors import InFlight, Recognised, Visitors


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
