"""Sends a run a signal with an id, and reads its outcome from the run.

Not an update: an update that waits for a worker together with a query can wedge its run for good (sdk-python #1591).
Signals are events, whose order is fixed; `query_order` keeps a query from coming between them. The sender learns that
the signal counts, why it does not, or that the outcome is unknown.

People may see an item that a run does not wait for yet. The board has its row, and the worker died before it could
report the workflow task. Or the run answered a query before the task behind that answer began, and a signal that comes
with the same task is read first. The run then refuses a signal as early. The signal is sent again while the board or
the run shows its item.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError, NotConfirmedError, StandfastError
from standfast.messages import JSONObject
from standfast.temporal.client.runs.descriptions import our_run, quoted
from standfast.temporal.client.runs.ended_runs import fate_of_signal, next_run
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import use_of
from standfast.time_limits import time_limit

_FIRST, _LONGEST = 0.02, 0.5  # seconds between two checks
_ANSWER = 3.0  # seconds in which a worker answers, or is queried again; the SDK itself waits ever longer for busy runs
_EARLIER = 3  # runs of a session that are asked whether they received a signal
_OF_AGENTS = (names.MESSAGE, names.ANSWER, names.RESOLVE, names.EXPORT_UPDATE)
_CUT_OFF = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)  # ends that no run foresees


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal to a run.

    Args:
        name: the signal's name; `called` is the word for it that its sender knows.
        id: the same id again is the same signal: it counts once.
        is_repeated: whether it may have been sent before.
        seconds: the time in which a worker must report the outcome; None means no limit.
    """

    name: str
    called: str
    data: JSONObject
    id: str
    is_repeated: bool
    seconds: float | None


async def send(
    client: Client, workflow_id: str, signal: Signal, shown: Callable[[], AsyncGenerator[JSONObject, None]]
) -> JSONObject:
    """Send a signal; return the run's answer when it has accepted it.

    Args:
        shown: yields the waiting items that people see: first the board's, then the run's.

    Raises:
        InputError: it does not count; the error has the reason.
        NotConfirmedError: the outcome was not confirmed in time.
    """
    sending = _Sending(client, workflow_id, signal, shown)
    try:
        async with time_limit(signal.seconds):
            outcome = await sending.outcome()
    except TimeoutError as error:
        raise sending.not_confirmed() from error
    if "refused" in outcome:
        raise InputError(outcome["refused"])
    return outcome


