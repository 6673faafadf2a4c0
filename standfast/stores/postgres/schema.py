"""The schema of a PostgreSQL store: checks it, migrates it, and names its tables in statements."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from standfast.errors import StoreError
from standfast.stores.schema_versions import check_version, foreign, oldest_reader
from standfast.stores.tables import closed_error

if TYPE_CHECKING:
    from asyncpg import Connection


_TABLE = re.compile(r"@(?=[a-z])")


@lru_cache(maxsize=1_000)
def in_schema(schema: str, statement: str) -> str:
    """Return a statement in which `@` stands for a schema."""
    return _TABLE.sub(f'"{schema}".', statement)


def lock_key(*words: str) -> int:
    """Return the number of an advisory lock. The locks of a database share 64 bits."""
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


async def prepare(connection: "Connection", store: str, schema: str, migrations: tuple[str, ...]) -> None:
    """Check that a schema belongs to a store, or make it one, and migrate it to the newest version.

    Raises:
        StoreError: it belongs to another program or a newer version, or the database cannot store every text.
    """
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise StoreError(
            f"The store {store} cannot keep every text: its database has the encoding {encoding}; give a database "
            "with the encoding UTF8. Nothing was changed."
        )
    if await _version(connection, store, schema, len(migrations)) < len(migrations):
        async with connection.transaction(isolation="read_committed"):
            await _migrate(connection, store, schema, migrations)


async def _version(connection: "Connection", store: str, schema: str, newest: int) -> int:
    tables: Sequence[Any] = await connection.fetch(
        "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = $1 ORDER BY 1", schema
    )
    names = [name for (name,) in tables]
    if not names:
        return 0
    if "standfast_schema" not in names:
        raise foreign(store, names[0], "schema")
    if "store_closed" in names:
        raise closed_error(store, str(await closed_words(connection, schema)))
    query = "SELECT version, oldest_reader FROM @standfast_schema ORDER BY version DESC LIMIT 1"
    version, oldest = await connection.fetchrow(in_schema(schema, query)) or (0, None)
    check_version(store, version, oldest, newest)
    return int(version)


async def closed_words(connection: "Connection", schema: str) -> str | None:
    """Return the text with which a moved store is closed; None if it is open, or does not exist."""
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".store_closed'):
        return None
    return str(await connection.fetchval(in_schema(schema, "SELECT words FROM @store_closed")))


async def _migrate(connection: "Connection", store: str, schema: str, migrations: tuple[str, ...]) -> None:
    # Of several processes that begin at once, one migrates; the others find nothing left to do.
    await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_key("standfast migrations", schema))
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", f'"{schema}"'):
        await connection.execute(f'CREATE SCHEMA "{schema}"')  # first: even IF NOT EXISTS needs the right
    await connection.execute(
        in_schema(
            schema, "CREATE TABLE IF NOT EXISTS @standfast_schema (version bigint NOT NULL, oldest_reader bigint)"
        )
    )
    done = await _version(connection, store, schema, len(migrations))
    for version, script in enumerate(migrations[done:], done + 1):
        await connection.execute(in_schema(schema, script))
        await connection.execute(
            in_schema(schema, "INSERT INTO @standfast_schema (version, oldest_reader) VALUES ($1, $2)"),
            version,
            oldest_reader(migrations, version),
        )
