"""The signals, updates and queries of an agent's workflow. Handlers only check and enqueue; the run itself decides.

A signal of the wrong shape would wedge a workflow for good, and so would an update without a validator (both
measured). So each takes whatever comes, reads it itself, and notes or refuses what it cannot use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from holdfast.agent_loop import LoopState
from holdfast.agents import Loop
from holdfast.errors import InputError
from holdfast.messages import json_problem
from holdfast.temporal import names
from holdfast.temporal.mailboxes import Mailbox
from holdfast.temporal.progress import Progress
from holdfast.temporal.wire import AWAITED_BYTES, INLINE_BYTES, PARKED_BYTES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that only a person can end.

    Args:
        kind: "question", "unknown" (a call whose outcome nobody knows), "pause", or "worker" (none has the agent).
        name: the call it is about; for a pause, what could not be done; for a worker, the agent.
    """

    kind: str
    name: str
    message: str
    since: datetime
    deadline: datetime | None = None

    def plain(self) -> dict[str, Any]:
        data = {"kind": self.kind, "name": self.name, "message": self.message, "since": self.since.isoformat()}
        return data if self.deadline is None else {**data, "deadline": self.deadline.isoformat()}


class Handlers:
    """What can be sent to a run, and asked of it, at any time: also before it starts and while it ends."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()
        self._waiting: tuple[Waiting, ...] = ()
        self._progress = Progress()
        self._exports: list[dict[str, Any]] = []
        self._loop_state: LoopState | None = None
        self._ended = ""  # or how
        self._error: str | None = None  # what the run failed with

    # --- reading what came ---

    def _one(self, name: str, data: Any, extra: tuple[Any, ...], *, most: int = PARKED_BYTES) -> Any:
        if extra:
            raise InputError(f"{name}: takes one JSON object, got {1 + len(extra)} arguments")
        if self._ended:
            raise InputError(f"{name}: the run has ended")
        if isinstance(data, dict) and json_problem(data) is None:
            self._check_room(name, data, most)
        return data

    def _check_room(self, name: str, data: Any, most: int) -> None:
        """Refuse what would make all that waits to be taken in outgrow a history."""
        if len(to_json(data)) > INLINE_BYTES:
            return  # refused by itself, by those who read it
        progress = self._progress
        parked = [self._mailbox.carried(), progress.say, list(progress.turn.sources.items()), data]
        if (size := len(to_json(parked))) > most:
            raise InputError(f"{name}: {size:,} bytes wait to be taken in, more than {most:,}; try again later")

    @property
    def _limit(self) -> int:
        loop = Loop() if self._loop_state is None else self._loop_state.loop
        return loop.max_message_bytes

    def _read_message(self, data: Any, extra: tuple[Any, ...]) -> str:
        return self._mailbox.read_message(self._one("message", data, extra), self._limit)

    def _read_answer(self, data: Any, extra: tuple[Any, ...], *, may_be_early: bool) -> Any:
        questions = () if self._loop_state is None else self._loop_state.questions
        # What the run waits for lets it take in the rest: there is always room for it.
        open_ids = [question.tool_call_id for question in questions]
        is_awaited = isinstance(data, dict) and data.get("tool_call_id") in (None, *open_ids)
        data = self._one("answer", data, extra, most=AWAITED_BYTES if is_awaited else PARKED_BYTES)
        return self._mailbox.read_answer(data, questions, self._limit, may_be_early=may_be_early)

    def _read_resume(self, data: Any, extra: tuple[Any, ...]) -> Any:
        paused = any(waiting.kind == "pause" for waiting in self._waiting)
        return self._mailbox.read_resume(
            self._one("resume", {} if data is None else data, extra, most=AWAITED_BYTES), paused
        )

    def _read_resolve(self, data: Any, extra: tuple[Any, ...]) -> Any:
        return self._mailbox.read_resolve(self._one("resolve", data, extra, most=AWAITED_BYTES), self._progress.unknown)

    def _take(self, name: str, read: Callable[[], T], keep: Callable[[T], object]) -> None:
        try:
            keep(read())
        except InputError as error:
            self._mailbox.note(name, str(error), workflow.now().isoformat())

    # --- signals: the side door, for senders that cannot wait for an answer ---

    @workflow.signal(name=names.MESSAGE, description='Say something to the agent: {"text": "…"}')
    def message_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("message", lambda: self._read_message(data, extra), self._mailbox.messages.append)

    @workflow.signal(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("answer", lambda: self._read_answer(data, extra, may_be_early=True), self._mailbox.keep_answer)

    @workflow.signal(name=names.RESUME, description='Go on after a pause: {"action": "retry" | "abort", "model"?}')
    def resume_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("resume", lambda: self._read_resume(data, extra), self._mailbox.resumes.append)

    # --- updates: the main door; the sender learns whether it counts ---

    @workflow.update(name=names.MESSAGE, description='Say something to the agent: {"text": "…"}')
    def message_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        self._mailbox.messages.append(self._read_message(data, extra))
        return {"accepted": True}

    @message_update.validator
    def _check_message(self, data: Any = None, *extra: Any) -> None:
        _refuse_by(lambda: self._read_message(data, extra))

    @workflow.update(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        answer = self._read_answer(data, extra, may_be_early=False)
        self._mailbox.keep_answer(answer)
        return {"accepted": True, "tool_call_id": answer.tool_call_id}

    @answer_update.validator
    def _check_answer(self, data: Any = None, *extra: Any) -> None:
        _refuse_by(lambda: self._read_answer(data, extra, may_be_early=False))

    @workflow.update(name=names.RESUME, description='Go on after a pause: {"action": "retry" | "abort", "model"?}')
    def resume_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        self._mailbox.resumes.append(self._read_resume(data, extra))
        return {"accepted": True}

    @resume_update.validator
    def _check_resume(self, data: Any = None, *extra: Any) -> None:
        _refuse_by(lambda: self._read_resume(data, extra))

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
        _refuse_by(lambda: self._read_resolve(data, extra))

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
        _refuse_by(lambda: self._one("export", data, extra))

    # --- queries ---

    @workflow.query(name=names.PENDING, description="What waits for a person: kind, name, message, since, deadline")
    def pending(self, *ignored: Any) -> list[dict[str, Any]]:
        return [waiting.plain() for waiting in self._waiting]


def _refuse_by(read: Callable[[], object]) -> None:
    try:
        read()
    except InputError as error:
        raise ApplicationError(str(error), type="InputError", non_retryable=True) from None
