"""Identifies the senders of requests by the rules of `Access`, and rejects people who signed out or guess tokens.

Ended sessions are in the store, so that they have ended for every process of the page, even after a restart.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from standfast.errors import StandfastError
from standfast.messages import visible
from standfast.stores.protocol import AgentStore, has_ledger
from standfast.web.identity.people import SESSION, Access, Person, cookie_name, cookie_of
from standfast.web.serving.mounts import TEAMS_PATH, path_of, root_of

AT_ONCE = 64  # requests of one person; `servers` has several times as many connections
_LOG = logging.getLogger("standfast.web")


class TooManyAttempts(StandfastError):  # noqa: N818  # the name of an HTTP answer
    """Too many wrong attempts: the next one must wait."""

    def __init__(self, wait: float) -> None:
        self.seconds = int(wait) + 1
        super().__init__(f"Too many wrong tokens came from your address: try again in {self.seconds} s.")


class Visitors:
    """Identifies the senders of requests; signs people in and out.

    Args:
        store: keeps the sessions that have ended; without a durable store, only this process knows them.
    """

    def __init__(self, access: Access, store: AgentStore | None) -> None:
        self.access = access
        self._store = store if has_ledger(store) else None
        self._ended: dict[str, float] = {}  # sessions, and the times when they ended
        self._attempts, self.rates = Attempts(), Rates()

    async def recognise(self, request: Request) -> Person | None:
        """Return the sender of a request, and keep the name with the request for `who`.

        Raises:
            TooManyAttempts: it has a wrong token, and its address has sent too many.
            StoreError: the store cannot report who has signed out.
        """
        state = request.scope.setdefault("state", {})
        state["person"] = None
        person, session = self.access.who(request)
        if person is None and (token := self.access.token_of(request)) is not None:
            self._wrong(request, token)
        if person is not None and session and await self._has_ended(session):
            person = None
        state["person"] = person
        return person

    def sign_in(self, request: Request, token: str) -> Person | None:
        """Return the owner of a token; None if it has no owner.

        Raises:
            TooManyAttempts: it has no owner, and too many wrong tokens came from that address.
        """
        person = self.access.by_token(token)
        if person is None:
            self._wrong(request, token)
        else:
            _LOG.info("%s has signed in from %s", visible(person.name), visible(self.access.address(request)))
        return person

    async def sign_out(self, request: Request, response: Response) -> None:
        """End a session: its cookie becomes invalid."""
        session, person = self.access.read(cookie_of(request))
        if person is not None:
            await self._end(session)
            _LOG.info("%s has signed out", visible(person.name))
        root, is_https = root_of(request.scope), request.scope["scheme"] == "https"
        options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": is_https}
        response.delete_cookie(cookie_name(root, is_https), path=root or "/", **options)

    def _wrong(self, request: Request, token: str) -> None:
        """Note a wrong token. Right tokens from the same address are not affected."""
        address = self.access.address(request)
        if wait := self._attempts.wait(address, token):
            raise TooManyAttempts(wait)
        wrong = self._attempts.failed(address, token)
        wait = self._attempts.wait(address, token)
        after = f"; wrong tokens from there are ignored for {wait:.0f} s" if wait else ""
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
    """Return the sender of a request, after its recognition."""
    person: Person | None = request.scope.get("state", {}).get("person")
    return person


def _place(session: str) -> str:
    return f"standfast.web/ended/{hashlib.sha256(session.encode()).hexdigest()}"


class Recognised:
    """Identifies the sender of a request before any other processing."""

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
    """Whether a request is to an endpoint for programs, which reports errors as JSON."""
    return path_of(scope).startswith(("/api/", "/v1/", "/agents/", "/mcp"))


def _as_answer(error: TooManyAttempts) -> HTTPException:
    return HTTPException(429, str(error), {"Retry-After": str(error.seconds)})


def refusal(error: TooManyAttempts) -> Response:
    return PlainTextResponse(str(error), 429, {"Retry-After": str(error.seconds)})


class InFlight:
    """Limits a person's concurrent requests, which leaves connections for everyone else."""

    def __init__(self, app: ASGIApp, to_program: Callable[[Exception], Response]) -> None:
        self._app, self._to_program, self._open = app, to_program, Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        person = who(Request(scope)) if scope["type"] == "http" else None
        if person is None:
            await self._app(scope, receive, send)
        elif self._open[person.name] >= AT_ONCE:
            why = f"{person.name} already has {AT_ONCE} requests in progress."
            error = HTTPException(429, why, {"Retry-After": "1"})
            answer = self._to_program(error) if is_door(scope) else PlainTextResponse(why, 429, error.headers)
            await answer(scope, receive, send)
        else:
            self._open[person.name] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._open[person.name] -= 1
                if not self._open[person.name]:
                    del self._open[person.name]


_FREE = 5  # wrong attempts without a wait
_LONGEST = 60.0  # seconds
_FORGOTTEN = 900.0  # seconds after the last one
_MOST = 10_000  # addresses, and their tokens, that are remembered


class Attempts:
    """Counts wrong attempts by address and token, and wrong tokens by address; one IPv6 network is one address.

    So a program that repeats one wrong token slows down only itself, and guessing slows down the address.
    """

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, str], tuple[int, float]] = {}  # count and last time, latest last

    def wait(self, address: str, token: str) -> float:
        """Return the number of seconds for which a wrong token of an address must wait."""
        return max(self._wait(key) for key in _keys(address, token))

    def _wait(self, key: tuple[str, str]) -> float:
        wrong, last = self._wrong.get(key, (0, 0.0))
        if wrong < _FREE:
            return 0.0
        return max(0.0, last + min(2.0 ** (wrong - _FREE), _LONGEST) - time.monotonic())

    def failed(self, address: str, token: str) -> int:
        """Note a wrong attempt, and return the number of attempts with this token, or the number of tokens."""
        of_token, of_address = _keys(address, token)
        is_new = of_token not in self._wrong
        counts = [self._count(of_token)]
        if is_new:
            counts.append(self._count(of_address))
        return max(counts)

    def _count(self, key: tuple[str, str]) -> int:
        now = time.monotonic()
        wrong, last = self._wrong.pop(key, (0, now))
        wrong = 1 if now - last > _FORGOTTEN else wrong + 1
        if len(self._wrong) >= _MOST:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[key] = (wrong, now)
        return wrong


def _keys(address: str, token: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the keys of a token at an address, and of the address."""
    network = _network(address)
    return (network, hashlib.sha256(token.encode()).hexdigest()), (network, "")


def _network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(int(found) >> 64) if isinstance(found, IPv6Address) and found.ipv4_mapped is None else address


class Rates:
    """Counts the requests of people with a limit per minute, on every page and endpoint."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # a person's remaining requests, and the time of that count

    def count(self, request: Request, person: Person) -> None:
        """Count a request, once however often this is called.

        Raises:
            HTTPException: 429; it exceeds the limit.
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
