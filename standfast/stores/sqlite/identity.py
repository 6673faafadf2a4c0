"""The identity of a SQLite store, and whether its file is a copy of the one that it was made in.

The file keeps the path and inode that it had when it was made, or when it was last found to be a copy. Another inode
means a copy: a file that is moved keeps it. The device is not kept, since its number changes when a machine is started
again. That is a reason to warn, not to refuse: a store that was put back from a backup, or moved to another disk, is a
copy, too, and has to go on under its identity.
"""

import logging
import os
import sqlite3
from contextlib import suppress

from standfast.stores.schema_versions import lost_identity


def identity(db: sqlite3.Connection, path: str) -> str:
    """Return the store's identity.

    Raises:
        StoreError: somebody has removed it.
    """
    row = db.execute("SELECT id FROM store_identity WHERE id > ''").fetchone()
    if row is None:
        raise lost_identity(path)
    return str(row[0])


def note_place(db: sqlite3.Connection, path: str) -> None:
    """Remember where the file is, and warn once if it is a copy."""
    with suppress(OSError, sqlite3.Error):  # a file that nobody may write to is read nevertheless
        inode = "" if path == ":memory:" else str(os.stat(path).st_ino)
        # A torn page reads as zeros, and a damaged file is left as it is.
        row = db.execute("SELECT path, inode FROM store_identity WHERE id > ''").fetchone()
        if row is None or row[1] == inode:
            return
        if row[1] is not None:
            logging.getLogger("standfast").warning(
                "The store %s is a copy of %s, or was put back from one. Both have one identity, so that nobody can "
                "tell them apart: if the other one is still in use, stop using one of them.",
                path,
                row[0],
            )
        db.execute("UPDATE store_identity SET path = ?, inode = ?", (path, inode))
