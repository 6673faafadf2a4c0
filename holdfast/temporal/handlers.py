"""The signals and updates of an agent's workflow. Handlers only check and enqueue; the run itself decides."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from holdfast.agent_loop import LoopState
from holdfast.agents import Loop
from holdfast.errors import InputError
from holdfast.temporal import names
from holdfast.temporal.gates import Gates
from holdfast.temporal.progress import Progress
from holdfast.temporal.waits import refuse_by
from holdfast.temporal.wire import AWAITED_BYTES, PARKED_BYTES, Said


class Handlers(Gates):
    """What can be sent to an agent's run at any time: also before it starts and while it ends."""

    _asks_groups = False  # until it does

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress()
        self._exports: list[dict[str, Any]] = []
        self._loop_state: LoopState | None = None

    # --- reading what came ---

    def _parked(self) -> list[Any]:
        progress = self._progress
        state = self._loop_state
        gates = [] if state is None else [question.model_dump() for question in state.kept_questions]
        return [*super()._parked(), progress.say, list(progress.turn.sources.items()), gates]

    @property
    def _limit(self) -> int:
        loop = Loop() if self._loop_state is None else self._loop_state.loop
        return loop.max_message_bytes

    def _read_message(self, data: Any, extra: tuple[Any, ...]) -> Said:
        return self._mailbox.read_message(self._one("message", data, extra), self._limit)

    def _read_answer(self, data: Any, extra: tuple[Any, ...], *, may_be_early: bool) -> Any:
        state = self._loop_state
        questions = () if state is None else tuple(one for one in state.questions if one.gate is None)
        gates = () if state is None else state.gates
        if (
            gates
            and isinstance(data, dict)
            and data.get("tool_call_id") in (None, *(one.tool_call_id for one in gates))
        ):
            call_id = data.get("tool_call_id") or gates[0].tool_call_id
            raise InputError(f"answer: call {call_id} waits to be approved, not for an answer; send `decide`")
        # What the run waits for lets it take in the rest: there is always room for it.
        open_ids = [question.tool_call_id for question in questions]
        is_awaited = isinstance(data, dict) and data.get("tool_call_id") in (None, *open_ids)
        data = self._one("answer", data, extra, most=AWAITED_BYTES if is_awaited else PARKED_BYTES)
        return self._mailbox.read_answer(data, questions, self._limit, may_be_early=may_be_early)

    def _read_resolve(self, data: Any, extra: tuple[Any, ...]) -> Any:
        return self._mailbox.read_resolve(self._one("resolve", data, extra, most=AWAITED_BYTES), self._progress.unknown)

    # --- signals: the side door, for senders that cannot wait for an answer ---

    @workflow.signal(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?}')
    def message_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("message", lambda: self._read_message(data, extra), self._mailbox.messages.append)

    @workflow.signal(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("answer", lambda: self._read_answer(data, extra, may_be_early=True), self._mailbox.keep_answer)

    # --- updates: the main door; the sender learns whether it counts ---

    @workflow.update(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?}')
    def message_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        self._mailbox.messages.append(self._read_message(data, extra))
        return {"accepted": True}

    @message_update.validator
    def _check_message(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_message(data, extra))

    @workflow.update(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        answer = self._read_answer(data, extra, may_be_early=False)
        self._mailbox.keep_answer(answer)
        return {"accepted": True, "tool_call_id": answer.tool_call_id}

    @answer_update.validator
    def _check_answer(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_answer(data, extra, may_be_early=False))

    @workflow.update(
        name=names.RESOLVE,
        description='Settle a call of unknown outcome: {"tool_call_id", "decision": "happened" | "not-happened" | '
        '"leave", "result"?, "by"?, "reason"?}',
    )
    def resolve_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        resolve = self._read_resolve(data, extra)
        self._mailbox.resolves[resolve.tool_call_id] = resolve
        return {"accepted": True, "tool_call_id": resolve.tool_call_id}

    @resolve_update.validator
    def _check_resolve(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_resolve(data, extra))

    @workflow.update(name=names.EXPORT_UPDATE, description="Return the run as a checkpoint, up to 1 MB")
    async def export_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        """The transcript is whole only between two actions of the run, so the run itself exports it there."""
        request: dict[str, Any] = {}
        self._exports.append(request)
        await workflow.wait_condition(lambda: bool(request) or bool(self._ended))
        if "checkpoint" not in request:
            raise ApplicationError(request.get("error", "export: the run has ended"), type="InputError")
        checkpoint: dict[str, Any] = request["checkpoint"]
        return checkpoint

    @export_update.validator
    def _check_export(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._one("export", data, extra))
