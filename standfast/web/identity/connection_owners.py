"""Tells whether a connection from this machine belongs to the user who runs the page."""

import contextlib
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.requests import Request

LOCAL = ("127.0.0.1", "::1", "localhost", "testclient")  # names of this machine
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_TCP = ("/proc/net/tcp", "/proc/net/tcp6")
_CONNECTED = "01"


def is_ours(request: Request) -> bool:
    """Whether a request from this machine comes from the user who runs the page, and not through a proxy.

    On Linux the kernel knows who owns a connection. On other systems, every local user counts as that user.
    """
    known = request.scope.setdefault("state", {})  # for this request: ask the kernel only once
    if "is_ours" not in known:
        known["is_ours"] = _is_ours(request)
    return bool(known["is_ours"])


def _is_ours(request: Request) -> bool:
    if any(name in request.headers for name in _FORWARDED):
        return False
    client, server = request.scope.get("client"), request.scope.get("server")
    return _user_of(client, server) in (os.getuid(), 0) if Path(_TCP[0]).exists() else True


def _user_of(client: Any, server: Any) -> int | None:
    """Return the user who owns this end of a connection, from the kernel's tables; None if unowned."""
    ends = [(ip_address(host), port) for host, port in (client, server)]
    for table in _TCP:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()  # number, local address, remote address, state, ..., user
                if words[3] == _CONNECTED and [_address(words[1]), _address(words[2])] == ends:
                    return int(words[7])
    return None


def _address(shown: str) -> tuple[Any, int]:
    """Read an address in the kernel's format: hexadecimal words of four bytes, each in reverse order."""
    host, _, port = shown.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    found = ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found, int(port, 16)
