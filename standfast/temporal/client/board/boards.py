"""Reads waiting items from the board in the store, with or without a live worker, and repairs it."""

import asyncio
import base64
import heapq
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypedDict

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.durations import Duration
from standfast.errors import DefinitionError, InputError, StandfastError
from standfast.messages import JSONObject, person
from standfast.runtime.outside_decisions import show_again
from standfast.runtime.stored_gates import IN_PROCESS
from standfast.runtime.tasks import repeating
from standfast.stores.protocol import AgentStore, has_deletion, has_ledger, has_waits, session_id_of, session_key_of
from standfast.stores.waits import Board, ShownWait, WaitFilter, WaitPlace, Waits
from standfast.temporal.client.board.waiting_items import read_items, read_state
from standfast.temporal.client.queues.queue_stores import noted_store
from standfast.temporal.client.runs.descriptions import answer, listed, runs_query, was_started_by_us
from standfast.temporal.wire import names
from standfast.temporal.wire.boards import ShownItem, key_of, wait_of
from standfast.tools.checks import seconds

_CHECKED_AT_ONCE = 10  # in-process runs that are checked again in one reading


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
    return list(dict.fromkeys(late))[:_CHECKED_AT_ONCE]


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
) -> list[JSONObject]:
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


def board_item(shown: ShownWait) -> JSONObject:
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


_LOG = logging.getLogger("standfast")
_EVERY = 30.0  # seconds between two rounds; ten times as long for a store that counts requests
_PATIENCE = timedelta(seconds=2)  # for a query to a run
_QUERIED_AT_ONCE = 8  # runs that are queried or looked up
_LOOKED_UP = 200  # boards that are looked up in a round: all that have items, if the namespace lacks search attributes
_FORGOTTEN = timedelta(days=1)  # after which no late write with an older board can arrive
_NEVER_WRITTEN = datetime(1970, 1, 1, tzinfo=UTC)  # every write of a run is later


@dataclass(slots=True)
class Mended:
    """The faults of a board, by workflow id: runs that are over, and waiting runs that were missing from it.

    Args:
        until: the last board that was looked up; the next round begins after it.
    """

    over: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    until: str = ""


class BoardStore(Waits, AgentStore, Protocol):
    """A store that has a board."""


@asynccontextmanager
async def keeping_board(client: Client, store: AgentStore) -> AsyncIterator[None]:
    """Maintain the board of a namespace for as long as the block lasts, by one worker at a time."""
    if not has_waits(store):
        yield
        return
    mark, until = kept_mark(client.namespace), ""

    async def keep() -> None:
        nonlocal until
        if not await store.hold(mark):
            return
        try:
            mended = await mend_board(client, store, after=until)
            until = mended.until
            if has_ledger(store) and await store.load_reply(mark, 0) is None:
                await store.save_reply(mark, 0, "true")
        finally:
            await store.let_go(mark)
        if mended.over or mended.missing:
            _LOG.info("The board had %d runs that are over, and lacked %d", len(mended.over), len(mended.missing))

    every = _EVERY * (10 if hasattr(store, "look_every") else 1)
    async with repeating(keep, every, "The board could not be maintained; retrying next time", expected=RPCError):
        yield


async def mend_board(client: Client, store: BoardStore, *, after: str = "", dry_run: bool = False) -> Mended:
    """Make the board show the waiting items of a namespace's runs; a dry run only checks, but checks all of them.

    Args:
        after: the board after which boards are looked up that no list reports as waiting.
    """
    mended, few = Mended(), asyncio.Semaphore(_QUERIED_AT_ONCE)
    known = [one async for one in _all_boards(store, client.namespace)]  # read before any run is queried
    waiting = {run.id: run async for run in _waiting_runs(client, await store.identity())}
    jobs, doubtful = [], []
    for board, count in known:
        run = waiting.pop(board.workflow_id, None)
        is_same = run is not None and _first_run(run) == board.first_run_id
        if run is not None and is_same and (board.is_watched or not count):
            jobs.append(_ask(client, store, few, run, board, mended if not count else Mended(), dry_run))
        elif not is_same and (count or run is not None):
            doubtful.append((board, count, run))
    doubtful.sort(key=lambda one: (one[0].workflow_id <= after, one[0].workflow_id))
    for board, count, run in doubtful[: None if dry_run else _LOOKED_UP]:
        jobs.append(_look(client, store, few, board, count, run, mended, dry_run))
        mended.until = board.workflow_id
    jobs += [_ask(client, store, few, run, None, mended, dry_run) for run in waiting.values()]
    await asyncio.gather(*jobs)
    if not dry_run:
        await store.forget_boards(client.namespace, datetime.now(UTC) - _FORGOTTEN)
    return mended


