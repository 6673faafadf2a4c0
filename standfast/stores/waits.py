"""The board: what runs wait for, as a store shows it to people without asking any worker."""

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from standfast.messages import Record

_WORDS = 4_000  # characters of an item that are searched
_SOUGHT = 10  # words of a search


class Board(Record):
    """A run that has something to show, or had.

    Args:
        first_run_id: of the chain of runs; another run of the workflow id that is begun later has another.
        journal_key: the key of its run in the store.
        agent: the workflow type: the agent, the pipeline, or a workflow of the user's own.
        session: its key, as `session_key_of` returns it.
        parent: the workflow id of the run that has started it.
        at: UTC; when it was written, by the server's clock. What is older changes nothing.
        is_watched: somebody asks the run again and again, since it does not write its board itself.
    """

    namespace: str
    workflow_id: str
    run_id: str
    first_run_id: str
    journal_key: str
    agent: str
    task_queue: str
    at: datetime
    session: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    parent: str | None = None
    is_watched: bool = False


class Wait(Record):
    """An item that waits.

    Args:
        key: tells it from all others of its run; another content is another key.
        people: who may end it, each as `person` returns it; anybody if None, nobody if empty.
        words: what a search looks at, as `searchable` returns it.
        item: JSON, as `pending` has it.
    """

    key: str
    kind: str
    name: str
    since: datetime
    deadline: datetime | None = None
    people: tuple[str, ...] | None = None
    groups: tuple[str, ...] = ()
    words: str = ""
    item: str = "{}"

    def is_for(self, whom: str | None, kinds: tuple[str, ...] | None) -> bool:
        """Whether somebody may end it who may end items of these kinds; None is every kind."""
        return (self.people is None or whom in self.people) and (kinds is None or self.kind in kinds)


class WaitPlace(Record):
    """The place of an item in the order in which items are read; it stays when the item is gone."""

    deadline: datetime | None = None
    since: datetime
    workflow_id: str
    key: str


class ShownWait(Record):
    """An item on the board, and the run that it is of."""

    board: Board
    wait: Wait

    @property
    def place(self) -> WaitPlace:
        wait = self.wait
        return WaitPlace(deadline=wait.deadline, since=wait.since, workflow_id=self.board.workflow_id, key=wait.key)


class WaitFilter(Record):
    """Which items are wanted: those for which all that is given holds.

    Args:
        tenants: those of which the run is one's; none at all if empty.
        owner: whose run it is, as `person` returns it.
        group: the group of approvers that they ask.
        person: who may end them, as `person` returns it, if they are of one of `person_kinds`.
        others: those that this person may not end instead.
        text: words that all occur in them, in any order.
        before: since when they wait at the latest.
    """

    namespace: str
    kind: str | None = None
    agent: str | None = None
    tenant_id: str | None = None
    tenants: tuple[str, ...] | None = None
    owner: str | None = None
    workflow_id: str | None = None
    group: str | None = None
    person: str | None = None
    person_kinds: tuple[str, ...] | None = None
    others: bool = False
    text: str = ""
    before: datetime | None = None

    @property
    def words(self) -> list[str]:
        return list(dict.fromkeys(searchable(self.text).split()))[:_SOUGHT]


def searchable(*texts: str) -> str:
    """Return texts as they are searched: upper and lower case, and forms of a letter, are the same."""
    return unicodedata.normalize("NFKC", "\n".join(text[:_WORDS] for text in texts)).casefold()[:_WORDS]


@runtime_checkable
class Waits(Protocol):
    """Shows what runs wait for. Items are ordered by deadline, those without one last; then by when they began."""

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        """Show exactly these items of a run, all or nothing, and return those to keep that are not there.

        Nothing is changed, and nothing returned, if something later was written for the workflow id.

        Args:
            put: items that may be new; those that are there already stay as they are.
            keep: the keys of items that were put before.
        """
        ...

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        """Return the items that are wanted, in order, from the one after `after`, which may be gone."""
        ...

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        """Return the number of items that are wanted, by kind."""
        ...

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        """Return the board of a run, as it was written last; it may be without items."""
        ...

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        """Return boards in the order of their workflow ids, from the one after `after`, with the number of items."""
        ...

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        """Forget the boards without an item that were written before."""
        ...
