"""Admits the senders of requests to the API: identifies them, and checks their token's scopes and rate.

A browser that is signed in by a cookie sends its session's token with every change, in the header `X-CSRF-Token`. So no
other site can act in a person's name.
"""

import hmac
import json
import re
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from standfast.errors import DefinitionError, InputError
from standfast.messages import JSONObject, read_object
from standfast.web.api.errors import TOKEN, ForbiddenError
from standfast.web.identity.people import Access, Person, Role, bearer, is_foreign
from standfast.web.identity.visitors import Rates, who

CSRF = "X-CSRF-Token"
CORS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
    "allow_credentials": False,
    "expose_headers": ["Retry-After"],
}
_ORIGIN = re.compile(r"https?://[^/?#@\s]+")


class Senders:
    """The rules that limit what each person may send."""

    def __init__(self, access: Access, rates: Rates) -> None:
        self.access, self._rates = access, rates

    def admit(self, request: Request, role: Role = "viewer", scope: str = "read") -> Person:
        """Return the sender of a request.

        Raises:
            HTTPException: 401, 403 or 429.
        """
        person = self.sender(request)
        self._check_csrf(request)
        self.check_rights(person, role, scope)
        return person

    def sender(self, request: Request) -> Person:
        """Return the sender of a request to a JSON-only endpoint, to which no other site can send without permission.

        Raises:
            HTTPException: 401, 403 or 429.
        """
        person = who(request)
        if person is None:
            raise HTTPException(401, "The sender is unknown, or the token has expired.")
        self._rates.count(request, person)
        if self.access.token_of(request) is None and is_foreign(request):
            raise ForbiddenError("Another site sent this. Programs send a bearer token.", do=TOKEN)
        return person

    def check_rights(self, person: Person, role: Role, scope: str) -> None:
        """Refuse an act beyond a person's role or token scopes.

        Raises:
            HTTPException: 403.
        """
        if not person.may(role):
            raise HTTPException(403, f"This needs the role {role}; {person.name} has the role {person.role}.")
        if scope and not person.may_do(scope):
            raise HTTPException(403, f"The token of {person.name} lacks the scope {scope}.")

    def _check_csrf(self, request: Request) -> None:
        # Browsers never add a bearer token on their own, and `sender` has refused other sites.
        if bearer(request) is not None:
            return
        given = request.headers.get(CSRF, "")
        if request.method not in ("GET", "HEAD") and not hmac.compare_digest(
            given.encode(), self.access.csrf(request).encode()
        ):
            raise ForbiddenError(
                f"The header {CSRF} does not belong to your session.",
                do=f"Send the csrf from GET /api/v1/me as {CSRF}.",
            )


def check_origins(origins: Sequence[str]) -> list[str]:
    """Return origins whose pages may send requests.

    Raises:
        DefinitionError: one is not an origin, or means all.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin) or "*" in origin:
            raise DefinitionError(f"cors must name origins like https://app.example.com, got {origin!r:.80}")
    return list(origins)


async def read_body(request: Request) -> JSONObject:
    """Return the JSON object in a request's body; an empty body is an empty object.

    Raises:
        HTTPException: 400 or 415; it is not one.
    """
    body = await request.body()
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise HTTPException(415, f"The body must be application/json, got {kind or 'no Content-Type'}.")
    try:
        return read_object(body.decode() or "{}")
    except (InputError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"The body is not a JSON object: {error}") from error


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
