"""What every run of ours has: things that wait, which people see and end; workers it needs; and how it ended."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import TOLD, Resume, Sent
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.limits import AWAITED_BYTES
from standfast.temporal.wire.results import fits
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.workflows.activity_options import NOTIFY_OPTIONS, OPEN_ELSEWHERE_OPTIONS, OPEN_OPTIONS, summary
from standfast.temporal.workflows.arrivals import Arrivals, refuse_by
from standfast.temporal.workflows.missing_workers import (
    SkippedError,
    is_missing,
    is_store_away,
    may_pass,
    missing,
    put_in_by_hand,
    surroundings_of,
    with_store,
)
from standfast.temporal.workflows.run_failures import why
from standfast.temporal.workflows.running import Running
from standfast.temporal.workflows.store_waits import StoreWaits
from standfast.temporal.workflows.visibility import show_ended, show_waiting
from standfast.temporal.workflows.waiting import Waiting

_SHOWN = 500  # characters of what was said and is not heard yet
T = TypeVar("T")

_RESUME = (
    'Go on after a pause, or without what no worker has: {"action": "retry" | "abort" | "skip", "name"?, "model"?, '
    '"reason"?}'
)
EVENTS = 4_000  # of a history, after which a run continues as new while it waits: replay stays short


class Waits(Arrivals):
    """The base of all runs. What differs is in `_parked`, `_details` and `_opening`, and in what steers it."""

    _search = False  # the namespace has the search attributes
    _patience: float | None = None  # seconds that a pause waits for a person
    _asks_groups = False
    _notices = False  # the worker had webhooks when the run began

    def __init__(self) -> None:
        super().__init__()
        self._running = Running()
        self._resumes: list[tuple[Waiting, asyncio.Future[Resume]]] = []  # what a resume can end
        self.store_waits = StoreWaits(self._wait_for, self._end_waiting)
        self._error: str | None = None  # what the run failed with
        self._resets = 0  # of the workflow: what was acknowledged behind the point of a reset is in the store
        if workflow.in_workflow():
            # The one thing that a workflow hears of a reset, in every replay at the same place.
            workflow.register_random_seed_callback(self._was_reset)

    @property
    def is_cancelled(self) -> bool:
        return self._running.cancelled

    def _was_reset(self, seed: int) -> None:
        self._resets += 1

    def _opening(self) -> tuple[str, dict[str, Any]]:
        """Return the activity that opens the run, or looks for a worker that could, and its reference."""
        raise NotImplementedError

    # --- from the start to the end ---

    async def _drive(self, main: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Run to the end. A cancel reaches what runs first; the run ends when that has ended."""
        task = asyncio.ensure_future(self._to_its_end(main))
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done():
                    raise
                self._running.cancel()

    async def _to_its_end(self, main: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Run, and end when whoever was sending something knows what became of it."""
        try:
            return await main
        except FailureError as error:
            self._error = why(error)
            self._ending("error")
            await self._handlers_ended()
            raise
        except asyncio.CancelledError:
            if not self._ended:
                self._ending("cancelled")
            await self._handlers_ended()
            raise

    async def _handlers_ended(self) -> None:
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _ending(self, status: str) -> None:
        self._ended = status
        self._tell()
        if self._search:
            show_ended(status)

    # --- resumes ---

    def _read_resume(self, data: Any, extra: tuple[Any, ...]) -> Resume:
        data = self._one("resume", {} if data is None else data, extra, most=AWAITED_BYTES)
        paused = [item.name for item, _ in self._resumes if not item.can_skip]
        return self._mailbox.read_resume(data, paused, [item.name for item, _ in self._resumes if item.can_skip])

    def _take_resume(self, resume: Resume, sent: Sent | None = None) -> dict[str, Any]:
        """Let go on, or not, all that the resume is for."""
        late = None if self._overdue("pause") is None else sent
        ends = [one for one in self._resumes if one[0].can_skip == (resume.action == "skip")
                and resume.name in (None, one[0].name)]  # fmt: skip
        self._resumes = [one for one in self._resumes if one not in ends]
        for _, resumed in ends:
            resumed.set_result(replace(resume, late=late))
        return {"accepted": True} if late is None else {}

    # --- what waits ---

    def _wait_for(self, *waiting: Waiting) -> None:
        self._waiting += waiting
        self._show()
        for item in waiting:
            self._notify(item)

    def _notify(self, item: Waiting, reminder: int | None = None) -> None:
        """Have people told of what waits, once; the run does not wait for that."""
        told = f"{item.kind}/{item.name}/{item.since.isoformat()}/{item.digest}/{reminder}"
        if not self._notices or told in self._mailbox.told:
            return
        self._mailbox.told = [*self._mailbox.told[1 - TOLD :], told]
        reference: dict[str, Any] = {"item": item.plain()} | ({} if reminder is None else {"reminder": reminder})
        task = workflow.start_activity(
            names.NOTIFY, reference, **NOTIFY_OPTIONS, summary=summary(f"tell of {item.kind} {item.name}")
        )
        task.add_done_callback(_tell_of_failure)

    def _end_waiting(self, *ended: Waiting) -> None:
        # By identity: two calls may wait for the same, since the same time.
        self._waiting = tuple(item for item in self._waiting if not any(item is one for one in ended))
        self._resumes = [one for one in self._resumes if not any(one[0] is item for item in ended)]
        self._show()

    def _show(self) -> None:
        self._tell()
        if self._search:
            show_waiting(self._status(), self._waiting, groups=self._asks_groups)

    def _status(self) -> str:
        if any(item.kind == "pause" for item in self._waiting):
            return "paused"
        return "waiting" if self._waiting else "running"

    def _seen(self) -> dict[str, Any]:
        """Return what `status` shows of every run."""
        seen: dict[str, Any] = {
            "waiting": [item.plain() for item in self._waiting], "refused": self._mailbox.refused
        }  # fmt: skip
        if unheard := [user_message(said).content[:_SHOWN] for said in self._mailbox.messages]:
            seen["unheard"] = unheard
        return seen if self._error is None else {**seen, "error": self._error}

    async def _until(self, condition: Callable[[], bool], deadline: datetime | None, summary: str) -> bool:
        """Wait for a condition, the deadline or a cancel; returns whether it was the deadline."""
        timeout = None if deadline is None else max(0.0, (deadline - workflow.now()).total_seconds())
        try:
            await workflow.wait_condition(
                lambda: condition() or self._running.cancelled, timeout=timeout, timeout_summary=summary
            )
        except TimeoutError:
            return True
        return False

    # --- pauses ---

    def _deadline(self, since: datetime) -> datetime | None:
        return None if self._patience is None else since + timedelta(seconds=self._patience)

    async def pause(self, name: str, message: str, mended: "asyncio.Future[Any] | None" = None) -> bool:
        """Wait until a person says what to do; True to try again, False if the run is to give up.

        Args:
            mended: tries by itself; when it has ended, there is nothing to wait for.
        """
        since = workflow.now()
        waiting = Waiting("pause", name, message, since, self._deadline(since))
        resumed = self._may_resume(waiting)
        self._wait_for(waiting)
        workflow.logger.warning("Paused, %s: %s", name, message)
        ends = [resumed] if mended is None else [resumed, mended]
        await self._until(lambda: any(one.done() for one in ends), waiting.deadline, f"resume of {name}")
        if resumed.done() and (late := resumed.result().late) is not None:
            if await self._is_late(late, waiting.deadline):
                resumed = asyncio.get_running_loop().create_future()
            else:
                self._mailbox.came_of(late.id, accepted=True)
        self._end_waiting(waiting)
        if mended is not None and not resumed.done() and mended.done():
            return True
        if mended is not None:
            mended.cancel()
            await asyncio.gather(mended, return_exceptions=True)
        if not resumed.done() or resumed.result().action == "abort":
            return False
        self._resumed(resumed.result().model)
        return True

    def _may_resume(self, waiting: Waiting) -> "asyncio.Future[Resume]":
        """Return what becomes the resume that ends this."""
        resumed: asyncio.Future[Resume] = asyncio.get_running_loop().create_future()
        self._resumes.append((waiting, resumed))
        return resumed

    def _resumed(self, model: str | None) -> None:
        """Take in the model that a person chose with a resume."""

    # --- workers ---

    async def _open_anywhere(self) -> dict[str, Any] | None:
        """Open the run, on a worker that can; None if it is cancelled before there is one."""
        activity, reference = self._opening()
        try:
            opened: dict[str, Any] = await workflow.execute_local_activity(activity, reference, **OPEN_OPTIONS)
        except FailureError as error:  # the cause itself, of a local activity that fails at once
            if is_missing(error):
                return await self.await_worker(error)
            if is_store_away(error):
                self._learn_from(error)
            elif not may_pass(error):
                raise
            return await self._open_elsewhere(activity, reference)
        return opened

    async def _open_elsewhere(self, activity: str, reference: dict[str, Any]) -> dict[str, Any] | None:
        """Open the run on any worker, since the one that has its workflow could not at once."""
        options = {**OPEN_ELSEWHERE_OPTIONS, "summary": "on a worker that can"}
        try:
            return await self._open_with_store(activity, reference, options)
        except (asyncio.CancelledError, ActivityError) as error:
            if self._running.cancelled:
                return None
            if not isinstance(error, ActivityError) or not is_missing(error):
                raise
            return await self.await_worker(error)

    async def _open_with_store(
        self, activity: str, reference: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what opens the run.

        Raises:
            ApplicationError: it was completed by hand with what no run can use, and nobody wants it tried again.
        """
        while not fits(activity, reference, opened := await self._with_store(activity, reference, options)):
            if not await self.pause(activity, put_in_by_hand(activity)):
                if self._running.cancelled:
                    raise asyncio.CancelledError
                raise ApplicationError(put_in_by_hand(activity), type="InputError", non_retryable=True)
        return cast("dict[str, Any]", opened)

    async def _with_store(self, activity: str, reference: dict[str, Any], options: dict[str, Any]) -> Any:
        """Return the result of an activity that a cancel reaches, however long its store is away."""

        async def attempt(options: dict[str, Any]) -> Any:
            return await self._running.wait(workflow.start_activity(activity, reference, **options))

        return await self.store_waits.holding(names.holder(activity, reference), with_store(self, attempt, options))

    def show_store_away(self, error: FailureError, since: datetime) -> None:
        """Show that an activity waits for the store."""
        self._learn_from(error)
        self.store_waits.add(why(error), since)

    def show_store_back(self) -> None:
        """Take back what `show_store_away` has shown."""
        self.store_waits.remove()

    def _learn_from(self, error: FailureError) -> None:
        """Take in where the run is from what a worker says that cannot open it."""
        if "input" in self._opening()[1]:
            self._learn(surroundings_of(error))

    def _learn(self, found: Surroundings) -> None:
        """Take in, before the run is open, where it is."""
        raise NotImplementedError

    async def await_worker(
        self, error: FailureError, tool: str | None = None, path: str | None = None
    ) -> dict[str, Any] | None:
        """Wait until a worker has what the last one had not; returns what it opens, None if the run is cancelled.

        Args:
            tool, path: a tool or step that it needs besides the agent or pipeline; a person may go on without it.

        Raises:
            SkippedError: a person has done so.
        """
        name, message = missing(error, tool)
        activity, reference = self._opening()
        self._learn_from(error)
        reference |= {key: value for key, value in (("tool", tool), ("path", path)) if value is not None}
        can_skip = tool is not None or path is not None
        waiting = Waiting("worker", name, message, workflow.now(), can_skip=can_skip)
        skipped = self._may_resume(waiting) if can_skip else None
        self._wait_for(waiting)
        workflow.logger.warning("Waits for a worker: %s", message)
        options = {**OPEN_ELSEWHERE_OPTIONS, "summary": summary(f"on a worker that has {name}")}
        try:
            opening = asyncio.ensure_future(self._open_with_store(activity, reference, options))
            opened: dict[str, Any] | None = await _unless(skipped, opening)
        except (asyncio.CancelledError, ActivityError) as other:
            if not self._running.cancelled:
                if isinstance(other, ActivityError):
                    self._end_waiting(waiting)
                raise
            opened = None
        self._end_waiting(waiting)
        if skipped is not None and skipped.done():
            raise SkippedError(name, skipped.result())
        return opened

    # --- signals, updates and queries of every run ---

    @workflow.signal(name=names.RESUME, description=_RESUME)
    def resume_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("resume", data, lambda given, _: self._read_resume(given, extra), self._take_resume)

    @workflow.update(name=names.RESUME, description=_RESUME)
    def resume_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        return self._take_resume(self._read_resume(data, extra))

    @resume_update.validator
    def _check_resume(self, data: Any = None, *extra: Any) -> None:
        def read() -> None:
            self._read_resume(data, extra)
            self._refuse_overdue("resume", "pause")

        refuse_by(read)

    @workflow.signal(name=names.STORE_WAITS, description="From workers: the store does not take what they hold")
    def store_waits_signal(self, data: Any = None, *extra: Any) -> None:
        self.store_waits.told(data)

    @workflow.query(name=names.OUTCOME, description="What became of a signal with an id; null if none has come")
    def outcome(self, sent: Any = None, digest: Any = None, *ignored: Any) -> dict[str, Any] | None:
        if not isinstance(sent, str):
            return None
        problem = self._mailbox.reused(sent, digest) if isinstance(digest, str) else None
        return self._outcome(sent) if problem is None else {"refused": problem}

    @workflow.query(name=names.PENDING, description="What waits for a person: kind, name, message, since, deadline")
    def pending(self, *ignored: Any) -> list[dict[str, Any]]:
        return [waiting.plain() for waiting in self._waiting]


async def _unless(skipped: "asyncio.Future[Resume] | None", found: "asyncio.Future[T]") -> T | None:
    """Return what is found, or None as soon as a person goes on without it."""
    if skipped is None:
        return await found
    either: list[asyncio.Future[Any]] = [found, skipped]
    await workflow.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not found.done():
        found.cancel()
        await asyncio.gather(found, return_exceptions=True)
    return None if skipped.done() else await found


def began_again() -> bool:
    """Whether the first task of a run may not be its first: it may have been reset to its beginning.

    The history of a reset has that task's failure in it. So has that of a task that failed by itself, and one that a
    signal began is longer, too: these look into the store in vain.
    """
    return workflow.info().get_current_history_length() > _FIRST_TASK


_FIRST_TASK = 3  # events up to the beginning of the first task


def is_long() -> bool:
    """Whether the history has grown so long that the run should continue as new."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() > EVENTS


def _tell_of_failure(notice: "asyncio.Task[Any]") -> None:
    if not notice.cancelled() and (error := notice.exception()) is not None:
        workflow.logger.warning("Nobody was told: %s", error.__cause__ or error)
