"""Opens a store by its address, as commands and environment variables name it."""

import os
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from standfast.errors import InputError
from standfast.stores.postgres import PostgresStore, postgres_store
from standfast.stores.sqlite import SQLiteStore, sqlite_store

_POSTGRES = ("postgresql", "postgres")
_SCHEMA = "schema"


def open_store(address: str | os.PathLike[str]) -> SQLiteStore | PostgresStore:
    """Return the store at an address: the path of a SQLite file, or `postgresql://user:password@host/database`.

    `?schema=name` at the end of the second names the schema, which is "standfast" otherwise; further parameters are
    those of a PostgreSQL address. Nothing is opened or made before the store is used.

    Raises:
        InputError: it is the address of something else.
    """
    where = os.fspath(address)
    scheme, separator, _ = where.partition("://")
    if not separator:
        return sqlite_store(where)
    if scheme not in _POSTGRES:
        raise InputError(
            f"A store is the path of a SQLite file or postgresql://…, and not {scheme[:20]}://…"
        )  # what follows may be a password
    parts = urlsplit(where)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schemas = [value for name, value in query if name == _SCHEMA]
    kept = urlencode([(name, value) for name, value in query if name != _SCHEMA])
    dsn = urlunsplit(parts._replace(query=kept))
    return postgres_store(dsn, schema=schemas[-1]) if schemas else postgres_store(dsn)
