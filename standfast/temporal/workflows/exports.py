"""Makes checkpoints of an agent's run on request."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from standfast.errors import InputError
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Exported, ExportReference
from standfast.temporal.wire.inbox import Sent
from standfast.temporal.workflows.inbox import refuse_by
from standfast.temporal.workflows.run_failures import why
from standfast.temporal.workflows.run_parts import RunParts
from standfast.temporal.workflows.shared_state import RunState

_EXPORTED = 4  # checkpoints that a run keeps for requests by signal


class Exports:
    """The checkpoints of a run. The transcript is complete only between two actions, so checkpoints are made there."""

    def __init__(self, run: RunState, parts: RunParts) -> None:
        self._run, self._board, self._inbox, self._workers = run, parts.board, parts.inbox, parts.workers
        self._inbox.pending.append(self._pending)
        self.requests: list[Exported] = []
        self._exported: dict[str, Exported] = {}  # for signals, by id

    def take_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take("export", data, lambda given, sent_id: self._read(given, extra, sent_id), self._keep)

    async def take_update(self) -> dict[str, Any]:
        request: Exported = {}
        self.requests.append(request)
        await workflow.wait_condition(lambda: bool(request) or bool(self._board.ended))
        if "checkpoint" not in request:
            raise ApplicationError(_not_exported(request), type="InputError")
        return request["checkpoint"]

    def check_update(self, data: Any, extra: tuple[Any, ...]) -> None:
        refuse_by(lambda: self._inbox.one("export", data, extra))

    def _read(self, data: Any, extra: tuple[Any, ...], sent_id: str | None) -> Exported:
        if sent_id is None:
            raise InputError("export: a signal needs an id, under which the checkpoint is found")
        self._inbox.one("export", data, extra)
        return {}

    def _keep(self, request: Exported, sent: Sent) -> None:
        self.requests.append(request)
        self._exported[str(sent.id)] = request
        if len(self._exported) > _EXPORTED:
            del self._exported[next(iter(self._exported))]

    def _pending(self, sent_id: str) -> dict[str, Any] | None:
        """Return the outcome of a signal that requested a checkpoint."""
        request = self._exported.get(sent_id)
        if request is None:
            return None
        if "checkpoint" in request:
            return {"accepted": True, **request}
        return {"refused": _not_exported(request)} if "error" in request or self._board.ended else {}

    async def serve(self) -> None:
        """Make the requested checkpoints between two actions: the transcript is complete, and no call is in flight."""
        run = self._run
        if run.loop.open_calls and not run.loop.gates:
            return
        while self.requests:
            request = self.requests.pop(0)
            state, unheard = run.loop, [*run.progress.say, *self._inbox.mailbox.messages]
            reference = run.reference(ExportReference)
            reference["iterations"] = state.iterations
            reference["questions"] = [question.model_dump() for question in state.kept_questions]
            if state.usage is not None:
                reference["usage"] = state.usage.model_dump()
            if state.gates:
                reference["at_gate"] = True
            if unheard and state.is_at_rest:
                reference["say"] = unheard
            try:
                exported = await self._workers.execute(names.EXPORT, reference)
            except FailureError as error:  # the run does not depend on it
                exported = {"error": f"export: {why(error)}"}
            request.update(exported or {"error": "export: the run was cancelled"})


def _not_exported(request: Exported) -> str:
    return str(request.get("error", "export: the run has ended"))
