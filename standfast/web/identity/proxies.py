"""Restores a proxied request to the form in which the browser sent it: host, scheme, and the path of the page."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from standfast.errors import DefinitionError
from standfast.web.identity.people import Access

_ROOT = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST_OF = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,255}")


def check_root(root: str, own: Sequence[str]) -> str:
    """Return the path under which a proxy serves the page, without a trailing slash.

    Args:
        own: the paths of the page, with which it may not begin: otherwise it is unclear whether the proxy had removed
            it.

    Raises:
        DefinitionError: it is not such a path.
    """
    found = root.rstrip("/")
    first = f"/{found.removeprefix('/').partition('/')[0]}"
    if not _ROOT.fullmatch(found) or ".." in found:
        raise DefinitionError(f"root_path must be a path like '/ops', got {root!r:.80}")
    if found and first in {f"/{path.removeprefix('/').partition('/')[0]}" for path in own}:
        raise DefinitionError(f"root_path: the page itself has the path {first}; choose another one, such as '/ops'")
    return found


class Proxied:
    """Reads `X-Forwarded-Host` and `X-Forwarded-Proto`, and adds the root path.

    The headers are trusted only from known proxies. The proxy may pass the root path on, or remove it.
    """

    def __init__(self, app: ASGIApp, access: Access, root: str) -> None:
        self._app, self._access, self._root = app, access, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, **self._changed(scope)} if scope["type"] == "http" else scope, receive, send)

    def _changed(self, scope: Scope) -> dict[str, Any]:
        """Return the values that differ in the browser's request."""
        request, found = Request(scope), dict[str, Any]()
        if self._access.https:
            found["scheme"] = "https"
        if self._access.is_proxy(request):
            host, scheme = (_last(request, f"X-Forwarded-{name}") for name in ("Host", "Proto"))
            if scheme in ("http", "https") and not self._access.https:
                found["scheme"] = scheme
            if host is not None and _HOST_OF.fullmatch(host):
                kept = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
                found["headers"] = [*kept, (b"host", host.encode())]
        if self._root:
            mounted = str(scope.get("root_path", "")).rstrip("/")
            root, path = f"{mounted}{self._root}", str(scope["path"])
            found["root_path"] = root
            if path != root and not path.startswith(f"{root}/"):
                found["path"] = root + path.removeprefix(mounted)
                raw: bytes = scope.get("raw_path") or path.encode()
                found["raw_path"] = root.encode() + raw.removeprefix(mounted.encode())
        return found


def _last(request: Request, header: str) -> str | None:
    """Return the part of a header that the last proxy wrote; anyone may have written the part before it."""
    values = request.headers.getlist(header)
    return values[-1].rpartition(",")[2].strip() if values else None