class _Sending:
    """One signal in transit, and the run that has it."""

    def __init__(
        self,
        client: Client,
        workflow_id: str,
        signal: Signal,
        shown: Callable[[], AsyncGenerator[JSONObject, None]],
    ) -> None:
        self._client, self._workflow_id, self._given, self._shown = client, workflow_id, signal, shown
        self._asks = [signal.id, use_of(signal.name, signal.data)[1]]
        self._run_id: str | None = None  # as soon as one is known; it may continue as new
        self._is_sent = self._has_arrived = False
        self._was_recording = False  # the run was reset while it recorded the signal, which may count in the next
        self._trouble = ""

    @property
    def _run(self) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(self._workflow_id, run_id=self._run_id)

    def not_confirmed(self) -> StandfastError:
        name, run, soon = self._given.called, self._workflow_id, f"within {self._given.seconds:g} s"
        if not self._is_sent:
            return StandfastError(f"Run {run}: the Temporal server has not answered {soon}; `{name}` was not sent")
        what = (
            f"`{name}` has arrived, but was not recorded {soon}"
            if self._has_arrived
            else (f"no worker has taken `{name}` {soon}")
        )
        return NotConfirmedError(
            f"Run {run}: {what}{self._trouble}. It was sent, and may count once a worker is there: check the run "
            "before you send it again",
            id=self._given.id,
        )

    async def outcome(self) -> JSONObject:
        """Send the signal, and return its outcome when the run knows it."""
        run = await our_run(self._client, self._workflow_id)
        if self._given.name in _OF_AGENTS and names.PIPELINE_MEMO in run.raw_info.memo.fields:
            raise InputError(
                f"Run {self._workflow_id} is a pipeline's and does not accept `{self._given.called}`: send it to the "
                "run of the agent in its step, which `standfast ls` lists"
            )
        self._run_id = run.run_id
        is_bound = "digest" in self._given.data  # to the item that was shown, and counts for no other
        if self._given.is_repeated and not is_bound and (told := await self._told_before()):
            return told
        await self._send()
        pause = _FIRST
        while True:
            try:
                if (found := await self._look()) and "early" in found and await self._is_shown(found["early"]):
                    self._trouble = f" (it is shown, and the run has just reported: {found['refused']})"
                    await self._send()
                elif found:
                    if "refused" in found and self._was_recording:
                        raise self._may_have_counted(f"was reset, and now reports: {found['refused']}")
                    return await self._counted_before(found) if is_bound else found
            except (RPCError, WorkflowQueryFailedError) as error:
                self._note(error)
            except TimeoutError:
                self._trouble = ""
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    async def _is_shown(self, refused_at: str | bool) -> bool:
        """Whether people see the item of a signal that the run has refused as early."""
        async with aclosing(self._shown()) as items:
            async for item in items:
                if _is_about(item, self._given, refused_at):
                    return True
        return False

    async def _counted_before(self, outcome: JSONObject) -> JSONObject:
        """Return the outcome of a decision.

        A run may refuse a decision that it already has, from a run that it continues.
        """
        if "refused" in outcome and self._given.is_repeated:
            with suppress(StandfastError):  # this is unknown
                told = await self._told_before()
                return told if told is not None and "accepted" in told else outcome
        return outcome

    async def _told_before(self) -> JSONObject | None:
        """Return the outcome of the signal in an earlier run of the session, to which it was first sent.

        If that outcome is unavailable, the signal is not sent: the next run may ask something else.
        """
        runs = self._client.list_workflows(f"WorkflowId = {quoted(self._workflow_id)}", limit=_EARLIER + 1)
        try:
            async with time_limit(_ANSWER):
                async for earlier in runs:
                    if earlier.run_id == self._run_id:
                        continue
                    if found := await self._told_by(earlier.run_id, is_cut_off=earlier.status in _CUT_OFF):
                        return found
        except (RPCError, TimeoutError) as error:
            raise StandfastError(
                f"Run {self._workflow_id}: no worker reports whether an earlier run of the session received "
                f"`{self._given.called}` with this id, so it was not sent now"
            ) from error
        return None

    async def _told_by(self, run_id: str, *, is_cut_off: bool) -> JSONObject | None:
        """Return the outcome of the signal in an earlier run, if that run has told it."""
        run, fate = self._client.get_workflow_handle(self._workflow_id, run_id=run_id), None
        if is_cut_off:
            fate = await fate_of_signal(self._client, run, self._given.id, self._given.name)
            if fate.is_there and not fate.is_taken:
                return None  # it would answer as if it had
        try:
            found: JSONObject | None = await run.query(names.OUTCOME, args=self._asks)
        except WorkflowQueryFailedError:  # it belonged to another program
            return None
        except RPCError as error:
            is_stuck = error.status == RPCStatusCode.FAILED_PRECONDITION  # its last workflow task has failed
            if is_stuck and fate is not None and not fate.is_there and fate.unread is None:
                return None
            raise
        return found if found and ("again" not in found or "early" in found) else None

    async def _send(self) -> None:
        while True:
            self._is_sent = True
            try:
                await self._run.signal(self._given.name, {**self._given.data, "id": self._given.id})
            except RPCError as error:
                if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                    return  # it may have arrived
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                if (following := await self._following()) is not None:
                    self._run_id = following
                elif not self._given.is_repeated:
                    raise self._came_too_late(f"has ended: `{self._given.called}` does not count") from error
                else:
                    return  # it may have received it before it ended
            else:
                return

    async def _look(self) -> JSONObject | None:
        """Return the outcome of the signal; `{}` or None if the run does not know it yet."""
        try:
            found = await self._ask(QueryRejectCondition.NOT_OPEN)
        except WorkflowQueryRejectedError:
            return await self._look_back()
        self._has_arrived = found is not None
        return found

    async def _look_back(self) -> JSONObject | None:
        """Return the outcome of the signal in a run that is over, or turn to the run that continues it."""
        was_cut_off = (await self._run.describe()).status in _CUT_OFF
        found = await self._ask() if not was_cut_off or await self._has_heard(self._run) else None
        if found:
            return found
        if (following := await self._following()) is None and (found is not None or self._was_recording):
            raise self._may_have_counted(f"ended before it reported the outcome of `{self._given.called}`")
        if following is None:
            raise self._came_too_late(f"ended before it took `{self._given.called}`: it does not count")
        self._was_recording |= was_cut_off and found is not None
        self._run_id = following
        return None

    def _came_too_late(self, why: str) -> InputError:
        if self._given.name == names.EXPORT_UPDATE:  # an export changes nothing, so it cannot "count"
            why = (
                "has ended, so there is nothing to export. Its session is in the store of its workers: a new message "
                "continues it"
            )
        elif self._given.name == names.MESSAGE:
            why += ". To continue its conversation, start its agent in the same session"
        return InputError(f"Run {self._workflow_id} {why}")

    def _may_have_counted(self, why: str) -> NotConfirmedError:
        return NotConfirmedError(
            f"Run {self._workflow_id} {why}. `{self._given.called}` may have counted: check the run and its audit "
            "trail",
            id=self._given.id,
        )

    async def _ask(self, reject: QueryRejectCondition | None = None) -> JSONObject | None:
        async with time_limit(_ANSWER):
            found: JSONObject | None = await self._run.query(names.OUTCOME, args=self._asks, reject_condition=reject)
        return found

    def _note(self, error: RPCError | WorkflowQueryFailedError) -> None:
        """Remember why no worker answers; a worker may come."""
        if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND:
            raise InputError(f"The server no longer has run {self._workflow_id}") from error
        if "expected but not found" in str(error):  # a user's workflow, without a gate
            raise InputError(f"Run {self._workflow_id} does not accept `{self._given.called}`: {error}") from error
        self._trouble = f" ({error})"

    async def _following(self) -> str | None:
        return await next_run(self._client, self._workflow_id, str(self._run_id))

    async def _has_heard(self, run: WorkflowHandle[Any, Any]) -> bool:
        """Whether the workflow had a task after the signal, which a run that was cut off may not have had."""
        fate = await fate_of_signal(self._client, run, self._given.id, self._given.name)
        return fate.is_taken or not fate.is_there


def _is_about(item: Mapping[str, Any], signal: Signal, refused_at: str | bool) -> bool:
    """Whether a signal is about a shown item.

    Args:
        refused_at: the time at which the run refused it. A run's pauses look alike, so a pause that has begun since is
            not meant. Workers of earlier versions do not have the time.
    """
    sent, kind = signal.data, item["kind"]
    match signal.name:
        case names.APPROVE | names.REJECT:
            return bool((kind, item["name"], item.get("digest")) == ("approval", sent.get("gate"), sent.get("digest")))
        case names.ANSWER | names.RESOLVE if "tool_call_id" in sent:
            wanted = "question" if signal.name == names.ANSWER else "unknown"
            return bool((kind, item["name"]) == (wanted, sent["tool_call_id"]))
        case names.ANSWER:
            is_kind = kind == "question"
        case names.RESUME if sent["action"] == "skip":
            is_kind = bool(item.get("can_skip"))
        case names.RESUME:
            is_kind = kind == "pause"
        case _:
            return False
    is_named = sent.get("name") in (None, item["name"])
    return is_kind and is_named and isinstance(refused_at, str) and _time(item["since"]) <= _time(refused_at)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
