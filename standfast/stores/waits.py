"""The board: the items that runs wait for. A store shows it to people without asking a worker."""

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from standfast.messages import Record

_WORDS = 4_000  # characters of an item that are searched
_SOUGHT = 10  # words of a search


class Board(Record):
    """A run that has or had items to show.

    Args:
        first_run_id: the first run of the chain. A later run with the same workflow id has another one.
        journal_key: the key of its run in the store.
        agent: the workflow type: the agent, the pipeline, or the user's own workflow.
        session: its key, as `session_key_of` returns it.
        parent: the workflow id of the run that started it.
        at: UTC; the time of writing, by the server's clock. An older board changes nothing.
        is_watched: the run is polled, since it does not write its board itself.
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
    """A waiting item.

    Args:
        key: distinguishes it from all other items of its run. Other content has another key.
        people: the people who may end it, each as `person` returns it; anybody if None, nobody if empty.
        words: the searchable text, as `searchable` returns it.
        item: JSON, in the form of `pending`.
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
        """Whether a person who may end items of these kinds may end this one. None means every kind."""
        return (self.people is None or whom in self.people) and (kinds is None or self.kind in kinds)


class WaitPlace(Record):
    """The place of an item in the reading order. It stays valid when the item is gone."""

    deadline: datetime | None = None
    since: datetime
    workflow_id: str
    key: str


class ShownWait(Record):
    """An item on the board, and its run."""

    board: Board
    wait: Wait

    @property
    def place(self) -> WaitPlace:
        wait = self.wait
        return WaitPlace(deadline=wait.deadline, since=wait.since, workflow_id=self.board.workflow_id, key=wait.key)


class WaitFilter(Record):
    """A filter for items: all given conditions must hold.

    Args:
        tenants: the run belongs to one of these tenants; none match if empty.
        owner: the owner of the run, as `person` returns it.
        group: the group of approvers that the item asks.
        person: the person may end the item, as `person` returns it, if it is of one of `person_kinds`.
        others: instead, items that this person may not end.
        text: words that all occur in the item, in any order.
        before: the item has been waiting since this time or earlier.
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
    """Return texts in searchable form: case, and different forms of a letter, are ignored."""
    return unicodedata.normalize("NFKC", "\n".join(text[:_WORDS] for text in texts)).casefold()[:_WORDS]


@runtime_checkable
class Waits(Protocol):
    """Shows the items that runs wait for. Order: by deadline, without a deadline last; then by start."""

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        """Show exactly these items of a run, all or nothing. Return the items to keep that are missing.

        If a later board was written for the workflow id, nothing is changed, and nothing returned.

        Args:
            put: items that may be new. Existing ones are unchanged.
            keep: the keys of items that were put before.
        """
        ...

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        """Return the matching items in order, starting after `after`, which may be gone."""
        ...

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        """Return the number of matching items, by kind."""
        ...

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        """Return the last written board of a run, which may be without items."""
        ...

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        """Return boards in the order of their workflow ids, starting after `after`, with the number of items."""
        ...

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        """Delete the boards without items that were written before."""
        ...
