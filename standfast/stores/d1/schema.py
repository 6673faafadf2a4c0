"""The schema of the D1 store: its scripts, the check of a database, and its migration to the newest version.

A batch is one transaction, so a version exists entirely or not at all. The batch begins with the number of the version.
If two processes migrate at once, the batch refuses the second one, which then finds nothing left to do.
"""

import re

from standfast.errors import StoreError
from standfast.stores.d1.database import Database
from standfast.stores.d1.statements import Statement, statement
from standfast.stores.schema_versions import check_version, foreign, oldest_reader
from standfast.stores.sql.tables import NAMES
from standfast.stores.sqlite.migrations import MIGRATIONS as SQLITE
from standfast.stores.tables import closed_error

MIGRATIONS = (
    "".join(SQLITE[:9])
    + """
    CREATE TABLE holds (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL) STRICT, WITHOUT ROWID;
    ALTER TABLE gate_decisions ADD COLUMN write_key TEXT;
    CREATE UNIQUE INDEX gate_decisions_write ON gate_decisions (write_key) WHERE write_key IS NOT NULL;
    """,
    SQLITE[9]
    + """
    ALTER TABLE store_identity ADD COLUMN place TEXT;
    CREATE TABLE marks (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, at REAL NOT NULL) STRICT, WITHOUT ROWID;
    """,
    SQLITE[10],
    SQLITE[11],
    SQLITE[12],
)
"""One script per schema version; see `schema_versions`. A test has their digests. The first has the tables of the
SQLite store's first nine. Times in `holds` and `marks` are the database's, in seconds since 1970."""

_VERSIONS = "standfast_schema"
_MADE = re.compile(r"CREATE TABLE (\w+)")
_NEWEST = f"SELECT version, oldest_reader FROM {_VERSIONS} ORDER BY version DESC LIMIT 1"


async def prepare(db: Database, migrations: tuple[str, ...]) -> None:
    """Check that a database is a store, or make it one, and migrate it to the newest version.

    Raises:
        StoreError: it belongs to another program or a newer version, or lacks required tables.
    """
    done = await _version(db, migrations)
    if done >= len(migrations):
        return
    try:
        await db.batch(_scripts(migrations, done))
    except StoreError:
        if await _version(db, migrations) < len(migrations):  # else another process has migrated it in the meantime
            raise


async def closed_words(db: Database) -> str | None:
    """Return the text with which a moved store is closed; None if it is open, or does not exist."""
    if ("store_closed",) not in await db.one(statement(NAMES)):
        return None
    return str((await db.one(statement("SELECT words FROM store_closed")))[0][0])


async def _version(db: Database, migrations: tuple[str, ...]) -> int:
    tables = [name for (name,) in await db.one(statement(NAMES))]
    if not tables:
        return 0
    if _VERSIONS not in tables:
        raise foreign(db.name, tables[0], "database")
    if "store_closed" in tables:
        raise closed_error(db.name, str(await closed_words(db)))
    found = await db.one(statement(_NEWEST))
    version, oldest = found[0] if found else (0, None)
    check_version(db.name, version, oldest, len(migrations))
    needed = _MADE.findall("".join(migrations[:version]))
    missing = next((name for name in needed if name not in tables), None)
    if version == 0 or missing is not None:
        raise StoreError(
            f"The store {db.name} is only half there, such as a part of an export: it says that it has schema version "
            f"{version}, and lacks {'its version' if version == 0 else f'the table {missing}'}. Restore it to an "
            "earlier time (wrangler d1 time-travel), or give another database. Nothing was changed."
        )
    return int(version)


def _scripts(migrations: tuple[str, ...], done: int) -> list[Statement]:
    made = [
        statement(f"CREATE TABLE IF NOT EXISTS {_VERSIONS} (version INTEGER PRIMARY KEY, oldest_reader INTEGER) STRICT")
    ]
    for version, script in enumerate(migrations[done:], done + 1):
        made.append(
            statement(
                f"INSERT INTO {_VERSIONS} (version, oldest_reader) VALUES (:version, :oldest)",
                version=version,
                oldest=oldest_reader(migrations, version),
            )
        )
        made += [statement(part) for part in script.split(";") if part.strip()]
    return made
