"""Who may see the page, and who may act on it: bearer tokens, signed cookies, a trusted proxy; roles; forged requests.

Nobody is trusted for where a request comes from: whatever changes something is a POST that carries a token of the
session (`csrf`), and browsers say by `Sec-Fetch-Site` whether another site has sent it.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import DefinitionError
from holdfast.tools import check_choice

Role = Literal["viewer", "approver", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "approver", "operator")  # each may what those before it may
COOKIE = "holdfast_session"
SESSION = 12 * 3_600  # seconds that somebody stays signed in
_LOCAL = ("127.0.0.1", "::1", "localhost", "testclient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who may use the page, or a program.

    Args:
        name: by which decisions are recorded, and which gates know.
        role: "viewer" sees everything, "approver" also decides and answers, "operator" also starts, resumes, cancels.
        token: what signs in and what programs send as a bearer token; None where a proxy says who it is.

    Raises:
        DefinitionError: naming the field and the rule.
    """

    name: str
    role: Role = "viewer"
    token: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise DefinitionError(f"person.name must be text, got {self.name!r}")
        check_choice("person.role", self.role, ROLES)
        if self.token is not None and len(self.token) < 20:
            raise DefinitionError(f"person {self.name}: a token has at least 20 characters")

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules of one page.

    Args:
        people: who may use it. Empty: only this machine, as `local`.
        local: who it is who sits at this machine, where nobody has to sign in.
        secret: signs cookies; a new one at every start if None, and then everybody signs in again.
        proxy_header: where a proxy says who it is, such as "X-Forwarded-User"; believed only from `proxies`. Somebody
            of that name must be among the people.
        proxies: addresses of that proxy.
        https: people use https, also where a proxy ends it: cookies are sent by that alone.

    Raises:
        DefinitionError: the rules do not go together.
    """

    people: Sequence[Person] = ()
    local: Person | None = None
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    proxy_header: str | None = None
    proxies: Sequence[str] = ("127.0.0.1", "::1")
    https: bool = False

    def __post_init__(self) -> None:
        names = [person.name for person in self.people]
        if len(names) != len(set(names)):
            raise DefinitionError("access.people: two have one name")
        if self.people and self.local is not None:
            raise DefinitionError("access.local: where there are people, everybody signs in")
        if len(self.secret) < 20:
            raise DefinitionError("access.secret must have at least 20 characters")

    # --- who it is ---

    def who(self, request: Request) -> Person | None:
        """Return who has sent a request; None for a stranger."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.by_token(token.strip())
        host = request.client.host if request.client else ""
        if self.proxy_header is not None and host in self.proxies:
            return self._named(request.headers.get(self.proxy_header, ""))
        if self.local is not None:
            return self.local if host in _LOCAL else None
        return self._named(self._read(request.cookies.get(COOKIE, "")).partition(" ")[2])

    def by_token(self, token: str) -> Person | None:
        """Return whose token it is; takes as long for a wrong one as for a right one."""
        given, found = hashlib.sha256(token.encode()).digest(), None
        for person in self.people:
            known = hashlib.sha256((person.token or secrets.token_urlsafe()).encode()).digest()
            if hmac.compare_digest(given, known) and person.token is not None:
                found = person
        return found

    def _named(self, name: str) -> Person | None:
        return next((person for person in self.people if person.name == name), None)

    # --- sessions ---

    def _read(self, cookie: str) -> str:
        try:
            return self._signer.unsign(cookie, max_age=SESSION).decode()
        except BadSignature:
            return ""

    @property
    def _signer(self) -> TimestampSigner:
        return TimestampSigner(self.secret, salt="holdfast.session", digest_method=hashlib.sha256)

    def sign_in(self, response: Response, person: Person) -> None:
        value = self._signer.sign(f"{secrets.token_urlsafe(16)} {person.name}").decode()
        # Lax: a link in a message opens the page for who has signed in; every act needs `csrf` besides.
        response.set_cookie(COOKIE, value, max_age=SESSION, httponly=True, samesite="lax", secure=self.https)

    def csrf(self, request: Request) -> str:
        """Return the token that a form of this session carries."""
        session = request.cookies.get(COOKIE) or getattr(self.who(request), "name", "")
        return hmac.new(self.secret.encode(), f"csrf {session}".encode(), hashlib.sha256).hexdigest()

    # --- forged requests ---

    def check(self, request: Request, csrf: Any) -> None:
        """Refuse what another site has sent in somebody's name. A bearer token is no browser's.

        Raises:
            HTTPException: 403.
        """
        if request.headers.get("Authorization", "").lower().startswith("bearer "):
            return
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        foreign = site not in (None, "same-origin", "none")
        foreign = foreign or (origin is not None and urlsplit(origin).netloc != request.headers.get("Host"))
        given = csrf.encode() if isinstance(csrf, str) else b""
        if foreign or not hmac.compare_digest(given, self.csrf(request).encode()):
            raise HTTPException(403, "This form is not of your session. Open the page again, and send it from there.")


def check_listening(host: str, access: Access) -> None:
    """Refuse to listen where strangers are, without knowing who somebody is.

    Raises:
        DefinitionError: the host is not of this machine, and nobody has to sign in.
    """
    if host not in _LOCAL and not access.people:
        raise DefinitionError(
            f"The page would listen at {host}, where others are, and anybody could decide: say who may "
            "(--people FILE), or listen at 127.0.0.1"
        )


def hosts_of(host: str, names: Iterable[str]) -> list[str]:
    """Return the names under which the page may be asked for: no others, which a stranger's site could have."""
    return ["127.0.0.1", "localhost", "[::1]", *names] if host in _LOCAL else [*names] or ["*"]


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all a form of ours says that it comes from nowhere
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
