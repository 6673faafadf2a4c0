"""The rule of schema versions for every SQL store: which versions of standfast may use a database.

A store has one script per schema version, applied in order and never edited. A version of standfast can still use a
database with a script that it does not know, so that a deploy can be rolled back: scripts add new tables, and columns
that are NULL or have a default. A script that breaks this begins with `-- breaking`.
"""

from standfast.errors import StoreError

_BREAKING = "-- breaking"


def oldest_reader(migrations: tuple[str, ...], version: int) -> int:
    """Return the oldest version that code must know to use a database of this version."""
    breaking = [
        number for number, script in enumerate(migrations[:version], 1) if script.lstrip().startswith(_BREAKING)
    ]
    return max(breaking, default=1)


def check_version(store: str, version: int, oldest: int | None, newest: int) -> None:
    """Refuse a database of a version that this code cannot use.

    Args:
        oldest: the `oldest_reader` that the database names; None if it does not name one.
        newest: the newest version that this code knows.

    Raises:
        StoreError: this code cannot use it.
    """
    if version > newest and (oldest is None or oldest > newest):
        raise StoreError(
            f"The store {store} has schema version {version}, written by a newer standfast; this one knows {newest}. "
            "Upgrade standfast. Nothing was changed."
        )


def foreign(store: str, table: str, instead: str) -> StoreError:
    """Return the error for a database that is not a store, by one of its tables."""
    return StoreError(
        f"The store {store} is the database of another program (it has the table {table!r}); give another "
        f"{instead}. Nothing was changed."
    )


def lost_identity(store: str) -> StoreError:
    """Return the error for a store whose identity was removed."""
    return StoreError(f"The store {store} has lost its identity, the row of its table store_identity: put the row back")
