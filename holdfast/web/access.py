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

from holdfast.errors import DefinitionError, InputError
from holdfast.temporal.links import SHORTEST_SECRET, Link, read_link
from holdfast.tools import check_choice

Role = Literal["viewer", "approver", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "approver", "operator")  # each may what those before it may
COOKIE = "holdfast_session"
SESSION = 12 * 3_600  # seconds that somebody stays signed in
_NOT_YOURS = "This form is not of your session. Open the page again, and send it from there."
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
        if self.token is not None and len(self.token) < SHORTEST_SECRET:
            raise DefinitionError(f"person {self.name}: a token has at least {SHORTEST_SECRET} characters")

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules of one page.

    Args:
        people: who may use it. Empty: only this machine, as `local`.
        local: who it is who sits at this machine, where nobody has to sign in.
        link_secret: of the workers that send signed links to approvers; None refuses all links.
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
    link_secret: str | None = None
    proxy_header: str | None = None
    proxies: Sequence[str] = ("127.0.0.1", "::1")
    https: bool = False

    def __post_init__(self) -> None:
        names = [person.name for person in self.people]
        if len(names) != len(set(names)):
            raise DefinitionError("access.people: two have one name")
        if self.people and self.local is not None:
            raise DefinitionError("access.local: where there are people, everybody signs in")
        for name in ("secret", "link_secret"):
            if len(getattr(self, name) or " " * SHORTEST_SECRET) < SHORTEST_SECRET:
                raise DefinitionError(f"access.{name} must have at least {SHORTEST_SECRET} characters")

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

    def by_link(self, token: str) -> tuple[Link, Person]:
        """Return what a signed link lets somebody do, and who that is.

        Raises:
            HTTPException: 403; the link is not good, or its person is no approver here any more.
        """
        if self.link_secret is None:
            raise HTTPException(403, "This page takes no links: sign in.")
        try:
            link = read_link(self.link_secret, token)
        except InputError as error:
            raise HTTPException(403, f"{error}.") from error
        person = self._named(link.by)
        if person is None or not person.may("approver"):
            raise HTTPException(403, "Whoever this link was made for is no approver here.")
        return link, person

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
        self.check_site(request)
        given = csrf.encode() if isinstance(csrf, str) else b""
        if not hmac.compare_digest(given, self.csrf(request).encode()):
            raise HTTPException(403, _NOT_YOURS)

    def check_site(self, request: Request) -> None:
        """Refuse what a browser says that another site has sent.

        Raises:
            HTTPException: 403.
        """
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
        if foreign or site not in (None, "same-origin", "none"):
            raise HTTPException(403, _NOT_YOURS)


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
