"""Checks the address of a PostgreSQL store, and derives a name without a password."""

import re
from urllib.parse import parse_qs, urlsplit

from standfast.errors import InputError
from standfast.extras import MissingExtraError, install
from standfast.stores.postgres.database import Address

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


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
