"""Real D1 databases: one workerd process for the whole run, and others that a test restarts."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from standfast.stores import D1Store, d1_store
from support.postgres import PostgresServer

ACCOUNT, TOKEN = "0123456789abcdef0123456789abcdef", "a-token-of-Cloudflare"
DATABASES = [f"0000-{number}" for number in range(20)]
LEASE = 3.0  # seconds
VERSION = "4.20260426.0"  # the newest for Node 20
_HERE = Path(__file__).parent
_MINIFLARE = _HERE.parent.parent / ".cache" / "miniflare"


def missing() -> str | None:
    """Return why there can be no D1 here; None if it is there, or has just been installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "Cloudflare's D1 runs in Node, which is missing: install Node 20 or later, with npm"
    if (_MINIFLARE / "node_modules" / "miniflare").is_dir():
        return None
    # Installed beside, and then moved at once: several processes of a test run may want it.
    _MINIFLARE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="miniflare-", dir=_MINIFLARE.parent) as folder:
        command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--no-save", f"miniflare@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"miniflare, which has Cloudflare's D1, cannot be installed by npm: {done.stderr[-500:]}"
        with contextlib.suppress(OSError):  # another process was quicker
            os.rename(folder, _MINIFLARE)
        Path(folder).mkdir(exist_ok=True)
    return None


class D1Server:
    """D1 behind Cloudflare's HTTP API on a loopback port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = PostgresServer.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._client = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, verify=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/client/v4"

    def start(self) -> None:
        script, databases = _HERE / "d1_server.mjs", self._folder / "databases"
        command = ["node", script, _MINIFLARE, str(self.port), databases, ACCOUNT, TOKEN, *DATABASES]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # with which it ends, if this process is killed
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Node starts workerd, which would outlive it
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", (self._folder / "log").read_text()

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None
        self._client.close()

    def new_database(self) -> str:
        """Return the id of an empty database: after `DATABASES` others, the first is emptied."""
        self._made += 1
        name = DATABASES[self._made % len(DATABASES)]
        if self._made > len(DATABASES):
            tables = self.sql(
                name, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_cf%' ESCAPE '\\'"
            )
            drops = [f"DROP TABLE {table['name']}" for table in tables if table["name"] != "agent_sessions"]
            self.sql(name, *drops, "DROP TABLE IF EXISTS agent_sessions")
        return name

    def sql(self, database: str, *statements: str) -> list[dict[str, Any]]:
        """Run statements in one transaction, and return the rows of the last one."""
        url = f"{self.url}/accounts/{ACCOUNT}/d1/database/{database}/query"
        asked = {"batch": [{"sql": one} for one in statements]}
        answer = self._client.post(url, json=asked).json()
        assert answer["success"], answer
        rows: list[dict[str, Any]] = answer["result"][-1]["results"]
        return rows

    def store(self, database: str | None = None, **options: Any) -> D1Store:
        """Return a store; in a new database unless one is given."""
        options = {"lease": LEASE, "base_url": self.url, **options}
        return d1_store(ACCOUNT, database or self.new_database(), TOKEN, **options)


@contextlib.contextmanager
def d1_server() -> Iterator[D1Server]:
    """Run a server while a block lasts; its files are in memory, since nothing here depends on a flush to disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="standfast-d1-", dir=memory if os.access(memory, os.W_OK) else None
    ) as folder:
        server = D1Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
