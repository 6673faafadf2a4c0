"""The workers that serve a store, and the sessions that their workflows have opened."""

from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from standfast.messages import Record

_ENDED = "ended at "  # begins the journal key of a mark that no run has


class AtWork(Record):
    """A workflow that has opened a session and has not ended, or one that was terminated or has failed.

    An activity of an ended workflow may still be running. The mark then has a key that no run has, so that the
    activity's writes are refused.

    Args:
        namespace: the workflow's namespace.
        journal_key: the key of its run, unchanged by continue-as-new or a reset.
    """

    session_id: str
    namespace: str
    workflow_id: str
    journal_key: str

    def ended(self) -> "AtWork":
        """Return the mark that refuses the writes of this run from now on."""
        return self.model_copy(update={"journal_key": f"{_ENDED}{datetime.now(UTC).isoformat()}"})

    @property
    def ended_at(self) -> datetime | None:
        """When the workflow was found to have ended; None if it may be running."""
        key = self.journal_key
        return datetime.fromisoformat(key.removeprefix(_ENDED)) if key.startswith(_ENDED) else None


@runtime_checkable
class Workers(Protocol):
    """Workers and the sessions they are at work on, so that runs of both drivers never share a session.

    A worker adds its name and holds it (see `AgentStore.hold`) as long as it lives. If holds are not shared, or the
    worker sees different ones (see `hold_scope`), its death cannot be detected. Its name then counts until it drops the
    name, and its calls may still be running until their time has passed.

    A store may have a number `look_every`: the seconds between a worker's checks for the calls of dead workers. The
    default is one second. A store whose holds outlast their process, or that counts requests, is checked less often.
    """

    async def hold_scope(self) -> str:
        """Return an id, without `_`, that processes share if they see each other's holds; "" if none do."""
        ...

    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        """Mark a session as being used by a workflow, and return the valid mark.

        If another workflow marked the session before, that mark is valid, unless it is `instead_of`. From then on, no
        append of another Temporal run is stored.
        """
        ...

    async def end_work(self, work: AtWork) -> None:
        """Remove a mark, if it is still this one."""
        ...

    async def find_work(self, session_id: str | None = None) -> list[AtWork]:
        """Return the mark of a session, or all marks in the order of their sessions."""
        ...

    async def add_worker(self, name: str) -> None:
        """Add a worker that serves the store, unless its name exists."""
        ...

    async def drop_worker(self, name: str) -> None:
        """Remove a worker, if its name exists."""
        ...

    async def list_workers(self) -> list[str]:
        """Return the names of the workers that have been added and not dropped."""
        ...
