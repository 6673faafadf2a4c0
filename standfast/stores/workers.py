"""The workers that serve a store, and the sessions that their workflows have opened."""

from typing import Protocol, runtime_checkable

from standfast.messages import Record


class AtWork(Record):
    """A workflow that has opened a session and has not ended.

    Args:
        namespace: the workflow's namespace.
        journal_key: the key of its run; the same when it continues as new or is reset.
    """

    session_id: str
    namespace: str
    workflow_id: str
    journal_key: str


@runtime_checkable
class Workers(Protocol):
    """Workers and the sessions they are at work on, so that runs of both drivers never share a session.

    A worker adds its name and holds it (see `AgentStore.hold`) as long as it lives. If holds are not shared, or the
    worker sees other ones (see `hold_scope`), nobody can tell that it is dead. Its name then counts until it drops it,
    and its calls may still be running until their time has passed.

    A store may have a number `look_every`: the seconds between two looks of a worker for the calls of dead ones. They
    are one second otherwise; a store whose holds outlast their process, or that counts requests, is asked less often.
    """

    async def hold_scope(self) -> str:
        """Return an id, without `_`, that processes have in common if they see each other's holds; "" if none do."""
        ...

    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        """Mark a session as one that a workflow is at work on, and return the mark that is valid then.

        That is another workflow's mark if it marked the session before, unless that mark is `instead_of`.
        """
        ...

    async def end_work(self, work: AtWork) -> None:
        """Remove a mark, if it is still this one."""
        ...

    async def find_work(self, session_id: str | None = None) -> list[AtWork]:
        """Return the mark of a session, or all, in the order of their sessions."""
        ...

    async def add_worker(self, name: str) -> None:
        """Add a worker that serves the store, if its name is not there yet."""
        ...

    async def drop_worker(self, name: str) -> None:
        """Remove a worker, if its name is there."""
        ...

    async def list_workers(self) -> list[str]:
        """Return the names of the workers that have been added and not dropped."""
        ...
