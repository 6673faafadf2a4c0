"""Shows people what a run waits for: in queries, search attributes, its page in Temporal Web, and notices."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, FailureError

from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ActivityName, NotifyReference, OpenReference
from standfast.temporal.wire.boards import ShownItem, ShowReference, Whose, key_of
from standfast.temporal.wire.inbox import TOLD, Mailbox
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.results import fits
from standfast.temporal.wire.shown_gates import within_query
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.workflows.board.visibility import Refused, show_ended, show_waiting
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.run.activity_options import (
    NOTIFY_OPTIONS,
    SHOW_ELSEWHERE_OPTIONS,
    SHOW_OPTIONS,
    summary,
)
from standfast.temporal.workflows.run.activity_results import read_result

_SHOWN = 500  # characters of a message that the agent has not read yet

_PUT_BYTES = 500_000  # of the items that one write adds
_UNKNOWN = {"?": None}  # the store's rows after a reset: no item has this key


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


Opening = tuple[ActivityName[OpenReference, Any], OpenReference]


class RunFace(Protocol):
    """What the parts of a run ask of the run."""

    @property
    def asks_groups(self) -> bool:
        """Whether it may ask groups of people, as far as that is known at its start."""
        ...

    def page(self, status: str, waiting: Sequence[Waiting], refused: Refused) -> str:
        """Return the Markdown for the run's page."""
        ...

    def whose(self) -> Whose:
        """Return the run's owner."""
        ...

    def opening(self) -> Opening:
        """Return the activity that opens the run, or searches for a worker that could, and its reference."""
        ...

    def learn(self, found: Surroundings) -> None:
        """Take in the run's surroundings before the run is open."""
        ...

    def leave_if_long(self) -> None:
        """Prepare to continue as new if the history has become too long; called after each signal."""
        ...

    def patience(self) -> float | None:
        """Return the seconds that the run waits for a person at a pause; None for no limit."""
        ...

    def choose_model(self, model: str) -> None:
        """Take in the model that a person chose with a resume."""
        ...


