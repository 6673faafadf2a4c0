"""Reads waiting items from the board in the store: ordered, filtered, in pages, with or without a live worker."""

import asyncio
import base64
import heapq
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypedDict

from pydantic import ValidationError

from standfast.durations import Duration
from standfast.errors import DefinitionError, InputError
from standfast.messages import person
from standfast.runtime.outside_decisions import show_again
from standfast.runtime.stored_gates import IN_PROCESS
from standfast.stores.capabilities import has_deletion, has_ledger, has_waits
from standfast.stores.protocol import session_id_of
from standfast.stores.waits import ShownWait, WaitFilter, WaitPlace, Waits
from standfast.temporal.client.waiting_items import read_items
from standfast.tools.checks import seconds

_AT_ONCE = 10  # in-process runs that are checked again in one reading


class WaitingFilters(TypedDict, total=False):
    """The filters on items; without a filter, all.

    Args:
        group: the group of approvers that the items ask.
        kind: "approval", "question", "unknown", "pause", "worker" or "store".
        agent: the agent, the pipeline or the workflow type that waits.
        person: the person who may end the items: they name this person, or no one.
        tenant: the tenant of the run.
        text: words that occur in the name, the message, the arguments or the run; case is ignored.
        waits_longer_than: the minimum waiting time of the items, such as "2h".
    """

    group: str | None
    kind: str | None
    agent: str | None
    person: str | None
    tenant: str | None
    text: str | None
    waits_longer_than: Duration | None


def kept_mark(namespace: str) -> str:
    """Return the key under which a store records that its workers maintain its board."""
    return f"standfast/board/{namespace}"


class WaitingItems(Protocol):
    """Reads the items of a board, as `Waits` does."""

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]: ...

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class WholeBoard:
    """The items of a namespace and of the in-process runs that have the same store, or only the latter.

    While no process runs them, a deadline that passes is noticed at the next reading.
    """

    store: Waits
    on_temporal: bool = True

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        found = await self._read(wanted, after, limit)
        if late := _late(found):
            await asyncio.gather(*(show_again(self.store, address) for address in late))
            found = await self._read(wanted, after, limit)
        return found

    def _parts(self, wanted: WaitFilter) -> list[WaitFilter]:
        in_process = wanted.model_copy(update={"namespace": IN_PROCESS})
        return [wanted, in_process] if self.on_temporal else [in_process]

    async def _read(self, wanted: WaitFilter, after: WaitPlace | None, limit: int | None) -> list[ShownWait]:
        found = await asyncio.gather(*(self.store.waits(one, after=after, limit=limit) for one in self._parts(wanted)))
        return list(heapq.merge(*found, key=_order))[:limit]

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        found = await asyncio.gather(*map(self.store.count_waits, self._parts(wanted)))
        return dict(sum(map(Counter, found), Counter()))


def _late(found: Sequence[ShownWait]) -> list[str]:
    """Return in-process runs whose gates have passed a deadline while no process ran them.

    No timer updates the board.
    """
    now = datetime.now(UTC)
    ours = [one for one in found if one.board.namespace == IN_PROCESS]
    late = [one.board.workflow_id for one in ours if one.wait.deadline is not None and one.wait.deadline <= now]
    return list(dict.fromkeys(late))[:_AT_ONCE]


def _order(shown: ShownWait) -> tuple[datetime, datetime, str, str]:
    place = shown.place
    return place.deadline or datetime.max.replace(tzinfo=UTC), place.since, place.workflow_id, place.key


async def kept_board(store: object, namespace: str) -> WholeBoard | None:
    """Return the board of a store if its workers maintain it, or if it is only for in-process runs.

    Workers of earlier versions do not maintain it.
    """
    if not has_waits(store) or not has_ledger(store):
        return None
    is_kept = await store.load_reply(kept_mark(namespace), 0) is not None
    return WholeBoard(store) if is_kept or await is_without_temporal(store) else None


async def is_without_temporal(store: Waits) -> bool:
    """Whether in-process runs have a board in a store that no run on Temporal was ever opened with."""
    if not has_deletion(store) or not await store.boards(IN_PROCESS, limit=1):
        return False
    return not (await store.noted()).namespaces


def filter_of(namespace: str, filters: WaitingFilters) -> WaitFilter:
    """Return a filter in the store's form.

    Raises:
        InputError: a filter is invalid.
    """
    if unknown := sorted(filters.keys() - WaitingFilters.__annotations__.keys()):
        raise InputError(
            f"waiting: unknown filter {unknown[0]!r}; the filters are {', '.join(WaitingFilters.__annotations__)}"
        )
    given = dict(filters)
    age, who, tenant = given.pop("waits_longer_than", None), given.pop("person", None), given.pop("tenant", None)
    for name, value in {**given, "person": who, "tenant": tenant}.items():
        if value is not None and not isinstance(value, str):
            raise InputError(f"waiting: {name} must be a text, got {value!r:.80}")
    before = None
    if age is not None:
        try:
            before = datetime.now(UTC) - timedelta(seconds=seconds(age, "waiting: waits_longer_than"))  # type: ignore[arg-type]
        except (DefinitionError, OverflowError) as error:
            raise InputError(str(error)) from None
    return WaitFilter.model_validate(
        {
            **{name: value for name, value in given.items() if value is not None},
            "namespace": namespace,
            "person": None if who is None else person(str(who)),
            "tenant_id": tenant,
            "before": before,
        }
    )


async def read_waiting(
    board: WaitingItems, wanted: WaitFilter, *, after: str | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return items as `pending` does, each with its run, and with its `place`, after which the next page begins."""
    place = None if after is None else read_place(after)
    return [board_item(one) for one in await board.waits(wanted, after=place, limit=limit)]


async def read_run(board: Waits, namespace: str, workflow_id: str, first_run_id: str) -> list[dict[str, Any]] | None:
    """Return the items of a run, as `pending` does; None if it does not write them to the board itself.

    Args:
        first_run_id: of the chain of runs that is meant.
    """
    kept = await board.load_board(namespace, workflow_id)
    if kept is None or kept.is_watched or kept.first_run_id != first_run_id:
        return None
    shown = await board.waits(WaitFilter(namespace=namespace, workflow_id=workflow_id))
    return [item for one in shown for item in read_items([json.loads(one.wait.item)])]


def board_item(shown: ShownWait) -> dict[str, Any]:
    """Return an item as `read_waiting` does."""
    board, (item, *_) = shown.board, read_items([json.loads(shown.wait.item)])
    more = {
        "workflow_id": board.workflow_id,
        "run_id": board.run_id or None,
        "agent": board.agent,
        "session_id": None if board.session is None else session_id_of(board.session),
        "user_id": board.user_id,
        "tenant_id": board.tenant_id,
        "parent": board.parent,
        "place": write_place(shown.place),
    }
    return {**item, **{name: value for name, value in more.items() if value is not None}}


def write_place(place: WaitPlace) -> str:
    """Return a place as a text that is safe in a URL."""
    return base64.urlsafe_b64encode(place.model_dump_json().encode()).decode().rstrip("=")


def read_place(text: str) -> WaitPlace:
    """Return the place that `write_place` wrote.

    Raises:
        InputError: the text is not from `write_place`.
    """
    try:
        return WaitPlace.model_validate_json(
            base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        )
    except (ValueError, ValidationError) as error:
        raise InputError(f"after must be the place of an item, got {text!r:.80}") from error
