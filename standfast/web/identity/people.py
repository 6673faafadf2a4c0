"""Decides who may see the page and who may act: tokens, cookies, a trusted proxy, roles, forged requests.

A request is never trusted for its origin. Every request that changes something is a POST with a token of the session
(`csrf`), and browsers report by `Sec-Fetch-Site` whether another site has sent it.
"""

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Literal

from itsdangerous import BadSignature, TimestampSigner
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from standfast.errors import DefinitionError, InputError
from standfast.messages import person as identity
from standfast.notices.approval_links import SHORTEST_SECRET, Link, read_link
from standfast.notices.teams_messages import GUID
from standfast.stores.protocol import check_tenant_id
from standfast.tools import check_choice
from standfast.web.identity.connection_owners import LOCAL, is_ours
from standfast.web.serving.mounts import root_of

Role = Literal["viewer", "approver", "operator"]
SCOPES = ("read", "start", "decide", "answer", "message", "resume", "resolve", "cancel", "export", "delete")
ROLES: tuple[Role, ...] = ("viewer", "approver", "operator")  # each includes the rights of the earlier ones
COOKIE = "standfast_session"
SESSION = 12 * 3_600  # seconds that a person stays signed in
_MOST_FIELDS = 500  # of a form
_UNIX = "unix:"
_SLACK = re.compile(r"[TE][A-Z0-9]{2,30}/[UW][A-Z0-9]{2,30}")
_NOT_YOURS = "This form does not belong to your session. Open the page again and send it from there."


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person who may use the page, or a program.

    Args:
        name: the name that gates know and that decisions are recorded with.
        role: "viewer" sees everything, "approver" also decides and answers, "operator" also starts, resumes, cancels.
        token: the secret for signing in, which programs send as a bearer token, or its `token_digest`; None if a proxy
            identifies the person.
        tenants: the tenants whose runs they see and act on; None means all runs, including those without a tenant.
        only_own: whether they see and act only on runs that were started for them.
        scopes: for a program's token, the permitted acts out of its role's acts; None means all. "read" is looking,
            and the others are the names of the acts, with "start".
        expires: the time when the token expires.
        per_minute: the number of their requests that are answered, in each process of the page; None means no limit.
        slack: their team and user ids in Slack, such as "T024BE7LD/U0G9QF9C6"; see `SlackActions`.
        teams: their directory (tenant) and user ids in Microsoft Entra, two GUIDs with a slash between them; see
            `TeamsActions`.

    Raises:
        DefinitionError: naming the field and the rule.
    """

    name: str
    role: Role = "viewer"
    token: str | None = field(default=None, repr=False)
    tenants: Sequence[str] | None = None
    only_own: bool = False
    scopes: Sequence[str] | None = None
    expires: datetime | None = None
    per_minute: int | None = None
    slack: str | None = None
    teams: str | None = None

    def __post_init__(self) -> None:
        if self.teams is not None:
            tenant, _, user = self.teams.partition("/")
            if not (GUID.fullmatch(tenant) and GUID.fullmatch(user)):
                raise DefinitionError(
                    f"person {self.name}: teams must be the ids of a directory and a user, two GUIDs with a slash "
                    f"between them, got {self.teams!r:.120}"
                )
            object.__setattr__(self, "teams", self.teams.lower())
        if self.slack is not None and not _SLACK.fullmatch(self.slack):
            raise DefinitionError(
                f"person {self.name}: slack must be the ids of a team and a user, such as 'T024BE7LD/U0G9QF9C6', got "
                f"{self.slack!r:.80}"
            )
        if not self.name or not self.name.isprintable():
            raise DefinitionError(f"person.name must be text, got {self.name!r}")
        check_choice(f"person {self.name}: role", self.role, ROLES)
        self._check_bounds()
        if self.token is None:
            return
        if len(self.token) < SHORTEST_SECRET:
            raise DefinitionError(f"person {self.name}: a token has at least {SHORTEST_SECRET} characters")
        if self.token.startswith(_DIGEST) and not is_digest(self.token):
            raise DefinitionError(f"person {self.name}: {_DIGEST} must be followed by 64 hexadecimal digits")

    def _check_bounds(self) -> None:
        for name in ("tenants", "scopes"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, str) or not all(isinstance(one, str) for one in given)):
                raise DefinitionError(f"person {self.name}: {name} must be a list of texts, got {given!r:.80}")
        for scope in self.scopes or ():
            check_choice(f"person {self.name}: scopes", scope, SCOPES)
        for tenant in self.tenants or ():
            try:
                check_tenant_id(tenant)
            except InputError as error:
                raise DefinitionError(f"person {self.name}: tenants: {error}") from error
        if self.expires is not None and (not isinstance(self.expires, datetime) or self.expires.tzinfo is None):
            raise DefinitionError(f"person {self.name}: expires must be a time with a zone, like 2027-01-31T00:00:00Z")
        if not isinstance(self.only_own, bool):
            raise DefinitionError(f"person {self.name}: only_own must be true or false, got {self.only_own!r:.80}")
        is_rate = isinstance(self.per_minute, int) and not isinstance(self.per_minute, bool) and self.per_minute > 0
        if self.per_minute is not None and not is_rate:
            raise DefinitionError(f"person {self.name}: per_minute must be a number, got {self.per_minute!r:.80}")

    @property
    def is_bounded(self) -> bool:
        """Whether they see only some of the runs."""
        return self.tenants is not None or self.only_own

    def has_expired(self) -> bool:
        return self.expires is not None and datetime.now(UTC) >= self.expires

    def may_do(self, scope: str) -> bool:
        """Whether the scopes of a token include an act; its role is checked separately."""
        return self.scopes is None or scope in self.scopes

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def can_decide(self) -> bool:
        """Whether they may decide now at gates of the runs that they see."""
        return self.may("approver") and self.may_do("decide") and not self.has_expired()


_DIGEST = "sha256:"


def token_digest(token: str) -> str:
    """Return a digest that verifies a token without revealing it; files and stores keep the digest."""
    return token if is_digest(token) else _DIGEST + hashlib.sha256(token.encode()).hexdigest()


def is_digest(token: str) -> bool:
    return re.fullmatch(_DIGEST + "[0-9a-f]{64}", token) is not None


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules of one page.

    Args:
        people: the people who may use the page. If empty, only this machine may, as `local`.
        local: the person at this machine, who need not sign in.
        link_secret: the secret of the workers that send signed links to approvers; None refuses all links.
        secret: signs cookies and the pages of lists; if None, a new one at every start, after which everyone must sign
            in again.
        proxy_header: the header in which a proxy names the person, such as "X-Forwarded-User"; trusted only from
            `proxies`. The people must include a person of that name.
        proxies: addresses of that proxy, or "unix:" and the path of the socket on which the page listens for it.
        https: whether people use https, which a proxy terminates; cookies are then sent only by https.

    Raises:
        DefinitionError: the rules contradict each other.
    """

    people: Sequence[Person] = ()
    local: Person | None = None
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    link_secret: str | None = field(default=None, repr=False)
    proxy_header: str | None = None
    proxies: Sequence[str] = ()
    https: bool = False

    def __post_init__(self) -> None:
        kept = [token_digest(person.token) for person in self.people if person.token is not None]
        for what, all_of in (
            ("name", [identity(person.name) for person in self.people]),
            ("token", kept),
            ("slack", [person.slack for person in self.people if person.slack is not None]),
            ("teams", [person.teams for person in self.people if person.teams is not None]),
        ):
            if len(all_of) != len(set(all_of)):
                raise DefinitionError(f"access.people: two have the same {what}")
        if self.people and self.local is not None:
            raise DefinitionError("access.local: with access.people everyone must sign in")
        if self.proxy_header is not None and not self.proxies:
            raise DefinitionError("access.proxies: name the addresses of the proxy, or anyone could send its header")
        for proxy in self.proxies:
            if not (proxy.startswith(_UNIX) or _is_address(proxy)):
                raise DefinitionError(f"access.proxies must be addresses, or unix:PATH, got {proxy!r:.80}")
        for name in ("secret", "link_secret"):
            if len(getattr(self, name) or " " * SHORTEST_SECRET) < SHORTEST_SECRET:
                raise DefinitionError(f"access.{name} must have at least {SHORTEST_SECRET} characters")

    # --- who it is ---

    def who(self, request: Request) -> tuple[Person | None, str]:
        """Return the sender of a request, None for a stranger, and the session that identified the sender, if any."""
        person, session = self._sender(request)
        return (None, "") if person is not None and person.has_expired() else (person, session)

    def _sender(self, request: Request) -> tuple[Person | None, str]:
        if (token := self.token_of(request)) is not None:
            return self.by_token(token), ""
        if (
            names := self._by_proxy(request)
        ) is not None:  # a second header would come from a person whom the proxy has admitted
            return self.named(names[0]) if len(names) == 1 else None, ""
        if self.local is not None:
            return self.local if _host(request) in LOCAL and is_ours(request) else None, ""
        session, person = self.read(cookie_of(request))
        return person, session

    def token_of(self, request: Request) -> str | None:
        """Return the token that a program has sent.

        On a page without people the token is ignored, because SDKs always send one.
        """
        return bearer(request) if self.people else None

    def stranger(self, request: Request) -> str | None:
        """Return the name of a person whom the proxy has admitted but who may not use the page."""
        names = self._by_proxy(request)
        return None if names is None or self.who(request)[0] is not None else ", ".join(names) or "nobody"

    def address(self, request: Request) -> str:
        """Return the address of a request's sender; behind a trusted proxy, the address that the proxy reports."""
        if self.is_proxy(request) and (passed := request.headers.getlist("X-Forwarded-For")):
            return passed[-1].rpartition(",")[2].strip()  # anyone may have written the part before it
        return _host(request) or "a socket"

    def _by_proxy(self, request: Request) -> list[str] | None:
        """Return the name that the proxy reports; None if the request does not come from it."""
        if self.proxy_header is None or not self.is_proxy(request):
            return None
        return request.headers.getlist(self.proxy_header)

    def is_proxy(self, request: Request) -> bool:
        """Whether a request comes from one of the trusted proxies."""
        if request.client is not None:
            return request.client.host in self.proxies
        server = request.scope.get("server")
        return server is not None and f"{_UNIX}{server[0]}" in self.proxies

    def by_token(self, token: str) -> Person | None:
        """Return the owner of a token; takes the same time for a wrong token as for a right one."""
        given, found = hashlib.sha256(token.encode()).hexdigest(), None
        for person in self.people:
            known = token_digest(person.token or secrets.token_urlsafe()).removeprefix(_DIGEST)
            if hmac.compare_digest(given, known) and person.token is not None:
                found = person
        return None if found is not None and found.has_expired() else found

    def in_chat(self, chat: Literal["slack", "teams"], ids: str) -> Person | None:
        """Return the person with these ids in a chat."""
        return next((person for person in self.people if getattr(person, chat) == ids), None)

    def by_link(self, token: str) -> tuple[Link, Person]:
        """Return the decision that a signed link allows, and its person.

        Raises:
            HTTPException: 403; the link is invalid, or its person is no longer an approver here.
        """
        if self.link_secret is None:
            raise HTTPException(403, "This page does not accept links: sign in.")
        try:
            link = read_link(self.link_secret, token)
        except InputError as error:
            raise HTTPException(403, f"{error}.") from error
        person = self.named(link.by)
        if person is None or not person.can_decide:
            raise HTTPException(403, "The person for whom this link was made is not an approver here.")
        return link, person

    def named(self, name: str) -> Person | None:
        return next((person for person in self.people if identity(person.name) == identity(name)), None)

    # --- sessions ---

    def read(self, cookie: str) -> tuple[str, Person | None]:
        """Return the session of a cookie, and its owner."""
        try:
            session, name, token = self._signer.unsign(cookie, max_age=SESSION).decode().split(".")
        except (BadSignature, ValueError):
            return "", None
        person = next((one for one in self.people if _ascii(one.name) == name), None)
        is_good = person is not None and hmac.compare_digest(self._mark(person), token)
        return session, person if is_good else None

    def _mark(self, person: Person) -> str:
        """Return a mark that changes with a person's token, and does not reveal it."""
        digest = token_digest(person.token or "").encode()
        return hmac.new(self.secret.encode(), b"token " + digest, hashlib.sha256).hexdigest()[:32]

    @property
    def _signer(self) -> TimestampSigner:
        return TimestampSigner(self.secret, salt="standfast.session", digest_method=hashlib.sha256)

    def sign_in(self, response: Response, person: Person, *, root: str, is_https: bool) -> None:
        """Give a person a session on the page at the path `root`, opened by https or not."""
        # After a change of their token, a person must sign in again.
        session = f"{secrets.token_urlsafe(16)}.{_ascii(person.name)}.{self._mark(person)}"
        value = self._signer.sign(session).decode()
        # Lax: a link in a message opens the page for people who are signed in; every act also needs `csrf`.
        options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": is_https}
        response.set_cookie(cookie_name(root, is_https), value, max_age=SESSION, path=root or "/", **options)

    def csrf(self, request: Request) -> str:
        """Return the token that a form of this session carries."""
        session = cookie_of(request) or getattr(self.who(request)[0], "name", "")
        return hmac.new(self.secret.encode(), f"csrf {session}".encode(), hashlib.sha256).hexdigest()

    # --- forged requests ---

    async def form(self, request: Request, *, in_session: bool = True) -> dict[str, str]:
        """Return the fields of one of the page's forms. A program's bearer token needs no `csrf`.

        Args:
            in_session: False for a form that was opened by a link, which is itself the proof.

        Raises:
            HTTPException: 403 if another site sent it in the person's name; 400 or 413 if it is too large for a form.
        """
        is_bearer = bool(self.token_of(request))
        if not is_bearer and is_foreign(request):
            raise HTTPException(403, _NOT_YOURS)
        sent = await request.form(max_files=0, max_fields=_MOST_FIELDS)
        form = {name: text for name, text in sent.items() if isinstance(text, str)}
        given = form.get("csrf", "").encode()
        if in_session and not is_bearer and not hmac.compare_digest(given, self.csrf(request).encode()):
            raise HTTPException(403, _NOT_YOURS)
        return form


def bearer(request: Request) -> str | None:
    """Return the bearer token of a request; browsers never add one on their own."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def cookie_name(root: str, is_https: bool) -> str:
    """Return the name of a session's cookie: for https, a name that neither http nor another host can set."""
    return COOKIE if not is_https else f"__Host-{COOKIE}" if not root else f"__Secure-{COOKIE}"


def cookie_of(request: Request) -> str:
    """Return the cookie of a session; "" if there is none."""
    return request.cookies.get(cookie_name(root_of(request.scope), request.scope["scheme"] == "https"), "")


def is_foreign(request: Request) -> bool:
    """Whether a browser reports that another site has sent a request; the http and https pages are different sites."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    scheme, _, host = (origin or "").partition("://")
    is_other = origin is not None and (
        host != request.headers.get("Host") or (request.scope["scheme"] == "https" and scheme != "https")
    )
    return is_other or site not in (None, "same-origin", "none")


def _host(request: Request) -> str:
    return request.client.host if request.client else ""


def _ascii(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ip_address(text))
    return False