class Board:
    """The items that a run waits for, and how the run ended.

    Args:
        mailbox: the messages sent to the run; people see the refused ones, and those the agent has not read yet.
    """

    def __init__(self, mailbox: Mailbox, run: RunFace) -> None:
        self.waiting: tuple[Waiting, ...] = ()
        self.ended = ""  # the final status of the run
        self.error: str | None = None  # the reason why the run failed
        self.search = False  # the namespace has the search attributes
        self.notices = False  # the worker had webhooks when the run began
        self.asks_groups = run.asks_groups  # also once a gate asks a group
        self.rows = BoardRows(lambda: () if self.ended else self.waiting, run.whose)
        self._mailbox, self._run = mailbox, run
        self._called: dict[str, str] = {}  # the status of each called agent's run, by its call or step
        self._told = "running"  # the status that was last sent to the caller of this run
        self._tells = False  # the run's page will be updated

    @property
    def status(self) -> str:
        return self.ended or self._status()

    @property
    def first_status(self) -> str:
        """The status of a run that is not open yet."""
        return self.status if self.waiting else self.ended or "starting"

    def _status(self) -> str:
        if any(item.kind == "pause" for item in self.waiting):
            return "paused"
        called = self._called.values()
        if self.waiting or "waiting" in called:
            return "waiting"
        return "paused" if "paused" in called else "running"

    def seen(self) -> JSONObject:
        """Return the fields that `status` shows for every run."""
        seen: JSONObject = {"waiting": self.pending(), "refused": self._mailbox.refused}
        if unheard := [user_message(said).content[:_SHOWN] for said in self._mailbox.messages]:
            seen["unheard"] = unheard
        return seen if self.error is None else {**seen, "error": self.error}

    def pending(self) -> list[JSONObject]:
        return within_query((item.plain() for item in self.waiting), self._run.whose()["run"])

    def gates(self) -> list[str]:
        """Return the names of the items that need approval."""
        return [item.name for item in self.waiting if item.kind == "approval"]

    def overdue(self, *kinds: str) -> datetime | None:
        """Return the earliest deadline that has passed among the waiting items of these kinds; None if none has."""
        deadlines = [item.deadline for item in self.waiting if item.kind in kinds and item.deadline is not None]
        return min((deadline for deadline in deadlines if deadline <= workflow.now()), default=None)

    # --- what changes it ---

    def begin(self, *waiting: Waiting) -> None:
        self.waiting += waiting
        self._show()
        for item in waiting:
            self.notify(item)

    def begin_instead(self, *waiting: Waiting) -> None:
        """Show these items instead of all others."""
        self.waiting = ()
        self.begin(*waiting)

    def progressed(self, name: str, approved_by: tuple[str, ...]) -> None:
        """Show the people who have approved so far.

        The search attributes stay unchanged, since the run waits for the same people.
        """
        self.waiting = tuple(
            replace(item, approved_by=approved_by) if (item.kind, item.name) == ("approval", name) else item
            for item in self.waiting
        )
        self.tell()
        self.rows.changed()

    def end(self, *ended: Waiting) -> None:
        # By identity: two calls may have waited for the same thing since the same time.
        self.waiting = tuple(item for item in self.waiting if not any(item is one for one in ended))
        self._show()

    def end_gate(self, name: str) -> None:
        if items := [item for item in self.waiting if item.is_gate(name)]:
            self.end(*items)

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Count the run of a called agent: while that run waits, this run waits.

        Args:
            name: of the call or step.
        """
        self._called[name] = "running"
        try:
            yield
        except (FailureError, asyncio.CancelledError):
            self._returned(name)
            raise
        self._returned(name)

    def _returned(self, name: str) -> None:
        self.take_called({"name": name, "status": "running"})
        self._called.pop(name, None)

    def take_called(self, data: Any) -> None:
        """Take in the status of a called agent's run; a signal that names an unknown run changes nothing."""
        given = data if isinstance(data, dict) else {}
        name, status = given.get("name"), given.get("status")
        if not isinstance(name, str) or name not in self._called or status not in ("running", "waiting", "paused"):
            return
        before, self._called[name] = self._status(), status
        if self._status() != before and not self.ended:
            self._show()

    def _tell_caller(self) -> None:
        """Tell the run that called this one whether it waits."""
        parent, status = workflow.info().parent, self._status()
        if parent is None or status == self._told or self.ended:
            return
        name: str | None = workflow.memo_value(names.CALLER_MEMO, None, type_hint=str)
        if name is not None:  # otherwise an earlier version started it
            self._told = status
            caller = workflow.get_external_workflow_handle(parent.workflow_id)
            asyncio.create_task(_send(caller, {"name": name, "status": status}))  # noqa: RUF006  # the workflow holds it

    def end_run(self, status: str) -> None:
        """End the run. Messages that have arrived but were not taken in do not count."""
        self.ended = status
        self._tell()
        if self.search:
            show_ended(status)
        self._mailbox.refuse_all()
        self.rows.changed()

    def tell(self) -> None:
        """Update the run's page once the events at hand are applied: many gates may open with one of them."""
        if not self._tells:
            self._tells = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._tells = False
        workflow.set_current_details(self._run.page(self.status, self.waiting, self._mailbox.refused))

    def refuse(self, name: str, reason: str) -> None:
        """Note why a message changes nothing. The sender of a signal gets no reply, and can look up the reason."""
        self._mailbox.note(name, reason, workflow.now().isoformat())
        self.tell()

    def notify(self, item: Waiting, reminder: int | None = None) -> None:
        """Notify people once of the waiting items. The run does not wait for the notices."""
        told = f"{item.kind}/{item.name}/{item.since.isoformat()}/{item.digest}/{reminder}"
        if not self.notices or told in self._mailbox.told:
            return
        self._mailbox.told = [*self._mailbox.told[1 - TOLD :], told]
        reference: NotifyReference = {"item": item.plain(), "run": self._run.whose()["run"]}
        if reminder is not None:
            reference["reminder"] = reminder
        task = workflow.start_activity(
            names.NOTIFY,
            reference,
            result_type=RawValue,  # nothing reads it
            **NOTIFY_OPTIONS,
            summary=summary(f"tell of {item.kind} {item.name}"),
        )
        task.add_done_callback(_tell_of_failure)

    def _show(self) -> None:
        self.tell()
        if self.search:
            show_waiting(self._status(), self.waiting, groups=self.asks_groups)
        self.rows.changed()
        self._tell_caller()


async def _send(caller: "workflow.ExternalWorkflowHandle[Any]", told: dict[str, str]) -> None:
    with suppress(FailureError):  # the run has ended
        await caller.signal(names.CALLED_STATUS, told)


def _tell_of_failure(notice: "asyncio.Task[Any]") -> None:
    if not notice.cancelled() and (error := notice.exception()) is not None:
        workflow.logger.warning("No one was notified: %s", error.__cause__ or error)
