"""The Protocol of stores from which everything that belongs to a session or to a run can be deleted.

What a store keeps beside sessions is kept under names: `<session>@<when it was made>` for the calls and messages of a
session, and for all else the journal key of a run. A run on Temporal is noted when it is opened, so that its session is
known, and Temporal can be asked whether it may still go on.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from standfast.errors import SessionConflictError
from standfast.messages import Record

DELETED = '{"deleted":true}'
"""What is kept in the place of what steered a run whose session was deleted: it does not begin or go on again."""

CLOSED = ""
"""The key of the entry that closes the ledger of a deleted session: no other call of it begins any more."""

_RUN = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MADE = r"@\d{8}T\d{12}"
_KEPT_UNDER = re.compile(
    rf"(?P<run>{_RUN})(/.*)?|(?P<session>.+{_MADE})/(said|heard|\d+)|(?P<local>[^/]+/.+?)/steps/.*", re.S
)
_LONGEST_PREFIX = 150  # characters of a session's id with which those of the agents that it calls begin


class NotedRun(Record):
    """A run on Temporal that has been opened with a store.

    Args:
        session_id: of an agent's run, as `session_key_of` returns it; None for a pipeline's.
        namespace: empty if the run was opened by a version that did not note it.
        noted_at: UTC. Set by the store.
    """

    journal_key: str
    namespace: str
    workflow_id: str
    session_id: str | None = None
    noted_at: datetime | None = None


class Noted(Record):
    """What a store knows of all runs on Temporal that were opened with it.

    Args:
        since: UTC; older runs are noted only if they were at work then, or were the last on their session.
        namespaces: those of noted runs; an empty one if it is not known of some of them.
    """

    since: datetime
    namespaces: tuple[str, ...]


class Dropped(Record):
    """How many rows were deleted, or would be, and the bytes of their texts."""

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
    """Deletes what belongs to a session or a run, all or nothing."""

    async def note_run(self, run: NotedRun) -> None:
        """Note a run before anything is kept for it; noting it again changes nothing."""
        ...

    async def find_runs(self, journal_keys: Sequence[str] = (), *, session_id: str | None = None) -> list[NotedRun]:
        """Return the noted runs with these keys, or those of a session."""
        ...

    async def noted(self) -> Noted:
        """Return since when all runs are noted, and where they run."""
        ...

    async def list_records(self, after: str = "", *, limit: int = 500) -> list[str]:
        """Return the keys of ledger, journal and audit trail that follow a key, in the order of their code points."""
        ...

    async def drop_records(
        self, name: str, *, before: datetime, below: int | None = None, decisions: bool = False, dry_run: bool = False
    ) -> Dropped:
        """Delete what is kept under a name, and return what that was; nothing if any of it is newer than `before`.

        What was kept by a version that did not note the time has that of the migration.

        Args:
            below: of a session that stays: deletes only its calls that are older, and that messages before this number
                have asked for.
            decisions: deletes decisions, too.
            dry_run: deletes nothing.
        """
        ...

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        """Delete a session, those of the agents that its runs have called, and all that their runs have kept.

        What a run that comes back must find, so that it repeats no effect, stays without any text: `DELETED` in the
        place of what steers each run, and its calls, as claimed by nobody who could record a result. Others of its
        calls cannot begin any more: `claim` and `settle` raise `SessionConflictError`.

        Args:
            keep_decisions: keeps who has decided what and when, without comments and edits. Who has deleted the
                session stays in any case.
        """
        ...


def name_of(key: str) -> str | None:
    """Return the name under which something is kept; None for lists of runs and other keys, which are not deleted."""
    found = _KEPT_UNDER.fullmatch(key)
    return None if found is None else found["run"] or found["session"] or found["local"]


def closed(scope: str) -> SessionConflictError:
    """Return the error of a call of a deleted session."""
    return SessionConflictError(f"The session of {scope} was deleted; the call is not run")


def is_temporal_run(name: str) -> bool:
    """Whether a name is the journal key of a run on Temporal."""
    return re.fullmatch(_RUN, name) is not None


def session_of(name: str) -> str | None:
    """Return the session's id in a name; None if it is a run's."""
    found = re.fullmatch(rf"(.+){_MADE}", name, re.S)
    return None if found is None else found[1]


def made_at(name: str) -> datetime:
    """Return when the session in a name was made."""
    return datetime.strptime(name.rpartition("@")[2], "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)


def next_after(name: str) -> str:
    """Return the text that follows all keys of a name in the order of code points."""
    return f"{name}0"  # which comes after `/`


def called_by(session_id: str) -> str:
    """Return what the ids of the sessions begin with that are made for agents which a session's agent calls."""
    tenant, slash, name = session_id.rpartition("/")
    return f"{tenant}{slash}{name[:_LONGEST_PREFIX]}."
