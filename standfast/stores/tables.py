"""The tables of a store as `copying` moves them: rows by their keys, and the text that closes a store."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from standfast.errors import InputError, StoreError
from standfast.stores.sql.rows import index_key

Row = tuple[Any, ...]

# In the order of copying, with their keys. A table with the same key has the same rows in every store.
KEYS = {
    "agent_sessions": ("id",),
    "agent_messages": ("session_id", "seq"),
    "tool_ledger": ("run_key", "call_key"),
    "model_replies": ("run_key", "turn"),
    "gate_decisions": ("number",),
    "sessions_at_work": ("session_id",),
    "noted_runs": ("run_key",),
    "boards": ("namespace", "workflow_id"),
    "waits": ("namespace", "workflow_id", "key"),
    "standing_approvals": ("id",),
}
# Tables that only open processes need, tables that belong to one store, and the tables of this module.
LEFT_OUT = frozenset(("running_calls", "workers", "holds", "partial_answers", "store_identity", "standfast_schema"))
LEFT_OUT |= {"store_closed", "store_copy", "marks"}
TIMES = frozenset(("created_at", "updated_at", "claimed_at", "kept_at", "noted_at", "at"))
CLOSED = 1_000_000  # the schema version of a closed store: older standfast versions also refuse it
_SHORTENED = re.compile(r".{100}…[0-9a-f]{128}", re.DOTALL)  # see `index_key`
BATCH_ROWS, BATCH_BYTES = 1_000, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sum:
    """The rows of a table: their number, and a digest that does not depend on their order."""

    rows: int = 0
    digest: int = 0

    def plus(self, columns: Sequence[str], rows: Sequence[Row]) -> "Sum":
        digest = self.digest
        for row in rows:
            known = sorted(zip(columns, map(_canonical, columns, row), strict=True))
            written = json.dumps([value for _, value in known]).encode("utf-8", "surrogatepass")
            digest += int.from_bytes(hashlib.blake2b(written, digest_size=16).digest())
        return Sum(self.rows + len(rows), digest % 2**128)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of copying a table: the last copied key, and the sum of the copied rows."""

    after: Row | None = None
    sum: Sum = Sum()


class Tables(Protocol):
    """The tables of one store, in the form that `copying` uses. Methods raise `StoreError` if the store refuses."""

    name: str
    """The address in messages, without the password."""

    async def __aenter__(self) -> "Tables": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def closed(self) -> str | None:
        """Return the text with which the store is closed; None if it is open, or does not exist."""
        ...

    async def names(self) -> set[str]:
        """Return the names of all tables."""
        ...

    async def held_names(self) -> list[str]:
        """Return names of sessions, runs and workers that may be held."""
        ...

    async def has_holds(self) -> bool:
        """Whether a hold exists whose name is unknown; False where that cannot be determined."""
        ...

    async def is_empty(self) -> bool:
        """Whether all copied tables are empty."""
        ...

    async def columns(self, table: str) -> list[str]:
        """Return the columns of a table."""
        ...

    async def read(self, table: str, columns: Sequence[str], after: Row | None) -> list[Row]:
        """Return the next rows in the order of their key, as many as fit into a batch; none after the last."""
        ...

    async def write(self, table: str, columns: Sequence[str], rows: Sequence[Row], progress: Progress) -> None:
        """Write rows and the progress made with them, both or neither."""
        ...

    async def begin(self, source: str, words: str) -> None:
        """Close an empty store before it is filled from the store with this identity."""
        ...

    async def source(self) -> str | None:
        """Return the identity of the store from which this one is being filled; None if it is not being filled."""
        ...

    async def progress(self, table: str) -> Progress:
        """Return the progress of a table."""
        ...

    async def finish(self, identity: str) -> None:
        """Open a filled store under the identity of its source."""
        ...

    async def identity(self) -> str:
        """Return the store's identity, even if it is closed."""
        ...

    async def close(self, words: str) -> None:
        """Close a store that is being moved or was moved. It cannot be opened, and processes that have it open cannot
        write.
        """
        ...

    async def reopen(self) -> None:
        """Reopen a closed store."""
        ...


def closed_error(name: str, words: str) -> StoreError:
    """Return the error for a closed store."""
    return StoreError(f"The store {name} {words}. Nothing was changed.")


def moment(value: Any) -> datetime | None:
    """Return a stored time as UTC. A time without a zone is UTC."""
    if value is None:
        return None
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def check_times(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Refuse sessions whose calls would be lost: their keys contain the creation time as written.

    Raises:
        InputError: a session's time is in another zone than UTC, and the store writes times in UTC.
    """
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        made = values["created_at"]
        at = moment(made)
        if isinstance(made, str) and at is not None and at.replace(tzinfo=None).isoformat() != _without_zone(made):
            raise InputError(
                f"Session {values['id']} was made at {made}, a time that is not in UTC, which the new store "
                "cannot keep: its calls would not be found any more. Delete the session, or copy to a SQLite file"
            )


def _without_zone(written: str) -> str:
    return datetime.fromisoformat(written).replace(tzinfo=None).isoformat()


def check_whole_key(call_key: str) -> None:
    """Refuse the key of a call that PostgreSQL has shortened, in a store with whole keys.

    Raises:
        InputError: the key was shortened.
    """
    if _SHORTENED.fullmatch(call_key):
        raise InputError(
            f"Call {call_key[:100]}… has a key that the other store has shortened, and the new one would not find it "
            "by that. Give a PostgreSQL store"
        )


def _canonical(column: str, value: Any) -> Any:
    """Return a value in the form that is the same in every store."""
    if column == "call_key":
        return index_key(value)
    if column in TIMES and (at := moment(value)) is not None:
        return at.isoformat()
    return value


def size(row: Row) -> int:
    """Return the approximate size of a row in memory, in bytes."""
    return 100 + sum(len(value) for value in row if isinstance(value, str))
