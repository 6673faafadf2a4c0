"""Machines: workers that share nothing but a PostgreSQL store and a Temporal server, each behind its own link.

A machine has a folder, a host name and an address. The two servers are behind links, ports at that address, so a
machine can be cut off from both while its workers live. Where a user may have namespaces, each worker sees its own
processes alone, so workers of two machines have the same process id. Effects are counted by a `Sink`, which no link
leads to: they happen in the world, even if processes are cut off from each other.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from acceptance.temporal_worker import Outside, append
from standfast import Happened, NotHappened, ToolContext
from standfast.runtime.processes import dying_with_parent

TESTS = Path(__file__).parents[1]
HERE = "127.0.0.1"


class Link:
    """A port at a machine's address behind which a server of another machine is."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._to = host, port
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @asynccontextmanager
    async def leading(self) -> AsyncIterator["Link"]:
        listening = await asyncio.start_server(self._serve, self._host, self.port)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listening.close()
            self.cut()
            while self._open:
                await asyncio.sleep(0)

    def cut(self) -> None:
        """End all connections; new ones are refused until `mend`."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self._open.add(writer)
        there = None
        try:
            with contextlib.suppress(OSError):
                from_there, there = await asyncio.open_connection(HERE, self._to)
                self._open.add(there)
                await asyncio.gather(_carry(reader, there), _carry(from_there, writer))
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
                    self._open.discard(end)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side has gone: so does the other


class Sink:
    """What the world sees of the workers: the effects of calls and their amounts, written to `effects.txt` and
    `amounts.txt`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._effects = folder, set[str]()
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Sink"]:
        listening = await asyncio.start_server(self._serve, HERE, 0)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        what, _, call = (await reader.readline()).decode().strip().partition(" ")
        if what in ("effects", "amounts"):
            append(self._folder / f"{what}.txt", call)
        if what == "effects":
            self._effects.add(call)
        writer.write(b"yes\n" if call in self._effects else b"no\n")
        writer.close()


class Remote(Outside):
    """An application on a machine: its effects are the sink's."""

    def __init__(self, name: str, pace: float, sink: int) -> None:
        super().__init__(Path(), name, pace)
        self._sink = sink

    def _tell(self, what: str, call: str) -> bool:
        """Tell the sink of a call; whether it has had an effect."""
        with socket.create_connection((HERE, self._sink), timeout=30) as told:
            told.sendall(f"{what} {call}\n".encode())
            return told.makefile().readline() == "yes\n"

    def count(self, what: str, call: str) -> None:
        if what in ("effects", "amounts"):
            self._tell(what, call)

    async def look_into_the_books(self, ctx: ToolContext) -> Happened | NotHappened:
        call = ctx.tool_call_id
        return Happened(f"did {call}") if self._tell("look", call) else NotHappened()


class Machine:
    """A machine with an address, a folder, and links to the servers.

    Args:
        temporal, postgres: the servers' ports.
    """

    def __init__(self, folder: Path, address: str, *, temporal: int, postgres: int) -> None:
        self._folder, self._address = folder, address
        self._temporal, self._postgres = Link(address, temporal), Link(address, postgres)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Machine"]:
        self._folder.mkdir()
        async with self._temporal.leading(), self._postgres.leading():
            yield self

    def cut_off(self) -> None:
        for link in (self._temporal, self._postgres):
            link.cut()

    def mend(self) -> None:
        for link in (self._temporal, self._postgres):
            link.mend()

    async def worker(self, name: str, application: str, queue: str, **environment: str) -> "WorkerProcess":
        """Start `standfast worker`, and return when it is ready.

        Args:
            name: of its host.
            environment: of the application, which also has the address of its store in `STORE`.
        """
        (self._folder / "app.py").write_text(application)
        store = f"postgresql://standfast@{self._address}:{self._postgres.port}/postgres?sslmode=disable"
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *dying_with_parent([*_as_host(name), sys.executable, "-m", "standfast", "worker", "app.py"]),
                *("--task-queue", queue, "--address", f"{self._address}:{self._temporal.port}"),
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(TESTS), "STORE": store, **environment},
                stdout=output,
                stderr=output,
            )
        worker = WorkerProcess(name, process, log)
        try:
            await worker.until(f"on queue {queue} is ready")
        except BaseException:  # no one else knows of it
            await worker.kill()
            raise
        return worker


@cache
def _has_namespaces() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


_UNSHARE = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


def _as_host(name: str) -> list[str]:
    """Return the beginning of a command line: what follows runs on a host of this name, if that can be."""
    if not _has_namespaces():
        return []
    return [str(shutil.which("unshare")), *_UNSHARE[1:], "sh", "-c", 'hostname "$0" && exec "$@"', name]


class EndedError(AssertionError):
    """A worker has ended; with its output."""


class WorkerProcess:
    """The command `standfast worker`, and what it has printed."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    @property
    def pid(self) -> int:
        """The worker's own process, which may be a child of the one that gave it its host."""
        if not _has_namespaces():
            return self._process.pid
        (child,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(child)

    @property
    def identity(self) -> str:
        """Its name at the Temporal server."""
        return f"1@{self.name}" if _has_namespaces() else f"{self.pid}@{socket.gethostname()}"

    async def until(self, text: str) -> None:
        """Wait until it has printed a line.

        Raises:
            EndedError: it has ended before.
        """
        async with asyncio.timeout(60):
            while not any(text in line for line in self.lines):
                if self._process.returncode is not None:
                    raise EndedError(self._log.read_text())
                await asyncio.sleep(0.02)

    def send(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    async def kill(self) -> None:
        """Kill it without notice, and return when it is dead."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, ValueError, FileNotFoundError):  # it has just ended
                self.send(signal.SIGKILL)
        await self._process.wait()

    def begun(self, what: str) -> int:
        return sum(line.startswith(f"begins {what}") for line in self.lines)