async def _all_boards(store: Waits, namespace: str) -> AsyncIterator[tuple[Board, int]]:
    after = ""
    while found := await store.boards(namespace, after=after):
        for one in found:
            yield one
        after = found[-1][0].workflow_id


async def _waiting_runs(client: Client, store: str) -> AsyncIterator[WorkflowExecution]:
    """Yield the waiting runs of the task queues whose workers have this store.

    Other runs of the namespace do not belong to it.

    Args:
        store: its identity.
    """
    noted: dict[str, str | None] = {}
    try:
        async for run in client.list_workflows(runs_query(waiting=True)):
            if run.task_queue not in noted:
                noted[run.task_queue] = await noted_store(client, run.task_queue)
            if noted[run.task_queue] == store:
                yield run
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:  # the namespace lacks search attributes
            raise


def _first_run(run: WorkflowExecution) -> str:
    return run.raw_info.first_run_id or run.run_id


async def _look(
    client: Client,
    store: Waits,
    few: asyncio.Semaphore,
    board: Board,
    count: int,
    run: WorkflowExecution | None,
    mended: Mended,
    dry_run: bool,
) -> None:
    """Remove the items of a run that is over; query the run, if any, that has its workflow id now."""
    async with few:
        if await _is_open(client, board):
            return
        if count:
            mended.over.append(board.workflow_id)
        if count and not dry_run:
            await store.show_waits(board, [])
    if run is not None:
        await _ask(client, store, few, run, board, mended, dry_run)


async def _is_open(client: Client, board: Board) -> bool:
    """Whether the last run of a board's chain is open; the server's lists may be late."""
    try:
        run = await client.get_workflow_handle(board.workflow_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return run.status is WorkflowExecutionStatus.RUNNING and _first_run(run) == board.first_run_id


async def _ask(
    client: Client,
    store: Waits,
    few: asyncio.Semaphore,
    run: WorkflowExecution,
    board: Board | None,
    mended: Mended,
    dry_run: bool,
) -> None:
    """Add the items that a run reports, unless it has written its own board since the board was read."""
    try:
        async with few:
            items = await _pending(client, store, run)
    except (RPCError, WorkflowQueryFailedError, StandfastError):
        return  # no worker answers; it is queried again in the next round
    if items:
        mended.missing.append(run.id)
    if dry_run or not (items or (board is not None and board.is_watched)):
        return
    now = _board_of(client.namespace, run, board)
    shown = [_shown(item, run) for item in items]
    await store.show_waits(now, [wait_of(one, key_of(one), now) for one in shown])


async def _pending(client: Client, store: Waits, run: WorkflowExecution) -> list[JSONObject]:
    """Return the waiting items of a run; none if it has another store, to which its task queue belonged before."""
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    if not was_started_by_us(run):
        return _readable(read_items(await answer(client, handle, names.PENDING, _PATIENCE)))
    state = read_state(await answer(client, handle, names.STATUS, _PATIENCE))
    items, key = _readable(state["waiting"]), state.get("journal_key")
    if key is None or not has_ledger(store) or await store.load_reply(f"{key}/open", 0) is not None:
        return items
    # A run that is not open yet is in no store, and waits for a worker that has its agent.
    is_opening = all((item["kind"], item["name"]) == ("worker", run.workflow_type) for item in items)
    return items if is_opening else []


def _readable(items: list[JSONObject]) -> list[JSONObject]:
    return [item for item in items if item["kind"] != "unreadable"]


def _board_of(namespace: str, run: WorkflowExecution, board: Board | None) -> Board:
    seen = listed(run)
    tenant, session = seen.get("tenant_id"), seen.get("session_id")
    return Board(
        namespace=namespace,
        workflow_id=run.id,
        run_id=run.run_id,
        first_run_id=_first_run(run),
        journal_key=run.run_id,
        agent=run.workflow_type,
        task_queue=run.task_queue,
        at=_NEVER_WRITTEN if board is None else board.at,
        session=None if session is None else session_key_of(tenant, session),
        tenant_id=tenant,
        parent=seen.get("parent"),
        is_watched=True,
    )


def _shown(item: Mapping[str, Any], run: WorkflowExecution) -> ShownItem:
    groups = next((pair.value for pair in run.typed_search_attributes if pair.key.name == names.GROUP_ATTRIBUTE), None)
    shown: ShownItem = {"item": dict(item)}
    if item["kind"] == "approval" and isinstance(groups, list):
        shown["groups"] = [str(group) for group in groups]
    return shown
