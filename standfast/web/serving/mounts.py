"""Addresses of the page, even if it is mounted under a path of another application."""

import hashlib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STATIC = Path(__file__).parents[1] / "static"
SLACK_PATH, TEAMS_PATH = "/slack/actions", "/teams/messages"  # whose senders sign their requests
_KEPT = "public, max-age=31536000, immutable"


_ROOT = "standfast.root"


def note_root(scope: MutableMapping[str, Any]) -> None:
    """Record the path at which the page is mounted, before its own parts are mounted in it."""
    scope[_ROOT] = str(scope.get("root_path", "")).rstrip("/")


def root_of(scope: Mapping[str, Any]) -> str:
    """Return the path at which the page is mounted, without a trailing slash; "" if it is not mounted."""
    return str(scope.get(_ROOT, scope.get("root_path", ""))).rstrip("/")  # an error may come before `note_root`


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path of a request within the page."""
    path, root = str(scope["path"]), root_of(scope)
    return path.removeprefix(root) or "/" if path == root or path.startswith(f"{root}/") else path


def own_path(to: str, root: str) -> str:
    """Return the address to open after signing in: only a page of this application."""
    try:
        parts = urlsplit(to)
    except ValueError:
        return f"{root}/"
    own = to.startswith(f"{root}/") and not to.startswith(("//", "/\\")) and not parts.scheme and not parts.netloc
    return to if own and to.isprintable() else f"{root}/"


class Assets:
    """The style and the script of the page. An address that names a file's content is requested only once."""

    def __init__(self) -> None:
        files = [path for path in STATIC.iterdir() if path.is_file()]
        self._versions = {path.name: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in files}

    def address(self, name: str) -> str:
        """Return the address of a file below the page's root."""
        return f"/static/{name}?v={self._versions[name]}"

    def caching(self, scope: Mapping[str, Any]) -> str:
        """Return the time for which a browser may cache the answer to a request: zero for pages."""
        asked = f"{path_of(scope)}?{scope.get('query_string', b'').decode('latin-1')}"
        return _KEPT if asked in map(self.address, self._versions) else "no-store"
