"""Serves `/live` and `/ready` for process managers, such as Kubernetes.

A process is live if its event loop answers. A worker is ready if it polls, has its queue's store, reaches its server,
and was not asked to stop. Both endpoints answer 200, or 503 with the reason, as one line of text.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from standfast.cli.outputs import shown
from standfast.errors import InputError
from standfast.time_limits import time_limit

PATIENCE = 5.0  # time limit in seconds for a check, or a client

Check = Callable[[], Awaitable[str | None]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], loop: asyncio.AbstractEventLoop, checks: dict[str, Check]) -> None:
        super().__init__(address, _Handler)
        self._loop, self._checks = loop, checks

    def problem(self, path: str) -> str | None:
        """Return the fault, from a check in the worker's event loop or its error."""

        async def ask() -> str | None:
            async with time_limit(PATIENCE):
                return await self._checks[path]()

        asking: Future[str | None] = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return asking.result(PATIENCE + 1)
        except TimeoutError:
            asking.cancel()
            return f"no answer within {PATIENCE:g} s"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the client is gone."""


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: _Server

    def version_string(self) -> str:
        return "standfast"

    def do_GET(self) -> None:  # the name in the base class
        path = self.path.partition("?")[0]
        if path not in self.server._checks:
            status, text = 404, "There is /live and /ready"
        else:
            problem = self.server.problem(path)
            status, text = (200, "ok") if problem is None else (503, shown(problem.replace("\n", " ")))
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing: there is a request every few seconds."""


@contextmanager
def health(address: str | None, ready: Check) -> Iterator[str | None]:
    """Answer at `HOST:PORT` while the block runs, and yield the address with the actual port; do nothing for None.

    Args:
        ready: returns why the worker is not ready, or None if it is.

    Raises:
        InputError: the address cannot be used.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InputError(f"--health must be HOST:PORT, such as 0.0.0.0:8235, got {address!r:.80}")

    async def live() -> None:
        return None

    checks: dict[str, Check] = {"/live": live, "/ready": ready}
    try:
        server = _Server((host.strip("[]"), int(port)), asyncio.get_running_loop(), checks)
    except OSError as error:
        raise InputError(f"Cannot listen on {address}: {error.strerror or error}") from error
    thread = Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
