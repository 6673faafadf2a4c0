"""Signed links with which one person decides on one gate, from a message, without signing in.

The page behind a link only shows the item and asks for confirmation: mail scanners follow links. The decision is made
with the form on the page.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from standfast.errors import DefinitionError, InputError
from standfast.extras import MissingExtraError, install
from standfast.tools import Duration, seconds

_SALT = "standfast.link"
SHORTEST_SECRET = 20  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLinks:
    """Makes links for one person: anyone with such a link decides as that person, so send it to nobody else.

    Args:
        page: the page's address, such as "https://runs.example.com"; the page must know that person as an approver.
        secret: the same as the page's: `Access(link_secret=…)`, or STANDFAST_LINK_SECRET for `standfast web`.
        by: the person who decides with the link.
        valid: how long the link is valid; never after the gate's deadline, or once the gate asks something else.

    Raises:
        DefinitionError: naming the argument and the rule.
        ImportError: itsdangerous is not installed.
    """

    page: str
    secret: str = field(repr=False)
    by: str
    valid: Duration = "7d"

    def __post_init__(self) -> None:
        parts = urlsplit(self.page)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise DefinitionError(f"approval_links.page must be like 'https://runs.example.com', got {self.page!r:.80}")
        if len(self.secret) < SHORTEST_SECRET:
            raise DefinitionError(f"approval_links.secret must have at least {SHORTEST_SECRET} characters")
        if not self.by or not self.by.isprintable():
            raise DefinitionError(f"approval_links.by must be a name, got {self.by!r:.80}")
        object.__setattr__(self, "valid", seconds(self.valid, "approval_links.valid"))
        _serializer(self.secret)

    def to(self, workflow_id: str, item: Mapping[str, Any]) -> str:
        """Return the link to a waiting gate; `item` is as in `pending`."""
        until = time.time() + cast(float, self.valid)  # seconds since it was declared
        if "deadline" in item:
            until = min(until, datetime.fromisoformat(item["deadline"]).timestamp())
        link = Link(workflow_id, item["name"], item["since"], item["digest"], self.by, int(until))
        return f"{self.page.rstrip('/')}/link/{_serializer(self.secret).dumps(link)}"


class Link(NamedTuple):
    """The contents of a link: the person, the run's gate, the shown item, its start, and the expiry (Unix time)."""

    workflow_id: str
    gate: str
    since: str
    digest: str
    by: str
    until: int

    def is_for(self, item: Mapping[str, Any]) -> bool:
        """Whether the link was made for this item, and not for an earlier or later question of the gate."""
        asked = (item["kind"], item["name"], item["since"], item.get("digest"))
        return asked == ("approval", self.gate, self.since, self.digest)


def read_link(secret: str, token: str) -> Link:
    """Return the contents of a link.

    Raises:
        InputError: it was not made with the secret, or it has expired.
    """
    from itsdangerous import BadSignature

    try:
        link = Link(*_serializer(secret).loads(token))
    except (BadSignature, TypeError) as error:
        raise InputError("This link is not from standfast: open the complete link in your message") from error
    if time.time() > link.until:
        raise InputError("This link is too old: sign in to decide, or ask for another one")
    return link


def _serializer(secret: str) -> Any:
    try:
        from itsdangerous import URLSafeSerializer
    except ImportError as error:
        raise MissingExtraError(f"Approval links need itsdangerous: {install('web')}") from error
    return URLSafeSerializer(secret, salt=_SALT, signer_kwargs={"digest_method": hashlib.sha256})
