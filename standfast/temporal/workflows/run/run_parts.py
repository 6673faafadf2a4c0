"""The parts that every run has: its workers, which carry out its activities, and its pauses.

A run pauses after a failure, or for lack of a worker or its store, until people decide or the cause has gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from standfast.errors import InputError
from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ActivityName, FoundT, OpenReference, Stepped, StepReference, TakenT
from standfast.temporal.wire.inbox import Mailbox, Resume, Sent
from standfast.temporal.wire.inputs import AWAITED_BYTES
from standfast.temporal.wire.results import RECEIPTED, fits
from standfast.temporal.workflows.board.run_board import Board, RunFace
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.inbox.arrivals import Inbox, read_moment, refuse_by
from standfast.temporal.workflows.run.activity_options import (
    OPEN_ELSEWHERE_OPTIONS,
    OPEN_OPTIONS,
    STORE_OPTIONS,
    summary,
    until_the_store_is_back,
)
from standfast.temporal.workflows.run.activity_results import (
    SkippedError,
    details_of,
    failed,
    has_other_store,
    is_missing,
    is_store_away,
    is_store_behind,
    may_be_tried_again,
    may_pass,
    missing,
    missing_step,
    put_in_by_hand,
    read_result,
    refuse,
    surroundings_of,
    text_in,
    was_cancelled,
    why,
)
from standfast.temporal.workflows.run.run_lifetime import Running

T = TypeVar("T")

VERSIONS = 20  # with which a step is tried before it waits for a person

_REPEATS = 8  # of an activity that was completed without a receipt, before asking a person

_SAID = 2_000  # characters


class Retries(TypedDict, total=False):
    """The attempts that may end a pause; see `Waiting`."""

    retry_at: datetime
    retry_every: float


class Pauses:
    """The pauses of a run, which a resume ends."""

    def __init__(self, board: Board, inbox: Inbox, running: Running, run: RunFace) -> None:
        self._board, self._inbox, self._running, self._run = board, inbox, running, run
        self._resumes: list[tuple[Waiting, asyncio.Future[Resume]]] = []
        self._deadlines: dict[str, datetime] = {}  # by name: of pauses that ended without a person, and may begin again

    def deadline(self, since: datetime) -> datetime | None:
        patience = self._run.patience()
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
            self._run.choose_model(model)
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

    def take_update(self, data: Any, extra: tuple[Any, ...]) -> JSONObject:
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

    def _take(self, resume: Resume, sent: Sent | None = None) -> JSONObject:
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


class StoreWaits:
    """The activities of a run that wait for its store, shown as one item regardless of their number.

    Args:
        begin, end: show a waiting item, and remove it.
        learn: takes in the run's surroundings from the error of an activity that could not use its store.
        pause: waits for a person, or for an automatic attempt; see `Pauses.pause`.
    """

    def __init__(
        self,
        begin: Callable[[Waiting], None],
        end: Callable[[Waiting], None],
        learn: Callable[[FailureError], None],
        pause: Callable[[str, str, "asyncio.Future[Any]"], Awaitable[bool]],
    ) -> None:
        self._pause = pause
        self._begin, self._end, self._learn = begin, end, learn
        self._shown: Waiting | None = None
        self._count = 0
        # Activities that may hold data that is not stored, and whether each has reported it.
        self._holders: dict[str, bool] = {}

    async def run(self, attempt: Callable[[dict[str, Any]], Awaitable[T]], options: dict[str, Any]) -> T:
        """Return the result of an activity that needs the store, however long the store is away; people see the wait.

        Args:
            attempt: runs the activity with these options.

        Raises:
            ActivityError: it failed for another reason.
            ApplicationError: the store is older than the run, and a person has accepted that.
        """
        while True:
            since = workflow.now()
            try:
                return await attempt(options)
            except FailureError as error:
                if is_store_behind(error):
                    again = asyncio.ensure_future(attempt(until_the_store_is_back(options)))
                    if not await self._pause("store", why(error), again):
                        raise failed(error) from None
                    if again.cancelled() or was_cancelled(again):
                        continue
                    return await again
                if not is_store_away(error):
                    raise
                self._learn(error)
                self._add(why(error), since, has_other_store(error))
            # Not in a `finally`: a worker that evicts the run closes it outside the workflow's loop.
            try:
                result = await attempt(until_the_store_is_back(options))
            except (FailureError, asyncio.CancelledError) as error:
                self._remove()
                if not isinstance(error, FailureError) or not may_be_tried_again(error):
                    raise
            else:
                self._remove()
                return result

    def _add(self, message: str, since: datetime, needs_worker: bool = False) -> None:
        """Show that one more activity waits: for the store, or for a worker that has it."""
        self._count += 1
        if self._shown is None:
            what = ("worker", "its store") if needs_worker else ("store", "store")
            self._shown = Waiting(*what, message, since)
            self._begin(self._shown)
            workflow.logger.warning("Waits for its store: %s", message)

    def _remove(self) -> None:
        """Remove the item that `_add` shows, once no activity waits any more."""
        self._count -= 1
        if not self._count and self._shown is not None:
            gone, self._shown = self._shown, None
            self._end(gone)

    async def holding(self, holder: str, work: Awaitable[T]) -> T:
        """Return the result of an activity that may report, while it runs, that the store rejects the data it holds."""
        self._holders[holder] = False
        # Not in a `finally`: a worker that evicts the run closes it outside the workflow's loop.
        try:
            found = await work
        except (Exception, asyncio.CancelledError):
            self._released(holder)
            raise
        self._released(holder)
        return found

    def _released(self, holder: str) -> None:
        if self._holders.pop(holder, False):
            self._remove()

    def take_signal(self, data: object) -> None:
        """Take in a report of `write_in_sight`; a report that no running activity can have sent changes nothing."""
        given = data if isinstance(data, dict) else {}
        holder, message = given.get("holder"), given.get("message")
        if isinstance(holder, str) and isinstance(message, str) and self._holders.get(holder) is False:
            self._holders[holder] = True
            self._add(message[:_SAID], read_moment(given.get("since")) or workflow.now())


class Workers:
    """The workers of a run, and its waits for them."""

    def __init__(self, board: Board, running: Running, pauses: Pauses, run: RunFace) -> None:
        self.store_waits = StoreWaits(board.begin, board.end, self._learn_from, pauses.pause)
        self._board, self._running, self._pauses, self._run = board, running, pauses, run
        self.give_receipts = False  # see `receipted`
        self._receipts = 0  # the number of receipts asked for

    # --- activities ---

    @overload
    async def execute(
        self, activity: ActivityName[TakenT, FoundT], reference: TakenT, options: dict[str, Any] = ...
    ) -> FoundT | None: ...
    @overload
    async def execute(
        self,
        activity: ActivityName[TakenT, FoundT],
        reference: TakenT,
        options: dict[str, Any] = ...,
        *,
        tool: str | None = None,
        otherwise: T,
    ) -> FoundT | T: ...
    async def execute(
        self,
        activity: str,
        reference: Any,
        options: dict[str, Any] = STORE_OPTIONS,
        *,
        tool: str | None = None,
        otherwise: Any = None,
    ) -> Any:
        """Return the result of an activity, from a worker that has what it needs.

        Args:
            tool: a tool that it needs besides the agent or pipeline.
            otherwise: the value to return if the run is cancelled before it has a usable result.

        Raises:
            ActivityError: it failed for another reason.
            ApplicationError: it was completed by hand with an unusable result, and a person does not want another
                attempt.
            SkippedError: a person lets the run continue without it.
        """

        reference, tries = self._with_receipt(activity, reference), 0

        async def attempt(options: dict[str, Any]) -> Any:
            return read_result(await workflow.execute_activity(activity, reference, result_type=RawValue, **options))

        while True:
            try:
                found = await self.store_waits.run(attempt, options)
            except ActivityError as error:
                if not is_missing(error):
                    raise
                if await self.await_worker(error, tool, missing_step(error)) is None:
                    return otherwise
                continue
            if fits(activity, reference, found):
                return found["of"] if "receipt" in reference else found
            tries += 1
            if not await self._may_repeat(activity, reference, tries):
                if self._running.cancelled:
                    return otherwise
                raise ApplicationError(put_in_by_hand(activity), type="InputError", non_retryable=True)

    def _with_receipt(self, activity: str, reference: Any) -> Any:
        if not self.give_receipts or activity not in RECEIPTED:
            return reference
        self._receipts += 1
        return {**reference, "receipt": self._receipts}

    async def _may_repeat(self, activity: str, reference: JSONObject, tries: int) -> bool:
        """Whether to run an activity again whose result cannot be used.

        A result without a receipt comes from an older worker, or from a person who completed the activity by hand. The
        activity then runs again, which changes nothing if its work was done. Otherwise, and from time to time, a person
        is asked.
        """
        if "receipt" in reference and tries % _REPEATS:
            return True
        return await self._pauses.pause(activity, put_in_by_hand(activity))

    async def step(self, reference: StepReference, options: dict[str, Any]) -> Stepped | None:
        """Return the result of a step's activity. If a user's function raises, another version or a resume tries again.

        The activity knows which versions have raised, and the server offers it to workers until one has another
        version. So a waiting run gets no events, and tries each version once. Finished work is kept, and the next
        attempt continues from there.

        Raises:
            ActivityError: it failed for another reason, or a person does not want another attempt.
        """
        raised: list[str] = []
        trying: Awaitable[Any] = self.execute(names.STEP, reference, options)
        while True:
            try:
                found: Stepped | None = await trying
                return found
            except ActivityError as error:
                cause, path = error.cause, text_in(error, "failed_step")
                if not isinstance(cause, ApplicationError) or cause.type != names.STEP_ERROR or path is None:
                    raise
                detail, mended = details_of(error), None
                if "version" in detail:  # older versions of this library did not send one
                    raised = [*(one for one in raised if one != detail["version"]), detail["version"]]
                    if len(raised) <= VERSIONS:
                        another: StepReference = {**reference, "raised": raised}
                        again = self.execute(names.STEP, another, options)
                        mended = asyncio.ensure_future(again)
                if not await self._pauses.pause(path, cause.message, mended):
                    raise
                if mended is None or was_cancelled(mended):
                    trying = self.execute(names.STEP, reference, options)
                else:
                    trying = mended

    async def execute_until_cancelled(
        self, activity: ActivityName[TakenT, FoundT], reference: TakenT, options: dict[str, Any]
    ) -> FoundT:
        """Return the result of an activity, however long its store is away; a cancel can reach it."""

        def attempt(options: dict[str, Any]) -> Awaitable[FoundT]:
            return self._running.add(workflow.start_activity(activity, reference, **options))

        waits = self.store_waits
        return await waits.holding(names.holder(activity, reference), waits.run(attempt, options))

    # --- workers ---

    async def open(self) -> Any:
        """Open the run on a suitable worker; return None if the run is cancelled before there is one."""
        activity, reference = self._run.opening()
        try:
            return await workflow.execute_local_activity(activity, reference, **OPEN_OPTIONS)
        except FailureError as error:  # the cause itself, of a local activity that fails at once
            if is_missing(error):
                return await self.await_worker(error)
            if is_store_away(error):
                self._learn_from(error)
            elif not may_pass(error):
                raise
            return await self._open_elsewhere(activity, reference)

    async def _open_elsewhere(self, activity: ActivityName[OpenReference, Any], reference: OpenReference) -> Any:
        """Open the run on any worker, since the run's own worker could not."""
        try:
            return await self._open_with_store(activity, reference, "on a worker that can")
        except (asyncio.CancelledError, ActivityError) as error:
            if self._running.cancelled:
                return None
            if not isinstance(error, ActivityError) or not is_missing(error):
                raise
            return await self.await_worker(error)

    async def _open_with_store(
        self, activity: ActivityName[OpenReference, Any], reference: OpenReference, asks: str
    ) -> Any:
        """Return the result of opening the run.

        Raises:
            ApplicationError: it was completed by hand with an unusable result, and a person does not want another
                attempt.
        """
        options = {**OPEN_ELSEWHERE_OPTIONS, "summary": asks}
        while True:
            opened = await self.execute_until_cancelled(activity, reference, options)
            if fits(activity, reference, opened):
                return opened
            if not await self._pauses.pause(activity, put_in_by_hand(activity)):
                if self._running.cancelled:
                    raise asyncio.CancelledError
                raise ApplicationError(put_in_by_hand(activity), type="InputError", non_retryable=True)

    def _learn_from(self, error: FailureError) -> None:
        """Take in the run's surroundings from the error of a worker that cannot open it."""
        if "input" in self._run.opening()[1]:
            self._run.learn(surroundings_of(error))

    async def await_worker(self, error: FailureError, tool: str | None = None, path: str | None = None) -> Any:
        """Wait until a worker has what the last one lacked; return the result of opening, None if the run is cancelled.

        Args:
            tool, path: a tool or step that it needs besides the agent or pipeline; a person may let the run continue
            without it.

        Raises:
            SkippedError: a person has done so.
        """
        name, message = missing(error, tool)
        activity, reference = self._run.opening()
        self._learn_from(error)
        if tool is not None:
            reference["tool"] = tool
        if path is not None:
            reference["path"] = path
        waiting = Waiting("worker", name, message, workflow.now(), can_skip=tool is not None or path is not None)
        skipped = self._pauses.begin(waiting) if waiting.can_skip else None
        if skipped is None:
            self._board.begin(waiting)
        workflow.logger.warning("Waits for a worker: %s", message)
        try:
            asks = summary(f"on a worker that has {name}")
            opening = asyncio.ensure_future(self._open_with_store(activity, reference, asks))
            opened = await _unless(skipped, opening)
        except (asyncio.CancelledError, ActivityError) as other:
            if not self._running.cancelled:
                if isinstance(other, ActivityError):
                    self._pauses.end(waiting)
                raise
            opened = None
        self._pauses.end(waiting)
        if skipped is not None and skipped.done():
            raise SkippedError(name, skipped.result())
        return opened


