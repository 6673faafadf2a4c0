"""The signals and updates of an agent's workflow. Handlers only check and enqueue; the run itself decides."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from standfast.agent_loop import LoopState
from standfast.agents import Loop
from standfast.errors import InputError
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import Answer, LaterError, Resolve, Sent
from standfast.temporal.wire.inputs import AgentInput, Owner, Said, said_id, user_message, with_id
from standfast.temporal.wire.limits import AWAITED_BYTES, PARKED_BYTES
from standfast.temporal.wire.run_state import Progress
from standfast.temporal.workflows.activity_options import STORE_OPTIONS
from standfast.temporal.workflows.arrivals import refuse_by
from standfast.temporal.workflows.gates import Gates
from standfast.temporal.workflows.missing_workers import anywhere
from standfast.tools import Outcome, Returned

_RESOLVE = (
    'Settle a call of unknown outcome: {"tool_call_id", "decision": "happened" | "not-happened" | "leave", "result"?, '
    '"by"?, "reason"?}'
)
_ASKING = ("question", "unknown")  # kinds of what waits for an answer
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
        self._kept: set[str] = set()  # messages that the store has
        self._senders: dict[str, str] = {}  # the ids of signals that brought others
        self._keeping: asyncio.Task[None] | None = None
        self._answers_looked = 0  # behind how many resets the run has looked for answers
        self._messages_looked = 0  # and for messages
        self._given = AgentInput()

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

    def _read_answer(self, data: Any, extra: tuple[Any, ...]) -> Answer:
        if self._answers_looked < self._resets:
            raise LaterError("answer: the run was reset, and looks up what was answered before; try again in a moment")
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
        return self._mailbox.read_answer(data, questions, self._limit)

    def _read_resolve(self, data: Any, extra: tuple[Any, ...]) -> Resolve:
        self._refuse_overdue("resolve", "unknown")
        return self._mailbox.read_resolve(self._one("resolve", data, extra, most=AWAITED_BYTES), self._progress.unknown)

    # --- messages ---

    def _say(self, said: Said) -> None:
        self._mailbox.messages.append(said)
        self._keep_messages()

    def _keep_messages(self) -> None:
        """Begin to keep what was said in the store, where it outlives the run, as soon as that is open."""
        if self._loop_state is not None and self._keeping is None and self._unkept():
            self._keeping = asyncio.create_task(self._keep_all())

    def _unkept(self) -> list[Said]:
        ids = ((said, said_id(said)) for said in self._mailbox.messages)
        return [said for said, message_id in ids if message_id is not None and message_id not in self._kept]

    async def _keep_all(self) -> None:
        try:
            while messages := self._unkept():
                is_kept = await self._keep_in_store(messages)
                kept = {str(said_id(said)) for said in messages}
                self._kept |= kept
                came_to: dict[str, Any] = (
                    {"accepted": True} if is_kept else {"refused": "message: the run is cancelled"}
                )
                for message_id in [one for one in self._senders if one in kept]:
                    self._mailbox.came_of(self._senders.pop(message_id), **came_to)
        finally:
            self._keeping = None

    async def _keep_in_store(self, messages: list[Said]) -> bool:
        """Keep messages; returns whether the store has them, or the run was cancelled before."""
        reference = self._reference(messages=messages)
        return await anywhere(self, names.KEEP, reference, STORE_OPTIONS, otherwise=False) is not False

    async def _messages_kept(self) -> None:
        """Wait until the store has what was said: only what it has it can take note of as heard."""
        await workflow.wait_condition(lambda: self._keeping is None)

    async def _recall_messages(self) -> None:
        """Find what was said before the run was reset, and nobody has heard."""
        resets = self._resets
        found = await self._around(names.KEEP, self._reference(messages=[], again=True))
        self._messages_looked = resets
        known = {said_id(said) for said in [*self._mailbox.messages, *self._progress.say]}
        unheard = [said for said in found or () if said_id(said) not in known]
        self._kept |= {str(said_id(said)) for said in unheard}
        self._mailbox.messages[:0] = unheard

    def _hear_first(self, said: Said) -> None:
        """Take in what a person answers to the agent itself; one whose sender waits is kept as a message is."""
        message_id = f"answer/{self._progress.turn.seq}"
        if message_id in self._kept or any(not call_id for _, call_id in self._mailbox.unwritten):
            said = with_id(said, message_id)
        self._mailbox.messages.insert(0, said)
        self._keep_messages()

    async def _recall_said(self) -> dict[str, Outcome]:
        """Return what the agent itself was answered before a reset, if the store keeps it; see `_hear_first`."""
        if self._messages_looked < self._resets:
            await self._recall_messages()
        for said in [one for one in self._mailbox.messages if said_id(one) == f"answer/{self._progress.turn.seq}"]:
            self._mailbox.messages.remove(said)
            return {"": Returned(user_message(said).content)}
        return {}

    async def _around(self, name: str, reference: dict[str, Any]) -> Any:
        """Return the result of an activity around the run; None if it needs the agent, and the run is cancelled."""
        return await anywhere(self, name, reference, STORE_OPTIONS)

    def _reference(self, **more: Any) -> dict[str, Any]:
        return self._progress.reference(self._given, workflow.info(), **more)

    # --- the end ---

    def _ending(self, status: str) -> None:
        super()._ending(status)
        for name, box in ((names.ANSWER, self._mailbox.answers), (names.RESOLVE, self._mailbox.resolves)):
            for one in cast("Mapping[str, Answer | Resolve]", box).values():
                self._mailbox.came_of(one.sent.id, refused=f"{name}: the run has ended")

    async def _handlers_ended(self) -> None:
        if self._senders and self._keeping is not None and workflow.patched(names.SENDERS_HEAR):
            await self._messages_kept()
        await super()._handlers_ended()

    # --- signals: with an id the main door, whose sender looks up what it came to; else the side door ---

    @workflow.signal(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?, "by"?}')
    def message_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("message", data, lambda given, _: self._read_message(given, extra), self._keep_message)

    @workflow.signal(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    def answer_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("answer", data, lambda given, _: self._read_answer(given, extra), self._keep_answer)

    @workflow.signal(name=names.RESOLVE, description=_RESOLVE)
    def resolve_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("resolve", data, lambda given, _: self._read_resolve(given, extra), self._keep_resolve)

    @workflow.signal(
        name=names.EXPORT_UPDATE, description='Make a checkpoint of the run, which a query returns: {"id"}'
    )
    def export_signal(self, data: Any = None, *extra: Any) -> None:
        self._take("export", data, lambda given, sent_id: self._read_export(given, extra, sent_id), self._keep_export)

    def _read_export(self, data: Any, extra: tuple[Any, ...], sent_id: str | None) -> dict[str, Any]:
        if sent_id is None:
            raise InputError("export: a signal needs an id, by which the checkpoint is looked up")
        self._one("export", data, extra)
        return {}

    def _keep_export(self, request: dict[str, Any], sent: Sent) -> None:
        self._exports.append(request)
        self._exported[str(sent.id)] = request
        if len(self._exported) > _EXPORTED:
            del self._exported[next(iter(self._exported))]

    def _outcome(self, sent_id: str) -> dict[str, Any] | None:
        request = self._exported.get(sent_id)
        if request is None:
            return super()._outcome(sent_id)
        if "checkpoint" in request:
            return {"accepted": True, **request}
        return {"refused": _not_exported(request)} if "error" in request or self._ended else {}

    def _keep_message(self, said: Said, sent: Sent) -> dict[str, Any]:
        """Take in a message; its sender is told that it counts once the store has it, as soon as the run is open."""
        # The same again behind a reset, which brings the signal back; another in the run that goes on as new.
        message_id = f"signal/{workflow.info().original_execution_run_id}/{sent.digest}/{sent.number}"
        self._say(with_id(said, message_id))
        if self._loop_state is None or sent.id is None:
            return {"accepted": True}
        self._senders[message_id] = sent.id
        return {}

    def _keep_answer(self, answer: Answer, sent: Sent) -> dict[str, Any]:
        sender = _told_once_written(sent)
        is_late = bool(sent.number) and self._overdue(*_ASKING) is not None
        self._mailbox.keep_answer(replace(answer, sent=sender, is_late=is_late))
        return {} if sender.id else {"accepted": True, "tool_call_id": answer.tool_call_id}

    def _keep_resolve(self, resolve: Resolve, sent: Sent) -> dict[str, Any]:
        sender = _told_once_written(sent)
        self._mailbox.resolves[resolve.tool_call_id] = replace(resolve, sent=sender)
        return {} if sender.id else {"accepted": True, "tool_call_id": resolve.tool_call_id}

    # --- updates: for other programs; the sender learns whether it counts ---

    @workflow.update(name=names.MESSAGE, description='Say something to the agent: {"text": "…", "images"?, "by"?}')
    async def message_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        message_id = str(_update(names.MESSAGE).id)
        self._say(with_id(self._read_message(data, extra), message_id))
        if self._loop_state is None:  # nothing but the history has it until the run is open
            return {"accepted": True}
        await workflow.wait_condition(lambda: message_id in self._kept or (bool(self._ended) and self._keeping is None))
        if message_id not in self._kept:
            raise ApplicationError("message: the run has ended", type="InputError", non_retryable=True)
        return {"accepted": True}

    @message_update.validator
    def _check_message(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_message(data, extra))

    @workflow.update(name=names.ANSWER, description='Answer a question: {"text": "…", "tool_call_id"?, "by"?}')
    async def answer_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        sent = _update(names.ANSWER)
        return self._keep_answer(self._read_answer(data, extra), sent) or await self._told(sent)

    @answer_update.validator
    def _check_answer(self, data: Any = None, *extra: Any) -> None:
        def read() -> None:
            self._read_answer(data, extra)
            self._refuse_overdue("answer", *_ASKING)

        refuse_by(read)

    @workflow.update(name=names.RESOLVE, description=_RESOLVE)
    async def resolve_update(self, data: Any = None, *extra: Any) -> dict[str, Any]:
        sent = _update(names.RESOLVE)
        return self._keep_resolve(self._read_resolve(data, extra), sent) or await self._told(sent)

    @resolve_update.validator
    def _check_resolve(self, data: Any = None, *extra: Any) -> None:
        refuse_by(lambda: self._read_resolve(data, extra))

    async def _told(self, sent: Sent) -> dict[str, Any]:
        """Return what an update has come to, as soon as the store has what it brought."""
        outcomes = self._mailbox.outcomes
        await workflow.wait_condition(lambda: bool(outcomes.get(str(sent.id))) or bool(self._ended))
        outcome = outcomes.pop(str(sent.id), {"refused": f"{sent.name}: the run has ended, and may have taken it in"})
        if "refused" in outcome:
            raise ApplicationError(outcome["refused"], type="InputError", non_retryable=True)
        return outcome

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


def _update(name: str) -> Sent:
    """Return by what the sender of the update that is handled now is told what it came to."""
    update = workflow.current_update_info()
    return Sent(name, id=f"update/{'' if update is None else update.id}")


def _told_once_written(sent: Sent) -> Sent:
    """Return whom to tell once the store has an answer: nobody in runs that have told before, or without an id."""
    is_told = sent.id is not None and workflow.patched(names.ANSWERS_WRITTEN)
    return sent if is_told else replace(sent, id=None)


def _not_exported(request: dict[str, Any]) -> str:
    return str(request.get("error", "export: the run has ended"))
