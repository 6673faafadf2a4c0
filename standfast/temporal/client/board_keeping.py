"""Repairs the board from time to time: removes rows that a crash left behind, and adds missing rows.

A run writes its own board. Rows that a run could not remove, since it was terminated or deleted, are removed here. Runs
that wait according to Temporal's search attributes but are missing from the board are queried. Earlier versions have
begun them, or a store has lost their rows. Such boards are queried again in each round, until the run itself writes
one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import StandfastError
from standfast.runtime.repeating import repeating
from standfast.stores.capabilities import has_ledger, has_waits
from standfast.stores.protocol import AgentStore, session_key_of
from standfast.stores.waits import Board, Waits
from standfast.temporal.client.boards import kept_mark
from standfast.temporal.client.queue_stores import noted_store
from standfast.temporal.client.runs import answer, listed, runs_query, was_started_by_us
from standfast.temporal.client.waiting_items import read_items, read_state
from standfast.temporal.wire import names
from standfast.temporal.wire.boards import ShownItem, key_of, wait_of

_LOG = logging.getLogger("standfast")
_EVERY = 30.0  # seconds between two rounds; ten times as long for a store that counts requests
_PATIENCE = timedelta(seconds=2)  # for a query to a run
_AT_ONCE = 8  # runs that are queried or looked up
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
    mended, few = Mended(), asyncio.Semaphore(_AT_ONCE)
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


async def _pending(client: Client, store: Waits, run: WorkflowExecution) -> list[dict[str, Any]]:
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


def _readable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
