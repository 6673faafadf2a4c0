"""What the demo runs: a Temporal server, a chat and a mail server, and the application's worker, each a process."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from temporalio.client import Client

from activities import load_feed
from examples.sinks import Sinks
from standfast import InputError, StandfastError
from standfast.temporal import DevServer, Run, connect, dev_server
from standfast.testing import child_process

ROOT = Path(__file__).parents[2]
WEBHOOK_DELAY = 2.0  # seconds between taking a post and answering: in between, a worker can be killed
MARK = "demo.lock"  # in a folder that the demo made; held while one runs in it


class World:
    """The processes of one demo; `worker` is the last one that was started."""

    def __init__(self, folder: Path, server: DevServer, client: Client, sinks: Sinks) -> None:
        self.folder, self.server, self.client, self.sinks = folder, server, client, sinks
        self.store = folder / "standfast.db"
        self.log = folder / "worker.log"
        self.worker: Process | None = None
        self._environment = {
            **server.environment(),
            **sinks.settings,
            "STANDFAST_STORE": str(self.store),
            "STANDFAST_ISSUES": str(folder / "issues.db"),
            "STANDFAST_TASK_QUEUE": "standfast",
        }
        self._workers = contextlib.AsyncExitStack()

    async def start_worker(self) -> Process:
        """Start `worker.py`, and return when it is ready.

        Raises:
            StandfastError: it ended before it was.
        """
        with self.log.open("ab") as log:
            begin = log.tell()
            command = (sys.executable, ROOT / "worker.py")
            running = child_process(*command, environment=self._environment, output=log, patience=60)
            self.worker = await self._workers.enter_async_context(running)
        while b" is ready\n" not in self.log.read_bytes()[begin:]:
            self.check_worker()
            await asyncio.sleep(0.02)
        return self.worker

    async def kill_worker(self) -> None:
        """Kill the worker as an operating system out of memory would, and return when it is dead."""
        assert self.worker is not None
        self.worker.kill()
        await self.worker.wait()
        self.worker = None

    def check_worker(self) -> None:
        """Raise if the worker has ended unexpectedly."""
        if self.worker is not None and self.worker.returncode is not None:
            said = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise StandfastError(f"The worker ended with code {self.worker.returncode}: {''.join(said)} ({self.log})")

    async def stop_workers(self) -> None:
        """Let them finish what they run, and end."""
        await self._workers.aclose()

    def model(self) -> str:
        """Return what the worker said of its model."""
        lines = [line.partition("Model: ")[2] for line in self.log.read_text().splitlines() if "Model: " in line]
        return lines[-1] if lines else "unknown"

    def posts(self, issue: str) -> list[str]:
        """Return the idempotency keys of the posts about an issue, from where they arrived: one key for each call."""
        return [post["idempotency_key"] for post in self.sinks.posts() if issue in post["text"]]

    def mails(self, issue: str) -> int:
        """Count the mails about an issue where they arrived."""
        return sum(issue in mail["subject"] for mail in self.sinks.mails())

    def page(self, run: Run) -> str:
        """Return the address of a run in Temporal Web."""
        return f"{self.server.ui_url}/namespaces/{self.server.namespace}/workflows/{run.id.replace('/', '%2F')}"

    def temporal(self, command: str) -> str:
        """Return a `temporal` command as it can be typed here."""
        name = "temporal" if shutil.which("temporal") else shown(Path(sys.executable).with_name("temporal"))
        return f"{name} {command} --address {self.server.address}"


@contextlib.asynccontextmanager
async def open_world(folder: Path, port: int | None = None, ui_port: int | None = None) -> AsyncIterator[World]:
    """Start everything but a worker, with new data in `folder`; at the end stop everything, the workers first.

    Args:
        port, ui_port: None for the usual ones, or free ones if they are in use.

    Raises:
        StandfastError: a part cannot be started.
    """
    with _fresh(folder):
        load_feed(folder / "issues.db")
        async with (
            dev_server(
                ui=True,
                db_filename=folder / "temporal.db",
                log_file=folder / "temporal.log",
                port=_usual(7233) if port is None else port,
                ui_port=_usual(8233) if ui_port is None else ui_port,
            ) as server,
            _sinks(folder / "sinks") as sinks,
        ):
            # What the environment says is meant for other servers.
            client = await connect(server.address, namespace=server.namespace, tls=False, api_key=None)
            world = World(folder, server, client, sinks)
            try:
                yield world
            finally:
                await world.stop_workers()


def shown(path: Path) -> str:
    """Return a path as short as it can be given here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """Empty a folder of the demo and keep others out of it.

    Raises:
        InputError: it is somebody else's, or in use.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise InputError(
            f"{shown(folder)} is not a folder of the demo, which would empty it: give --folder another one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / MARK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"Another demo runs in {shown(folder)}: stop it, or give --folder another one") from None
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != MARK:
                entry.unlink()
        yield


def _usual(port: int) -> int:
    """Return the port if it is free, else 0 for any that is."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return 0
        return port


@contextlib.asynccontextmanager
async def _sinks(folder: Path) -> AsyncIterator[Sinks]:
    command = (sys.executable, "-m", "examples.sinks", "--dir", folder, "--webhook-delay", str(WEBHOOK_DELAY))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    async with child_process(*command, environment=environment, output=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
        if not all(lines):
            raise StandfastError("The chat and mail servers did not start; what they said stands above")
        settings = dict(line.split("=", 1) for line in lines)
        yield Sinks(settings["STANDFAST_WEBHOOK_URL"], settings["STANDFAST_SMTP"], folder)
