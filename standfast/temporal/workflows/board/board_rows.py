"""Writes a run's waiting items to the store in the background; the run waits for these writes only at its end."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, FailureError

from standfast.temporal.wire import names
from standfast.temporal.wire.boards import ShownItem, ShowReference, Whose, key_of
from standfast.temporal.wire.results import fits
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.run.activity_options import SHOW_ELSEWHERE_OPTIONS, SHOW_OPTIONS
from standfast.temporal.workflows.run.activity_results import read_result

_PUT_BYTES = 500_000  # of the items that one write adds
_UNKNOWN = {"?": None}  # the store's rows after a reset: no item has this key


def whose(run: str, session: str | None, tenant_id: str | None, user_id: str | None) -> Whose:
    """Return the run's owner, for its board, without unknown values."""
    parent = workflow.info().parent
    known = {"session": session, "tenant_id": tenant_id, "user_id": user_id, "parent": parent and parent.workflow_id}
    return cast(Whose, {"run": run, **{name: value for name, value in known.items() if value}})


class BoardRows:
    """The rows of a run's board in the store.

    The run makes one write at a time, with all changes since the last one. The run's own worker tries first, in its
    workflow task; then any worker retries for as long as the store is away. A write's time is the server's, and later
    than that of every earlier write. So a run that was reset or replaced cannot undo later writes.

    Args:
        waiting: returns the run's waiting items; none once the run has ended.
        whose: returns the run's owner.
    """

    def __init__(self, waiting: Callable[[], Sequence[Waiting]], whose: Callable[[], Whose]) -> None:
        self.is_kept = False  # the workers' store had a board when the run began
        self.stays: Callable[[], bool] = lambda: False  # shown items stay, even if they do not wait just now
        self.keeps = False  # the previous run's items stay until they are asked again
        self._waiting, self._whose = waiting, whose
        self._shown: dict[str, None] = {}  # the keys in the store
        self._known: dict[int, tuple[Waiting, str, ShownItem]] = {}  # by identity: an item never changes
        self._at: datetime | None = None  # of the last write
        self._writing: asyncio.Task[None] | None = None
        self._elsewhere: asyncio.Future[Any] | None = None
        self._is_ending = False
        self._is_anothers = False  # written by the previous run of the chain
        if workflow.in_workflow():
            self._loop = asyncio.get_running_loop()  # a reset is detected elsewhere

    def carried(self) -> list[str]:
        """Return the keys of the stored rows, for the run that continues this one."""
        return list(_UNKNOWN if self._writing is not None else self._shown)

    def take_over(self, carried: Sequence[str], *, keeps: bool = False) -> None:
        self._shown, self.keeps = dict.fromkeys(carried), keeps
        self._is_anothers = bool(carried) and (keeps or self.stays())

    def was_reset(self) -> None:
        """Take in that the store still shows items from after the point of the reset."""
        self._shown = dict(_UNKNOWN)
        self.changed()

    def changed(self) -> None:
        """Write the board, unless a write is already running."""
        if self.is_kept and self._writing is None and self._differs(self._items()):
            self._writing = self._loop.create_task(self._write())

    async def settled(self, *, ending: bool = False) -> None:
        """Wait until the store shows the current items, or until the first attempt has failed.

        Args:
            ending: nothing retries, since the run is over: a worker finds the remaining rows and removes them.
        """
        self._is_ending = ending
        self.changed()
        if ending and self._elsewhere is not None:
            self._elsewhere.cancel()
        if self._writing is None:
            return
        await workflow.wait_condition(lambda: self._writing is None or (self._elsewhere is not None and not ending))

    def _items(self) -> dict[str, ShownItem]:
        """Return the run's waiting items, by key."""
        known, found = self._known, dict[str, ShownItem]()
        self._known = {}
        for waiting in self._waiting():
            _, key, shown = self._known[id(waiting)] = known.get(id(waiting)) or _shown(waiting)
            while key in found:
                key += "+"  # two calls may have waited for the same thing since the same time
            found[key] = shown
        if not self._is_ending and (self.keeps or self.stays()):
            found |= {key: ShownItem(item={}) for key in self._shown if key not in found}  # only its key is written
        return found

    def _differs(self, items: dict[str, ShownItem]) -> bool:
        if self.keeps and items.keys() == _UNKNOWN.keys():
            return False  # the previous run was writing, and a write without its keys would remove its rows
        return items.keys() != self._shown.keys() or self._is_anothers

    async def _write(self) -> None:
        while self._differs(items := self._items()):
            self._is_anothers = False
            put, size = dict[str, ShownItem](), 0
            for key, shown in items.items():
                if key not in self._shown and size < _PUT_BYTES:
                    put[key] = shown
                    size += len(str(shown))
            keep = [key for key in items if key in self._shown]
            missing = await self._write_once(put, keep)
            if missing is None:
                break
            self._shown = dict.fromkeys([*(key for key in keep if key not in missing), *put])
        self._writing = None

    async def _write_once(self, put: dict[str, ShownItem], keep: list[str]) -> list[str] | None:
        """Return the kept items that were missing from the store; None if the board cannot be written."""
        last, info = self._at, workflow.info()
        self._at = max(workflow.now(), last + timedelta(microseconds=1)) if last is not None else workflow.now()
        reference: ShowReference = {
            **self._whose(),
            "at": self._at.isoformat(),
            "first_run": info.first_execution_run_id,
            "put": list(put.items()),
            "keep": keep,
        }
        try:
            missing: list[str] = await workflow.execute_local_activity(names.SHOW, reference, **SHOW_OPTIONS)
            return missing
        except FailureError as error:
            if self._is_ending:
                workflow.logger.warning("The run's waiting items stay listed until a worker checks them: %s", error)
                return None
        try:
            while True:
                self._elsewhere = workflow.start_activity(
                    names.SHOW, reference, result_type=RawValue, **SHOW_ELSEWHERE_OPTIONS
                )
                found = read_result(await self._elsewhere)
                if fits(names.SHOW, reference, found):  # otherwise an operator completed it by hand
                    return cast("list[str]", found)
                if self._is_ending:
                    return list(keep)
        except (ActivityError, asyncio.CancelledError) as error:
            if self._is_ending:
                return list(keep)  # again, with the current items
            workflow.logger.warning("The board is no longer written: %s", error.__cause__ or error)
            self.is_kept = False
            return None
        finally:
            self._elsewhere = None


def _shown(waiting: Waiting) -> tuple[Waiting, str, ShownItem]:
    shown: ShownItem = {"item": waiting.plain()}
    if waiting.groups:
        shown["groups"] = list(waiting.groups)
    if waiting.requesters:
        shown["requesters"] = list(waiting.requesters)
    return waiting, key_of(shown), shown
