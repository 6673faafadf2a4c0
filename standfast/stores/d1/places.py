"""Detects when a D1 database was restored to an earlier time, which nothing in the database can tell.

Each event loop that has looked counts in its own row, and remembers the number. A smaller number in the row, or a
missing row, means that the database was restored. The database then gets a new place id, which every later look finds.
"""

import contextlib
import time
from uuid import uuid4

from standfast.errors import StoreError
from standfast.stores.d1.database import Database
from standfast.stores.d1.statements import statement
from standfast.stores.schema_versions import lost_identity

EVERY = 60.0  # seconds between two numbers of a loop that keeps running
_CLOCK = "unixepoch('now', 'subsec')"
_CHANGE = (
    "UPDATE store_identity SET place = :new WHERE place IS NULL"
    " OR coalesce((SELECT number FROM marks WHERE owner = :owner), 0) < :known"
)
_COUNT = (
    f"INSERT INTO marks (owner, number, at) VALUES (:owner, :next, {_CLOCK}) ON CONFLICT (owner) DO UPDATE"
    " SET number = max(number, excluded.number), at = excluded.at"
)
_LOOK = "SELECT place FROM store_identity"
_FORGET = "DELETE FROM marks WHERE owner = :owner"
_FORGET_OLD = f"DELETE FROM marks WHERE at < {_CLOCK} - 30 * 86400"  # of processes that were killed


class Place:
    """An event loop's knowledge of the place of a database's data."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._owner = uuid4().hex
        self._number = 0  # acknowledged by the database
        self._counted_at = 0.0

    async def look(self) -> str:
        """Return the id of the place of the data. After a restore, it is another one."""
        known = self._number
        steps = {
            _FORGET_OLD: {},
            _CHANGE: {"new": uuid4().hex, "owner": self._owner, "known": known},
            _COUNT: {"owner": self._owner, "next": known + 1},
            _LOOK: {},
        }
        *_, found = await self._db.batch([statement(sql, **values) for sql, values in steps.items()])
        if not found:
            raise lost_identity(self._db.name)
        self._number, self._counted_at = max(self._number, known + 1), time.monotonic()
        return str(found[0][0])

    async def keep(self) -> None:
        """Look again from time to time, once the place was looked up."""
        if self._number and time.monotonic() - self._counted_at > EVERY:
            await self.look()

    async def forget(self) -> None:
        """Remove this loop's row from the database, if that can be reached."""
        if self._number:
            with contextlib.suppress(StoreError):  # its row is removed a month later
                await self._db.one(statement(_FORGET, owner=self._owner))
