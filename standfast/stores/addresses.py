"""Opens a store by its address, as given in commands and environment variables."""

import os
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from standfast.errors import InputError
from standfast.stores.d1 import D1Store, d1_store
from standfast.stores.postgres import PostgresStore, postgres_store
from standfast.stores.sqlite import SQLiteStore, sqlite_store

_POSTGRES = ("postgresql", "postgres")
_SCHEMA = "schema"
D1_TOKEN = "CLOUDFLARE_API_TOKEN"


def open_store(address: str | os.PathLike[str]) -> SQLiteStore | PostgresStore | D1Store:
    """Return the store at an address: a SQLite file's path, `postgresql://user:password@host/database`, or `d1://…`.

    `?schema=name` at the end of a PostgreSQL address names the schema; the default is "standfast". Further parameters
    are those of a PostgreSQL address. A D1 address is `d1://ACCOUNT/DATABASE`, with the ids of a Cloudflare account and
    of its database; the API token is in CLOUDFLARE_API_TOKEN. Nothing is opened or created before the store is used.

    Raises:
        InputError: the address is of another kind, or the token is missing.
    """
    where = os.fspath(address)
    scheme, separator, _ = where.partition("://")
    if not separator:
        return sqlite_store(where)
    if scheme == "d1":
        return _d1(where)
    if scheme not in _POSTGRES:
        raise InputError(
            f"A store is the path of a SQLite file, postgresql://… or d1://…, and not {scheme[:20]}://…"
        )  # the rest may be a password
    parts = urlsplit(where)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schemas = [value for name, value in query if name == _SCHEMA]
    kept = urlencode([(name, value) for name, value in query if name != _SCHEMA])
    dsn = urlunsplit(parts._replace(query=kept))
    return postgres_store(dsn, schema=schemas[-1]) if schemas else postgres_store(dsn)


def _d1(where: str) -> D1Store:
    account, separator, database = where.removeprefix("d1://").partition("/")
    if not (account and separator and database) or not {"/", "@", "?", ":"}.isdisjoint(database + account):
        # Not shown: it may be a misplaced token.
        raise InputError(
            f"A store in D1 is d1://ACCOUNT/DATABASE, with the ids of both; its API token is given as {D1_TOKEN}"
        )
    token = os.environ.get(D1_TOKEN)
    if not token:
        raise InputError(
            f"A store in D1 needs the API token of its Cloudflare account: set {D1_TOKEN}, or for the "
            f"commands {D1_TOKEN}_FILE to the path of a file that has it"
        )
    return d1_store(account, database, token)
