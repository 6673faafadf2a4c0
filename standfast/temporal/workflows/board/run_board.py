"""Shows people what a run waits for: in queries, search attributes, its page in Temporal Web, and notices."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import NotifyReference
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inbox import TOLD, Mailbox
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.shown_gates import within_query
from standfast.temporal.workflows.board.board_rows import BoardRows
from standfast.temporal.workflows.board.visibility import Refused, show_ended, show_waiting
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.run.activity_options import NOTIFY_OPTIONS, summary

Details = Callable[[str, Sequence[Waiting], Refused], str]
_SHOWN = 500  # characters of a message that the agent has not read yet


class Board:
    """The items that a run waits for, and how the run ended.

    Args:
        mailbox: the messages sent to the run; people see the refused ones, and those the agent has not read yet.
        details: returns the Markdown for the run's page from its status, the waiting items and the refused messages.
        whose: returns the run's owner.
        asks_groups: the run may ask groups of people; set when a gate asks a group, unless known earlier.
    """

    def __init__(
        self, mailbox: Mailbox, details: Details, whose: Callable[[], Whose], *, asks_groups: bool = False
    ) -> None:
        self.waiting: tuple[Waiting, ...] = ()
        self.ended = ""  # the final status of the run
        self.error: str | None = None  # the reason why the run failed
        self.search = False  # the namespace has the search attributes
        self.notices = False  # the worker had webhooks when the run began
        self.asks_groups = asks_groups
        self.rows = BoardRows(lambda: () if self.ended else self.waiting, whose)
        self._mailbox = mailbox
        self._details = details
        self._whose = whose
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

    def seen(self) -> dict[str, Any]:
        """Return the fields that `status` shows for every run."""
        seen: dict[str, Any] = {"waiting": self.pending(), "refused": self._mailbox.refused}
        if unheard := [user_message(said).content[:_SHOWN] for said in self._mailbox.messages]:
            seen["unheard"] = unheard
        return seen if self.error is None else {**seen, "error": self.error}

    def pending(self) -> list[dict[str, Any]]:
        return within_query((item.plain() for item in self.waiting), self._whose()["run"])

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
        workflow.set_current_details(self._details(self.status, self.waiting, self._mailbox.refused))

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
        reference: NotifyReference = {"item": item.plain(), "run": self._whose()["run"]}
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
