"""Serves the page over HTTP, so that no slow, greedy or faulty client blocks the others."""

import asyncio
import logging
import time
from contextlib import nullcontext
from typing import Any, cast

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_WITHIN = 20.0  # seconds from the beginning of a connection, or the last answer, to the end of a request's body
TAKEN_WITHIN = 30.0  # seconds in which a client must read the written data, if it does not fit into buffers
MOST = 256  # connections
_SPARE = 32  # extra connections, only for health checks
_SAME_EVERY = 60.0  # seconds between two identical lines of the log
_REMEMBERED = 1_000  # lines


def server_of(app: ASGIApp) -> uvicorn.Server:
    """Return a server of the page that does not handle the signals of its process."""
    config = uvicorn.Config(
        app,
        http=_Connection,  # its parser is h11, even if others are installed
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    return server


class _Connection(H11Protocol):
    """A connection that is closed if its client is too slow; with too many, the longest silent one is closed.

    If all of them are being answered, a new one can still ask for the page's health.
    """

    idle_since: float | None = None  # while no complete request is being answered
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MOST:
            ours = cast("set[_Connection]", self.connections)
            idle = [(one.idle_since, id(one), one) for one in ours if one.idle_since is not None]  # at least this one
            longest = min(idle)[2]
            if longest is self and len(self.connections) <= MOST + _SPARE:
                self.app = _Busy(self.app)
            else:
                longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self.idle_since = time.monotonic()
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self.loop.call_later(READ_WITHIN, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # the application learns that the client is gone
            self.transport.close()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return
        self.idle_since = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def on_response_complete(self) -> None:
        if not self.transport.is_closing() and self.conn.their_state is h11.DONE:
            self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(TAKEN_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


class _Busy:
    """Answers for an application that has too many connections; only health checks are possible."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_asked = str(scope.get("path", "")).endswith("/healthz")
        answer = PlainTextResponse("Too many connections are open.", 503, {"Retry-After": "1", "Connection": "close"})
        await (self._app if is_asked else answer)(scope, receive, send)


class Sparing(logging.Filter):
    """Lets a line into the log once a minute, with its count: a client that repeats a fault must not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[Any, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        at = None if error is None else _raised_at(error)
        key = (record.name, record.getMessage() if error is None else record.msg, type(error), at)
        since, more = self._seen.pop(key, (-_SAME_EVERY, 0))
        is_due = record.created - since >= _SAME_EVERY
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (record.created, 0) if is_due else (since, more + 1)
        if is_due and more:
            record.msg, record.args = f"{record.getMessage().rstrip()} ({more:,} more of these since the last)", ()
        return is_due


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """Return the place in the code at which an exception was raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
