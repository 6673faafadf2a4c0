"""Reads a person's inbox: their own waiting items, and those of others, one page each."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from standfast.messages import person as identity
from standfast.stores.waits import ShownWait, WaitFilter
from standfast.temporal import StandfastClient
from standfast.temporal.client.boards import WaitingItems, board_item, filter_of, read_waiting
from standfast.web.access import Person
from standfast.web.actions import kinds_of, may_act
from standfast.web.bounds import bounded_filter, waiting_for

PAGE = 50  # items of each list
_ASKED = 100  # runs that are queried if the store has no board
FILTERS = ("text", "kind", "agent", "group", "person", "waits_longer_than")
_PAGES = ("after", "others_after")


@dataclass(frozen=True, slots=True)
class Inbox:
    """The contents of a person's inbox.

    Args:
        wanted: the filters as typed.
        counts: of all items that match the filters, by kind.
        more, more_others: the addresses of the next pages, if there are any.
        asked: the number of queried runs, if there is no board; then the only filter is a group.
    """

    wanted: Mapping[str, str]
    mine: Sequence[Mapping[str, Any]]
    others: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]
    more: str | None = None
    more_others: str | None = None
    asked: int | None = None

    @property
    def look(self) -> list[Any]:
        """Return the state that an open page compares."""
        return [self.items, dict(self.counts)]

    @property
    def items(self) -> list[Mapping[str, Any]]:
        return [*self.mine, *self.others]


async def read_inbox(people: StandfastClient, person: Person, typed: Mapping[str, str]) -> Inbox:
    """Return a person's inbox, from the parameters of the page's address.

    Raises:
        InputError: a filter is invalid.
    """
    wanted = {name: value for name in FILTERS if (value := typed.get(name, "").strip())}
    board = await people.board()
    if board is None:
        return await _asked(people, person, wanted.get("group", ""))
    whose = {name: value for name, value in wanted.items() if name != "person"}
    found = bounded_filter(person, filter_of(people.client.namespace, whose))  # type: ignore[arg-type]
    theirs = identity(wanted["person"]) if "person" in wanted else None
    mine = found.model_copy(update={"person": identity(person.name), "person_kinds": kinds_of(person)})
    pages = {name: typed[name] for name in _PAGES if typed.get(name)}
    if theirs is not None:  # other people's items are one list
        found = found.model_copy(update={"person": theirs})
    if not pages and len(every := await board.waits(found, limit=PAGE + 1)) <= PAGE:
        return _whole(wanted, mine if theirs is None else None, every)
    if theirs is not None:
        (others, more_others), counts = await asyncio.gather(
            _page(board, found, pages.get("others_after")), board.count_waits(found)
        )
        inbox = Inbox(wanted, [], others, counts)
    else:
        (listed, more), (others, more_others), counts = await asyncio.gather(
            _page(board, mine, pages.get("after")),
            _page(board, mine.model_copy(update={"others": True}), pages.get("others_after")),
            board.count_waits(found),
        )
        inbox = Inbox(wanted, listed, others, counts)
        inbox = replace(inbox, more=more and address(wanted, {**pages, "after": more}))
    return replace(inbox, more_others=more_others and address(wanted, {**pages, "others_after": more_others}))


def address(*parameters: Mapping[str, str]) -> str:
    """Return the address of a page of the inbox."""
    return f"/?{urlencode({name: value for given in parameters for name, value in given.items()})}"


def _whole(wanted: Mapping[str, str], mine: WaitFilter | None, every: Sequence[ShownWait]) -> Inbox:
    """Return the inbox if all of it fits on a page: the board is read once, and not for each list.

    Args:
        mine: returns which items are the person's own; None if they are not distinguished.
    """
    lists: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for one in every:
        is_mine = mine is not None and one.wait.is_for(mine.person, mine.person_kinds)
        lists[not is_mine].append(board_item(one))
    return Inbox(wanted, *lists, Counter(one.wait.kind for one in every))


async def _page(board: WaitingItems, wanted: WaitFilter, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of items, and the place after which the next one begins, if any."""
    items = await read_waiting(board, wanted, after=after, limit=PAGE + 1)
    return items[:PAGE], items[PAGE - 1]["place"] if len(items) > PAGE else None


async def _asked(people: StandfastClient, person: Person, group: str) -> Inbox:
    """Return the items reported by the runs in the server's list, the nearest deadline first."""
    found = await waiting_for(people, person, {"group": group or None}, _ASKED)
    items = sorted(found, key=lambda item: (item.get("deadline") or "9999", item.get("since") or ""))
    mine = [item for item in items if may_act(person, item)]
    counts = {
        kind: sum(item["kind"] == kind for item in items) for kind in dict.fromkeys(item["kind"] for item in items)
    }
    wanted = {"group": group} if group else {}
    return Inbox(wanted, mine, [item for item in items if item not in mine], counts, asked=_ASKED)
