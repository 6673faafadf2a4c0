"""Identifies the senders of requests by the rules of `Access`, and keeps out those who signed out or guess tokens.

Ended sessions are in the store, so that they have ended for every process of the page, and after a restart.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from standfast.errors import StandfastError
from standfast.messages import visible
from standfast.stores.capabilities import has_ledger
from standfast.stores.protocol import AgentStore
from standfast.web.access import COOKIE, SESSION, Access, Person, bearer
from standfast.web.mounts import TEAMS_PATH, path_of, root_of

_LOG = logging.getLogger("standfast.web")


class TooManyAttempts(StandfastError):  # noqa: N818  # the name of an HTTP answer
    """Too many wrong attempts: the next one has to wait."""

    def __init__(self, wait: float) -> None:
        self.seconds = int(wait) + 1
        super().__init__(f"Too many wrong tokens came from your address: try again in {self.seconds} s.")


class Visitors:
    """Identifies the senders of requests; signs people in and out.

    Args:
        store: keeps the sessions that have ended; without a durable one, only this process knows them.
    """

    def __init__(self, access: Access, store: AgentStore | None) -> None:
        self.access = access
        self._store = store if has_ledger(store) else None
        self._ended: dict[str, float] = {}  # sessions, and when they ended
        self._attempts, self.rates = Attempts(), Rates()

    async def recognise(self, request: Request) -> Person | None:
        """Return the sender of a request, and keep the name with the request for `who`.

        Raises:
            TooManyAttempts: it has a token, and its address has sent too many wrong ones.
            StoreError: the store cannot say who has signed out.
        """
        state = request.scope.setdefault("state", {})
        state["person"] = None
        if bearer(request) is not None:
            self._check_attempts(request)
        person, session = self.access.who(request)
        if person is None and bearer(request) is not None:
            self._wrong(request)
        if person is not None and session and await self._has_ended(session):
            person = None
        state["person"] = person
        return person

    def sign_in(self, request: Request, token: str) -> Person | None:
        """Return the owner of a token; None if it is nobody's.

        Raises:
            TooManyAttempts: too many wrong tokens came from that address.
        """
        self._check_attempts(request)
        person = self.access.by_token(token)
        if person is None:
            self._wrong(request)
        else:
            _LOG.info("%s has signed in from %s", visible(person.name), visible(self.access.address(request)))
        return person

    async def sign_out(self, request: Request, response: Response) -> None:
        """End a session: its cookie is not valid any more."""
        session, person = self.access.read(request.cookies.get(COOKIE, ""))
        if person is not None:
            await self._end(session)
            _LOG.info("%s has signed out", visible(person.name))
        response.delete_cookie(COOKIE, path=root_of(request.scope) or "/")

    def _check_attempts(self, request: Request) -> None:
        if wait := self._attempts.wait(self.access.address(request)):
            raise TooManyAttempts(wait)

    def _wrong(self, request: Request) -> None:
        address = self.access.address(request)
        wrong = self._attempts.failed(address)
        wait = self._attempts.wait(address)
        after = f"; nobody there is listened to for {wait:.0f} s" if wait else ""
        _LOG.warning("A wrong token from %s, the %s in a row%s", visible(address), wrong, after)

    async def _end(self, session: str) -> None:
        if self._store is not None:
            await self._store.save_reply(_place(session), 0, datetime.now(UTC).isoformat())
            return
        now = time.monotonic()
        self._ended = {old: at for old, at in self._ended.items() if now - at < SESSION} | {session: now}

    async def _has_ended(self, session: str) -> bool:
        if self._store is not None:
            return await self._store.load_reply(_place(session), 0) is not None
        return session in self._ended


def who(request: Request) -> Person | None:
    """Return the sender of a request, once it was recognised."""
    person: Person | None = request.scope.get("state", {}).get("person")
    return person


def _place(session: str) -> str:
    return f"standfast.web/ended/{hashlib.sha256(session.encode()).hexdigest()}"


class Recognised:
    """Identifies the sender of a request before anything else happens."""

    def __init__(self, app: ASGIApp, visitors: Visitors, to_program: Callable[[Exception], Response]) -> None:
        self._app, self._visitors, self._to_program = app, visitors, to_program

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and not path_of(scope).startswith(("/static/", TEAMS_PATH)):
            try:
                await self._visitors.recognise(Request(scope))
            except TooManyAttempts as error:
                answer = self._to_program(_as_answer(error)) if is_door(scope) else refusal(error)
            except StandfastError as error:
                answer = (
                    self._to_program(error)
                    if is_door(scope)
                    else PlainTextResponse(f"Sign-ins cannot be checked now: {visible(str(error))}", 503)
                )
        await answer(scope, receive, send)


def is_door(scope: Scope) -> bool:
    """Whether a request is to a door for programs, which tells errors as JSON."""
    return path_of(scope).startswith(("/api/", "/v1/", "/agents/", "/mcp"))


def _as_answer(error: TooManyAttempts) -> HTTPException:
    return HTTPException(429, str(error), {"Retry-After": str(error.seconds)})


def refusal(error: TooManyAttempts) -> Response:
    return PlainTextResponse(str(error), 429, {"Retry-After": str(error.seconds)})


_FREE = 5  # wrong attempts without a wait
_LONGEST = 60.0  # seconds
_FORGOTTEN = 900.0  # seconds after the last one
_MOST = 10_000  # addresses that are remembered


class Attempts:
    """Counts wrong attempts by address; all addresses of one IPv6 network are one."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}  # how many, and when the last one was; the latest last

    def wait(self, address: str) -> float:
        """Return for how many seconds an address has to wait."""
        wrong, last = self._wrong.get(_network(address), (0, 0.0))
        if wrong < _FREE:
            return 0.0
        return max(0.0, last + min(2.0 ** (wrong - _FREE), _LONGEST) - time.monotonic())

    def failed(self, address: str) -> int:
        """Note a wrong attempt, and return how many there were."""
        network, now = _network(address), time.monotonic()
        wrong, last = self._wrong.pop(network, (0, now))
        wrong = 1 if now - last > _FORGOTTEN else wrong + 1
        if len(self._wrong) >= _MOST:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[network] = (wrong, now)
        return wrong


def _network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(int(found) >> 64) if isinstance(found, IPv6Address) and found.ipv4_mapped is None else address


class Rates:
    """Counts the requests of people who may send only so many a minute, at every page and door."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # how many requests somebody has left, and when that was

    def count(self, request: Request, person: Person) -> None:
        """Count a request, once however often it is asked.

        Raises:
            HTTPException: 429; it is one too many.
        """
        state = request.scope.setdefault("state", {})
        if person.per_minute is None or state.get("is_counted"):
            return
        state["is_counted"] = True
        now, most = time.monotonic(), float(person.per_minute)
        left, at = self._left.pop(person.name, (most, now))
        left = min(most, left + (now - at) * most / 60)
        if len(self._left) >= _MOST:
            del self._left[next(iter(self._left))]
        self._left[person.name] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if left < 1:
            wait = str(int((1 - left) * 60 / most) + 1)
            why = f"{person.name} may send {person.per_minute} requests a minute."
            raise HTTPException(429, why, {"Retry-After": wait})
