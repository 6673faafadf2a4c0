"""The Protocol of stores that can delete everything that belongs to a session or to a run.

Besides sessions, a store keeps records under names. The calls and messages of a session are under `<session>@<creation
time>`, and everything else is under the journal key of a run. A Temporal run is noted when it is opened. Its session is
then known, and Temporal can be asked whether the run may still continue.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from standfast.errors import SessionConflictError
from standfast.messages import Record

DELETED = '{"deleted":true}'
"""Replaces the state of a run whose session was deleted, so that the run cannot start or continue again."""

CLOSED = ""
"""The key of the entry that closes the ledger of a deleted session: no other call of it begins any more."""

_RUN = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MADE = r"@\d{8}T\d{12}"
_KEPT_UNDER = re.compile(
    rf"(?P<run>{_RUN})(/.*)?|(?P<session>.+{_MADE})/(said|heard|\d+)|(?P<local>[^/]+/.+?)/steps/.*", re.S
)
_LONGEST_PREFIX = 150  # characters of a session's id that begin the ids of the agents it calls


class NotedRun(Record):
    """A Temporal run that has been opened with a store.

    Args:
        session_id: the session of an agent's run, as `session_key_of` returns it; None for a pipeline's.
        namespace: empty if the run was opened by a version that did not note it.
        noted_at: UTC. Set by the store.
    """

    journal_key: str
    namespace: str
    workflow_id: str
    session_id: str | None = None
    noted_at: datetime | None = None


class Noted(Record):
    """A store's knowledge of all Temporal runs that were opened with it.

    Args:
        since: UTC. Older runs are noted only if they were at work then, or were the last on their session.
        namespaces: the namespaces of noted runs; an empty one if some are unknown.
    """

    since: datetime
    namespaces: tuple[str, ...]


class Dropped(Record):
    """The number of deleted rows, or of rows to delete, and the bytes of their texts."""

    calls: int = 0
    replies: int = 0
    partial_answers: int = 0
    decisions: int = 0
    boards: int = 0
    standing_approvals: int = 0
    bytes: int = 0

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(**{name: getattr(self, name) + getattr(other, name) for name in Dropped.model_fields})


@runtime_checkable
class Deletion(Protocol):
    """Deletes the rows of a session or a run, all or nothing."""

    async def note_run(self, run: NotedRun) -> None:
        """Note a run before anything is stored for it. Repeating this changes nothing."""
        ...

    async def find_runs(self, journal_keys: Sequence[str] = (), *, session_id: str | None = None) -> list[NotedRun]:
        """Return the noted runs with these keys, or a session's noted runs."""
        ...

    async def noted(self) -> Noted:
        """Return the time since when all runs are noted, and their namespaces."""
        ...

    async def list_records(self, after: str = "", *, limit: int = 500) -> list[str]:
        """Return the keys of ledger, journal and audit trail that follow a key, by code point order."""
        ...

    async def drop_records(
        self, name: str, *, before: datetime, below: int | None = None, decisions: bool = False, dry_run: bool = False
    ) -> Dropped:
        """Delete the records under a name, and return what was deleted; nothing if any of it is newer than `before`.

        Records of a version that did not note the time count as old as the migration.

        Args:
            below: for a session that stays: delete only its older calls, requested by messages before this number.
            decisions: also delete decisions.
            dry_run: delete nothing.
        """
        ...

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        """Delete a session, the sessions of the agents that its runs have called, and all records of their runs.

        A returning run must find certain records, so that it does not repeat an effect. They stay without any text:
        `DELETED` replaces the values that steer each run. Its calls stay as claimed, by an owner that cannot record a
        result. Its other calls can no longer begin: `claim` and `settle` raise `SessionConflictError`.

        Args:
            keep_decisions: keep the decisions with their author and time, without comments and edits. The record of who
                deleted the session always stays.
        """
        ...


def name_of(key: str) -> str | None:
    """Return the name under which a key is stored; None for lists of runs and other keys, which are not deleted."""
    found = _KEPT_UNDER.fullmatch(key)
    return None if found is None else found["run"] or found["session"] or found["local"]


def closed(scope: str) -> SessionConflictError:
    """Return the error for a call of a deleted session."""
    return SessionConflictError(f"The session of {scope} was deleted; the call is not run")


def is_temporal_run(name: str) -> bool:
    """Whether a name is the journal key of a Temporal run."""
    return re.fullmatch(_RUN, name) is not None


def session_of(name: str) -> str | None:
    """Return the session's id in a name; None if it is a run's."""
    found = re.fullmatch(rf"(.+){_MADE}", name, re.S)
    return None if found is None else found[1]


def made_at(name: str) -> datetime:
    """Return the creation time of the session in a name."""
    return datetime.strptime(name.rpartition("@")[2], "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)


def next_after(name: str) -> str:
    """Return the text that follows all keys of a name in code point order."""
    return f"{name}0"  # the character after `/`


def called_by(session_id: str) -> str:
    """Return the prefix of the ids of the sessions of agents that a session's agent calls."""
    tenant, slash, name = session_id.rpartition("/")
    return f"{tenant}{slash}{name[:_LONGEST_PREFIX]}."
