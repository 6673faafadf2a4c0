"""A PostgreSQL store's address, and a connection to it in the form that the store's statements use."""

import os
import re
import socket
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from standfast.errors import InputError, StoreError
from standfast.extras import MissingExtraError, install
from standfast.stores.kept_values import with_nul, without_nul
from standfast.stores.postgres.schema import in_schema
from standfast.stores.sql.dialect import Dialect, Query, RefusedByGuardError, Row

if TYPE_CHECKING:
    from asyncpg import Connection

T = TypeVar("T")

CONNECT = 10.0  # seconds that a new connection may take
# Both sides notice within 11 s that the other machine is gone, instead of after hours.
IDLE, INTERVAL, PROBES = 5, 2, 3
SETTINGS = {
    "tcp_keepalives_idle": str(IDLE),
    "tcp_keepalives_interval": str(INTERVAL),
    "tcp_keepalives_count": str(PROBES),
    "tcp_user_timeout": str((IDLE + INTERVAL * PROBES) * 1000),
    "default_transaction_isolation": "read committed",  # the isolation level that our statements are made for
    "idle_session_timeout": "0",
}
# A setting that this server version lacks is left out. Acknowledged writes are on disk.
SET_UP = """
    SELECT set_config(s.name, w.value, false) FROM pg_catalog.pg_settings AS s
      JOIN unnest($1::text[], $2::text[]) AS w (name, value) ON s.name = w.name
    UNION ALL
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a store. `name` is for messages, and does not contain a password."""

    dsn: str
    schema: str
    name: str
    max_connections: int

    async def connect(self) -> "Connection":
        """Return a connection outside the pool."""
        import asyncpg

        connection = await self.reading_address(asyncpg.connect(self.dsn, timeout=CONNECT, server_settings=NAME))
        with dropped_on_error(connection):
            await set_up(connection)
        return connection

    async def reading_address(self, work: Awaitable[T]) -> T:
        """Await work that reads the address first. An address error does not show the address, which contains a
        password.

        Raises:
            StoreError: the address cannot be read.
        """
        try:
            return await work
        except ValueError:
            raise StoreError(
                f"The address of the store {self.name} cannot be read; write it as postgresql://user:password@host/"
                "database, and @ : / ? # and % in a password as %40 %3A %2F %3F %23 %25"
            ) from None


def checked_address(dsn: str, schema: str, max_connections: int) -> Address:
    """Return the checked address of a store.

    Raises:
        ImportError: asyncpg is not installed.
        InputError: the address or the schema cannot be used.
    """
    try:
        import asyncpg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"postgres_store needs asyncpg: {install('postgres')}") from error
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InputError(f"schema must be 1 to 63 of a-z 0-9 _ and begin with a letter or _, got {schema!r:.80}")
    if not isinstance(max_connections, int) or max_connections < 1:
        raise InputError(f"max_connections must be a number from 1 on, got {max_connections!r:.80}")
    # Not shown: a malformed address may still be a password.
    if not isinstance(dsn, str) or not dsn.startswith(("postgresql://", "postgres://")) or "\0" in dsn:
        raise InputError("postgres_store needs an address such as postgresql://user:password@host/database")
    return Address(dsn, schema, f"{_place(dsn)}, schema {schema}", max_connections)


def _place(dsn: str) -> str:
    """Return an address without user, password and options, which may also be a password."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2] or "".join(parse_qs(parts.query).get("host", []))
    # An unescaped / ? or # in a password would end the host part early.
    return "an address with an unescaped password" if "@" in parts.path else f"postgresql://{host}{parts.path}"


NAME = {"application_name": "standfast"}


@contextmanager
def dropped_on_error(connection: "Connection") -> Iterator[None]:
    """Drop a connection that its caller will not get, because of an error or a cancel."""
    try:
        yield
    except BaseException:
        connection.terminate()
        raise


async def set_up(connection: "Connection") -> None:
    """Set up a new connection on both of its sides."""
    await connection.fetch(SET_UP, list(SETTINGS), list(SETTINGS.values()))
    sock = _socket_of(connection)
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": IDLE, "TCP_KEEPINTVL": INTERVAL, "TCP_KEEPCNT": PROBES}
    options["TCP_USER_TIMEOUT"] = (IDLE + INTERVAL * PROBES) * 1000
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def forget(connection: "Connection | None") -> None:
    """Drop an inherited connection in a forked process without a message to the server: the parent owns it.

    Its descriptor is kept, so that a later close does not close another file.
    """
    sock = _socket_of(connection)
    if sock is not None and sock.fileno() >= 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, sock.fileno())
        os.close(nothing)


def _socket_of(connection: "Connection | None") -> Any:
    transport = getattr(connection, "_transport", None)
    return None if transport is None else transport.get_extra_info("socket")


class Database:
    """A connection for the store's statements: `@` stands for the schema, and texts may contain NUL."""

    def __init__(self, connection: "Connection", schema: str) -> None:
        self._connection, self._schema = connection, schema
        self.transaction = connection.transaction

    async def rows(self, statement: str, *values: Any) -> list[Row]:
        """Return the rows of a statement; one round trip."""
        found = await self._connection.fetch(in_schema(self._schema, statement), *map(without_nul, values))
        return [tuple(map(with_nul, row)) for row in found]

    async def row(self, statement: str, *values: Any) -> Row | None:
        """Return the first row, or None."""
        found = await self.rows(statement, *values)
        return found[0] if found else None

    def rest(self) -> "Connection":
        return self._connection


async def rows_of(db: Database, dialect: Dialect, queries: Sequence[Query]) -> list[list[Row]]:
    """Return the rows of statements, within a transaction."""
    found = []
    for statement, values in map(dialect.in_order, queries):
        found.append(await db.rows(statement.sql, *values))
        if statement.is_guard and not found[-1][0][0]:
            raise RefusedByGuardError
    return found


async def batch_of(db: Database, dialect: Dialect, queries: Sequence[Query]) -> list[list[Row]]:
    """Return the rows of statements that run in one transaction."""
    async with db.transaction():
        return await rows_of(db, dialect, queries)
