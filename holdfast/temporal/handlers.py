"""The signals and updates of an agent's workflow. Handlers only check and enqueue; the run itself decides."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from holdfast.agent_loop import LoopState
from holdfast.agents import Loop
from holdfast.errors import InputError
from holdfast.temporal import names
from holdfast.temporal.gates import Gates
from holdfast.temporal.mailboxes import Answer, Resolve
from holdfast.temporal.progress import Progress
from holdfast.temporal.waits import refuse_by
from holdfast.temporal.wire import AWAITED_BYTES, PARKED_BYTES, Owner, Said

_RESOLVE = (
    'Settle a call of unknown outcome: {"tool_call_id", "decision": "happened" | "not-happened" | "leave", "result"?, '
    '"by"?, "reason"?}'
)


_EXPORTED = 4  # checkpoints that a run keeps for those who asked for them by signal


class Handlers(Gates):
    """What can be sent to an agent's run at any time: also before it starts and while it ends."""

    _asks_groups = False  # until it does

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress()
        self._owner: Owner = (None, None)
        self._exports: list[dict[str, Any]] = []
        self._exported: dict[str, dict[str, Any]] = {}  # of signals, by id
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
        return self._mailbox.read_message(self._one("message", data, extra), self._limit, self._owner)

    def _read_answer(self, data: Any, extra: tuple[Any, ...], *, may_be_early: bool) -> Answer:
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

    def _read_resolve(self, data: Any, extra: tuple[Any, ...]) -> Resolve:
        return self._mailbox.read_resolve(self._one("resolve", data, extra, most=AWAITED_BYTES), self._progress.unknown)

    # --- signals: with an id the main door, whose sender looks up what it came to; else the side door ---

    @workflow.signal(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?, "by"?}')
    def message_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("message", data, lambda given, _: self._read_message(given, extra), self._keep_message)

    @workflow.signal(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_signal(self, data: Any = None, *extra: Any) -> None:
        self._take(
            "answer",
            data,
            lambda given, sent: self._read_answer(given, extra, may_be_early=sent is None),
            self._keep_answer,
        )

    @workflow.signal(name=names.RESOLVE, description=_RESOLVE)
    def resolve_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("resolve", data, lambda given, _: self._read_resolve(given, extra), self._keep_resolve)

    @workflow.signal(
        name=names.EXPORT_UPDATE, description='Make a checkpoint of the run, which a query returns: {"id"}'
    )
    def export_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("export", data, lambda given, sent: self._read_export(given, extra, sent), self._keep_export)

    def _read_export(self, data: Any, extra: tuple[Any, ...], sent: str | None) -> dict[str, Any]:
        if sent is None:
            raise InputError("export: a signal needs an id, by which the checkpoint is looked up")
        self._one("export", data, extra)
        return {}

    def _keep_export(self, request: dict[str, Any], sent: str | None) -> None:
        self._exports.append(request)
        self._exported[str(sent)] = request
        if len(self._exported) > _EXPORTED:
            del self._exported[next(iter(self._exported))]

    def _outcome(self, sent: str) -> dict[str, Any] | None:
        request = self._exported.get(sent)
        if request is None:
            return super()._outcome(sent)
        if "checkpoint" in request:
            return {"accepted": True, **request}
        return {"refused": _not_exported(request)} if "error" in request or self._ended else {}

    def _keep_message(self, said: Said, sent: str | None = None) -> dict[str, Any]:
        self._mailbox.messages.append(said)
        return {"accepted": True}

    def _keep_answer(self, answer: Answer, sent: str | None = None) -> dict[str, Any]:
        self._mailbox.keep_answer(answer)
        return {"accepted": True, "tool_call_id": answer.tool_call_id}

    def _keep_resolve(self, resolve: Resolve, sent: str | None = None) -> dict[str, Any]:
        self._mailbox.resolves[resolve.tool_call_id] = resolve
        return {"accepted": True, "tool_call_id": resolve.tool_call_id}

    # --- updates: for other programs; the sender learns whether it counts ---

    @workflow.update(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?, "by"?}')
    def message_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        return self._keep_message(self._read_message(data, extra))

    @message_update.validator
    def _check_message(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_message(data, extra))

    @workflow.update(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        return self._keep_answer(self._read_answer(data, extra, may_be_early=False))

    @answer_update.validator
    def _check_answer(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_answer(data, extra, may_be_early=False))

    @workflow.update(name=names.RESOLVE, description=_RESOLVE)
    def resolve_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        return self._keep_resolve(self._read_resolve(data, extra))

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
            raise ApplicationError(_not_exported(request), type="InputError")
        checkpoint: dict[str, Any] = request["checkpoint"]
        return checkpoint

    @export_update.validator
    def _check_export(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._one("export", data, extra))


def _not_exported(request: dict[str, Any]) -> str:
    return str(request.get("error", "export: the run has ended"))
