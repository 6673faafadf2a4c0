"""A PostgreSQL server on disk: the tests' server, with the default flush settings."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.postgres import PostgresServer, versions  # type: ignore[import-not-found]  # not a path of mypy


@contextlib.contextmanager
def database(folder: Path) -> Iterator[tuple[str, Callable[[], int], int]]:
    """Run a server; yield its database's address, a transaction counter, and its process id."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=folder) as name:
        for path in (Path(name), folder):
            path.chmod(0o755)  # its user is another
        server = PostgresServer(versions()[0], Path(name), "-c", "fsync=on")
        server.start()
        try:
            yield server.dsn(), lambda: int(server.sql("SELECT sum(xact_commit) FROM pg_stat_database")), server.pid
        finally:
            server.stop()
