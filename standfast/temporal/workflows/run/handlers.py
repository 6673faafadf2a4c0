"""Defines the signals, updates and queries of every run, and passes each to the part of the run that handles it."""

from typing import Any

from temporalio import workflow

from standfast.messages import JSONObject
from standfast.temporal.wire import names
from standfast.temporal.workflows.gates.gate_keeper import GateKeeper
from standfast.temporal.workflows.run.run_parts import RunParts

_RESUME = (
    'Continue after a pause, or skip a step or call that no worker has: {"action": "retry" | "abort" | "skip", '
    '"name"?, "model"?, "reason"?}'
)
_DECIDE = 'Decide on a gate: {"gate", "decision": "approve" | "reject", "by"?, "comment"?, "digest"?, "edit"?}'


class RunHandlers:
    """The handlers that any run has at any time, even before it starts and while it ends."""

    _parts: RunParts
    _gates: GateKeeper

    @workflow.signal(name=names.RESUME, description=_RESUME)
    def resume_signal(self, data: Any = None, *extra: Any) -> None:
        self._parts.pauses.take_signal(data, extra)

    @workflow.update(name=names.RESUME, description=_RESUME)
    def resume_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return self._parts.pauses.take_update(data, extra)

    @resume_update.validator
    def _check_resume(self, data: Any = None, *extra: Any) -> None:
        self._parts.pauses.check_update(data, extra)

    @workflow.signal(name=names.APPROVE, description='Approve a gate: {"gate", "by"?, "comment"?, "digest"?, "edit"?}')
    def approve_signal(self, data: Any = None, *extra: Any) -> None:
        self._gates.take_signal(names.APPROVE, data, extra)

    @workflow.signal(name=names.REJECT, description='Reject at a gate: {"gate", "by"?, "comment"?, "digest"?}')
    def reject_signal(self, data: Any = None, *extra: Any) -> None:
        self._gates.take_signal(names.REJECT, data, extra)

    @workflow.update(name=names.DECIDE_UPDATE, description=_DECIDE)
    async def decide_update(self, data: Any = None, *extra: Any) -> JSONObject:
        return await self._gates.take_update(data, extra)

    @decide_update.validator
    def _check_decide(self, data: Any = None, *extra: Any) -> None:
        self._gates.check_update(data, extra)

    @workflow.signal(name=names.STORE_WAITS, description="From workers: the store refuses the data that they hold")
    def store_waits_signal(self, data: Any = None, *extra: Any) -> None:
        self._parts.workers.store_waits.take_signal(data)

    @workflow.signal(name=names.CALLED_STATUS, description="From agents that this run has called: whether they wait")
    def called_status_signal(self, data: Any = None, *extra: Any) -> None:
        self._parts.board.take_called(data)

    @workflow.query(name=names.OUTCOME, description="The outcome of a signal with an id; null if none has arrived")
    def outcome(self, sent: Any = None, digest: Any = None, *ignored: Any) -> JSONObject | None:
        return self._parts.inbox.outcome(sent, digest)

    @workflow.query(
        name=names.PENDING, description="The items that wait for a person: kind, name, message, since, deadline"
    )
    def pending(self, *ignored: Any) -> list[JSONObject]:
        return self._parts.board.pending()