async def _unless(skipped: "asyncio.Future[Resume] | None", found: "asyncio.Future[T]") -> T | None:
    """Return the result of the search, or None as soon as a person lets the run continue without it."""
    if skipped is None:
        return await found
    either: list[asyncio.Future[Any]] = [found, skipped]
    await workflow.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not found.done():
        found.cancel()
        await asyncio.gather(found, return_exceptions=True)
    return None if skipped.done() else await found


def read_input(read: Callable[[Any], T], data: Any, extra: tuple[Any, ...], **ours: bool) -> T:
    """Return the input of a run; fail the run if the input is invalid.

    Args:
        extra: arguments after the input.
        ours: for each key reserved for standfast, whether standfast itself started this run.
    """
    try:
        if extra:
            raise InputError(f"The input is one JSON object, got {1 + len(extra)} arguments")
        given = read(data)
        for name, is_ours in ours.items():
            if getattr(given, name) is not None and not is_ours:
                raise InputError(f"The input: {name!r} is for runs that standfast itself starts")
    except InputError as error:
        refuse(str(error))
    return given


class RunParts:
    """The parts shared by the runs of agents, pipelines and users' workflows."""

    def __init__(self, run: RunFace) -> None:
        self.mailbox = Mailbox()
        self.running = Running()
        self.board = Board(self.mailbox, run)
        self.running.when_reset(self.board.rows.was_reset)
        self.inbox = Inbox(self.mailbox, self.board, self.running, run)
        self.pauses = Pauses(self.board, self.inbox, self.running, run)
        self.workers = Workers(self.board, self.running, self.pauses, run)

    def learn(self, found: Mapping[str, Any]) -> None:
        """Take in the run's surroundings; see `Surroundings`."""
        self.board.search, self.board.notices = found.get("search", False), found.get("notices", False)
        self.workers.give_receipts, self.running.wakes = found.get("receipts", False), found.get("wakes", False)
        self.running.attaches = found.get("attaches", False)
        self.board.rows.is_kept = found.get("board", False)
        self.board.rows.changed()
