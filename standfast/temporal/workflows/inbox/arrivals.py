"""Receives the messages to a run: reads them, refuses or keeps them, and holds the outcome for the sender.

A signal of the wrong shape would wedge a workflow for good, and so would an update without a validator (both measured).
So handlers accept any value, read it themselves, and note or refuse invalid ones. Handlers only check and enqueue; the
run itself decides.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from standfast.errors import InputError
from standfast.messages import JSONObject, json_problem
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ActivityName, FoundT, RefusedReference, SentReference, TakenT
from standfast.temporal.wire.inbox import EarlyError, LaterError, Mailbox, Sent, remembered_id, split_id, use_of
from standfast.temporal.wire.inputs import INLINE_BYTES, PARKED_BYTES, VALUES
from standfast.temporal.wire.results import refused_before
from standfast.temporal.wire.turn_records import edit_digest
from standfast.temporal.workflows.board.run_board import Board, RunFace
from standfast.temporal.workflows.run.activity_options import STORE_OPTIONS, summary
from standfast.temporal.workflows.run.activity_results import read_result
from standfast.temporal.workflows.run.run_lifetime import Running
from standfast.temporal.workflows.sdk.unseen_events import reset_has_come

_LOOKS = 3  # at the history, if an operator fails them
_REFUSED = 2_000  # characters of the reason that the sender of a refused message reads
_LOOKED_UP = (names.ANSWER, names.RESOLVE, names.RESUME)  # for the others, the activity that records them looks
_SEEN = (names.APPROVE, names.REJECT)  # people see why these are refused, even if the sender was notified
T = TypeVar("T")


class Inbox:
    """The messages that a run has received."""

    def __init__(self, mailbox: Mailbox, board: Board, running: Running, run: RunFace) -> None:
        self.mailbox = mailbox
        # Functions of other parts of the run. The functions in `parked` return, as JSON, the messages that wait there
        # to be taken in. The functions in `pending` return the outcome of a signal by its id: `{}` if it is not known
        # yet, None if the part does not have the signal.
        self.parked: list[Callable[[], list[Any]]] = []
        self.pending: list[Callable[[str], JSONObject | None]] = []
        self._board, self._running, self._run = board, running, run
        self._looking: dict[str, asyncio.Task[None]] = {}  # by the id of a signal that may have been refused before
        self._new: set[str] = set()  # the ids of signals that were not refused
        self._signals: dict[tuple[str, str], int] = {}  # the number of signals received, by name and digest

    # --- reading what came ---

    def one(self, name: str, data: Any, extra: tuple[Any, ...], *, most: int = PARKED_BYTES) -> Any:
        """Return the one JSON object that was sent."""
        if extra:
            raise InputError(f"{name}: takes one JSON object, got {1 + len(extra)} arguments")
        if self._board.ended:
            raise InputError(f"{name}: the run has ended")
        if isinstance(data, dict) and json_problem(data, VALUES) is None:
            self._check_room(name, data, most)
        return data

    def _check_room(self, name: str, data: Any, most: int) -> None:
        """Refuse a message that would make the waiting messages too large for a history."""
        if len(to_json(data)) > INLINE_BYTES:
            return  # it is refused when it is read
        parked = [item for parked in self.parked for item in parked()]
        if (size := len(to_json([self.mailbox.carried(), *parked, data]))) > most:
            raise LaterError(f"{name}: {size:,} bytes are waiting, more than {most:,}; try again later")

    def refuse_overdue(self, name: str, *kinds: str) -> None:
        if (deadline := self._board.overdue(*kinds)) is not None:
            raise InputError(_too_late(name, deadline))

    async def is_late(self, sent: Sent, deadline: datetime | None) -> bool:
        """Whether a signal was sent after the deadline, or may have been; its sender then learns that."""
        try:
            if deadline is None or await self.when_sent(sent, workflow.now()) < deadline:
                return False
            why = _too_late(sent.name, deadline)
        except InputError as error:
            why = str(error)
        self.came_of(sent.name, sent.id, why)
        return True

    def take(
        self, name: str, data: Any, read: Callable[[Any, str | None], T], keep: Callable[[T, Sent], object]
    ) -> None:
        """Take in a signal.

        If the signal has an id, its sender looks up its outcome, and sending it again changes nothing.

        Args:
            read: takes the value without its id, and the id. A signal with an id is read as strictly as an update.
            keep: takes the read value and the signal; returns the reply to the sender, `{}`, or None if it is not known
                yet.
        """
        sent = self._count(name, data)
        try:
            sent_id, data = split_id(data)
            sent = replace(sent, id=None if sent_id is None else self._key(name, sent_id, data))
            if sent.id is not None and self._knows(name, sent.id, data):
                return
        except InputError as error:
            self.came_of(name, sent.id, str(error))
            self._run.leave_if_long()
        else:
            self._take(sent, lambda: read(data, sent_id), keep)

    def _take(self, sent: Sent, read: Callable[[], T], keep: Callable[[T, Sent], object]) -> None:
        try:
            given = read()
            if sent.id is not None and self._may_be_refused(sent):
                self._looking[sent.id] = asyncio.create_task(self._take_new(sent.id, sent, read, keep))
                return
            kept = keep(given, sent)
        except LaterError as error:
            early = {"early": workflow.now().isoformat()} if isinstance(error, EarlyError) else {}
            self.came_of(sent.name, sent.id, str(error), again=True, **early)
        except InputError as error:
            self.came_of(sent.name, sent.id, str(error))
        else:
            if isinstance(kept, dict):
                self.mailbox.came_of(sent.id, **kept)
        self._run.leave_if_long()

    # --- what was refused before a reset ---

    @property
    def is_looking(self) -> bool:
        return bool(self._looking)

    async def looked_up(self) -> None:
        """Wait until it is known which signals are new, unless the run is cancelled."""
        if self._looking:
            await workflow.wait_condition(lambda: not self._looking or self._running.cancelled)

    def _may_be_refused(self, sent: Sent) -> bool:
        """Whether a signal may have been refused before the run was reset; the reset sends it again."""
        if sent.name not in _LOOKED_UP or sent.id in self._new:
            return False
        return (self._running.resets > 0 or reset_has_come()) and workflow.patched(names.REFUSALS_STAY)

    async def _take_new(
        self, sent_id: str, sent: Sent, read: Callable[[], T], keep: Callable[[T, Sent], object]
    ) -> None:
        """Take in a signal, unless its sender learned before a reset that it does not count."""
        asks = f"whether {sent.name} was refused before the reset"
        reference: RefusedReference = {"sent": sent_id}
        is_refused = await self._look(names.REFUSED, reference, asks)
        del self._looking[sent_id]
        if is_refused is False:
            self._new.add(sent_id)
            self._take(sent, read, keep)
            return
        unknown = f"{sent.name}: it is unknown {asks}, so it does not count; send a new one without an id"
        self.came_of(sent.name, sent_id, refused_before(sent.name) if is_refused is True else unknown)
        self._run.leave_if_long()

    def _count(self, name: str, data: Any) -> Sent:
        """Count a signal; the number finds its event in the history."""
        if json_problem(data, VALUES) is not None:  # it is invalid
            return Sent(name)
        digest = edit_digest(data)
        number = self._signals[name, digest] = self._signals.get((name, digest), 0) + 1
        return Sent(name, digest, number)

    def _key(self, name: str, sent_id: str, data: Any) -> str:
        key = remembered_id(sent_id)
        return self.mailbox.message_key(key, use_of(name, data)[1]) if name == names.MESSAGE else key

    def _knows(self, name: str, sent_id: str, data: Any) -> bool:
        """Whether a signal with this id already has an outcome; people see it if another signal has used the id."""
        use = use_of(name, data)
        if problem := self.mailbox.reused(sent_id, use[1]):
            self._board.refuse(name, f"{name}: {problem}")
            return True
        self.mailbox.use(sent_id, use)
        known = self._outcome(sent_id)
        return known is not None and "again" not in known

    async def when_sent(self, sent: Sent, otherwise: datetime) -> datetime:
        """Return the time of a signal's event. A handler only knows when a worker received the signal.

        Raises:
            InputError: the event cannot be read.
        """
        reference: SentReference = {"name": sent.name, "digest": sent.digest, "number": sent.number}
        found = await self._look(names.SENT, reference, f"when {sent.name} was sent")
        if isinstance(found, str) and found.startswith(names.UNREADABLE):
            why = found.removeprefix(names.UNREADABLE)
            raise InputError(f"{sent.name}: it arrived after its deadline, and the time it was sent is unknown: {why}")
        return otherwise if (moment := read_moment(found)) is None else moment

    async def _look(self, activity: ActivityName[TakenT, FoundT], reference: TakenT, asks: str) -> FoundT | None:
        """Return what an activity finds in the history; None if an operator fails it repeatedly."""
        for _ in range(_LOOKS):
            try:
                found: FoundT | None = read_result(
                    await workflow.execute_activity(
                        activity, reference, result_type=RawValue, **STORE_OPTIONS, summary=summary(asks)
                    )
                )
            except ActivityError:  # an operator has failed it
                if not workflow.patched(names.LOOKED_AGAIN):
                    raise
                continue
            return found
        return None

    # --- outcomes ---

    def came_of(self, name: str, sent_id: str | None, refused: str, **more: Any) -> None:
        """Keep the reason why a signal changes nothing for its sender; show it to people if no sender looks it up."""
        self.mailbox.came_of(sent_id, refused=refused[:_REFUSED], **more)
        if sent_id is None or name in _SEEN:
            self._board.refuse(name, refused)

    def outcome(self, sent_id: Any, digest: Any) -> JSONObject | None:
        """Return the outcome of a signal with an id: `{}` if it is not known yet, None if no such signal arrived."""
        if not isinstance(sent_id, str):
            return None
        sent_id = remembered_id(sent_id)
        if isinstance(digest, str) and f"{sent_id}#{digest}" in self.mailbox.used:
            return self._outcome(f"{sent_id}#{digest}")
        problem = self.mailbox.reused(sent_id, digest) if isinstance(digest, str) else None
        return self._outcome(sent_id) if problem is None else {"refused": problem}

    def _outcome(self, sent_id: str) -> JSONObject | None:
        if sent_id in self._looking:
            return {"refused": "the run has ended"} if self._board.ended else {}
        found = (outcome for pending in self.pending if (outcome := pending(sent_id)) is not None)
        return next(found, self.mailbox.outcomes.get(sent_id))


def read_moment(found: object) -> datetime | None:
    """Return a time with its zone, or None for any other value, such as one that an operator entered."""
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment


def sent_by_update(name: str) -> Sent:
    """Return the sender of the current update, who receives its outcome."""
    update = workflow.current_update_info()
    return Sent(name, id=f"update/{'' if update is None else update.id}")


def refuse_by(read: Callable[[], object]) -> None:
    """Refuse an update if reading it raises an error."""
    try:
        read()
    except InputError as error:
        raise ApplicationError(str(error), type="InputError", non_retryable=True) from None


def _too_late(name: str, deadline: datetime) -> str:
    return f"{name}: it arrived too late, after {deadline:%Y-%m-%d %H:%M:%S} UTC"
