"""Pauses a run, after a failure or for lack of a worker, until people decide how it continues."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from temporalio import workflow

from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Resume, Sent
from standfast.temporal.wire.limits import AWAITED_BYTES
from standfast.temporal.workflows.board.run_board import Board
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.inbox.arrivals import Inbox, refuse_by
from standfast.temporal.workflows.run.activity_results import was_cancelled
from standfast.temporal.workflows.run.run_lifetime import Running


class Retries(TypedDict, total=False):
    """The attempts that may end a pause; see `Waiting`."""

    retry_at: datetime
    retry_every: float


class Pauses:
    """The pauses of a run, which a resume ends.

    Args:
        patience: returns the seconds that the run waits for a person, None for no limit.
        choose_model: takes in the model that a person chose with a resume.
    """

    def __init__(
        self,
        board: Board,
        inbox: Inbox,
        running: Running,
        patience: Callable[[], Any],
        choose_model: Callable[[str], None],
    ) -> None:
        self._board, self._inbox, self._running = board, inbox, running
        self._patience, self._choose_model = patience, choose_model
        self._resumes: list[tuple[Waiting, asyncio.Future[Resume]]] = []
        self._deadlines: dict[str, datetime] = {}  # by name: of pauses that ended without a person, and may begin again

    def deadline(self, since: datetime) -> datetime | None:
        patience = self._patience()
        return None if patience is None else since + timedelta(seconds=patience)

    async def pause(
        self, name: str, message: str, mended: "asyncio.Future[Any] | None" = None, **shown: Unpack[Retries]
    ) -> bool:
        """Wait until a person decides; True to try again, False if the run must give up.

        Args:
            mended: an attempt that runs automatically; once it has ended, the pause is over. If it fails, the
            next pause of this name keeps the deadline.
            shown: what people see of these attempts.
        """
        since = workflow.now()
        deadline = self.deadline(since)
        if (first := self._deadlines.pop(name, None)) is not None and workflow.patched(names.DEADLINES_STAY):
            deadline = first
        waiting = Waiting("pause", name, message, since, deadline, **shown)
        resumed = self.begin(waiting)
        workflow.logger.warning("Paused, %s: %s", name, message)
        ends = [resumed] if mended is None else [resumed, mended]
        await self._running.until(lambda: any(one.done() for one in ends), waiting.deadline, f"resume of {name}")
        if not any(one.done() for one in ends):
            await self._inbox.looked_up()
        if resumed.done() and (late := resumed.result().late) is not None:
            if await self._inbox.is_late(late, waiting.deadline):
                resumed = asyncio.get_running_loop().create_future()
            else:
                self._inbox.mailbox.came_of(late.id, accepted=True)
        self.end(waiting)
        if mended is not None and not resumed.done() and mended.done():
            if deadline is not None and (was_cancelled(mended) or mended.exception() is not None):
                self._deadlines[name] = deadline
            return True
        if mended is not None:
            mended.cancel()
            await asyncio.gather(mended, return_exceptions=True)
        if not resumed.done() or resumed.result().action == "abort":
            return False
        if (model := resumed.result().model) is not None:
            self._choose_model(model)
        return True

    def over(self, name: str) -> None:
        """Forget the deadline of earlier pauses: the cause of the pause is gone."""
        self._deadlines.pop(name, None)

    def begin(self, waiting: Waiting) -> "asyncio.Future[Resume]":
        """Show the waiting item, and return the future of the resume that ends it."""
        resumed: asyncio.Future[Resume] = asyncio.get_running_loop().create_future()
        self._resumes.append((waiting, resumed))
        self._board.begin(waiting)
        return resumed

    def end(self, waiting: Waiting) -> None:
        self._resumes = [one for one in self._resumes if one[0] is not waiting]
        self._board.end(waiting)

    # --- resumes ---

    def take_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take("resume", data, lambda given, _: self._read(given, extra), self._take)

    def take_update(self, data: Any, extra: tuple[Any, ...]) -> dict[str, Any]:
        return self._take(self._read(data, extra))

    def check_update(self, data: Any, extra: tuple[Any, ...]) -> None:
        def read() -> None:
            self._read(data, extra)
            self._inbox.refuse_overdue("resume", "pause")

        refuse_by(read)

    def _read(self, data: Any, extra: tuple[Any, ...]) -> Resume:
        data = self._inbox.one("resume", {} if data is None else data, extra, most=AWAITED_BYTES)
        paused = [item.name for item, _ in self._resumes if not item.can_skip]
        return self._inbox.mailbox.read_resume(data, paused, [item.name for item, _ in self._resumes if item.can_skip])

    def _take(self, resume: Resume, sent: Sent | None = None) -> dict[str, Any]:
        """End all pauses that the resume is for: they try again, or give up."""
        late = None if self._board.overdue("pause") is None else sent
        ends = [
            one
            for one in self._resumes
            if one[0].can_skip == (resume.action == "skip") and resume.name in (None, one[0].name)
        ]
        self._resumes = [one for one in self._resumes if one not in ends]
        for _, resumed in ends:
            resumed.set_result(replace(resume, late=late))
        return {"accepted": True} if late is None else {}
