"""Keeps messages to an agent until the agent reads them; the store keeps them beyond the end of the run.

Also waits for people's answers to the agent's questions, and for their findings on unknown outcomes.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from standfast.agent_loop import nobody_answered
from standfast.agents import Loop
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import JSONObject, check_same, content_digest
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AnsweredReference, KeepReference, Kept, Source
from standfast.temporal.wire.inbox import ANSWER_FIELDS, Answer, EarlyError, Resolve, Sent, split_id
from standfast.temporal.wire.inputs import (
    AWAITED_BYTES,
    PARKED_BYTES,
    PARKED_MESSAGES,
    Owner,
    Said,
    message_id_of,
    read_fields,
    said_by_user,
    said_id,
    user_message,
    with_id,
)
from standfast.temporal.wire.outcomes import read_outcome, write_outcome
from standfast.temporal.wire.run_state import Call
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.calls.tool_calls import Calls
from standfast.temporal.workflows.inbox.arrivals import refuse_by, sent_by_update
from standfast.temporal.workflows.run.activity_results import refuse, why
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_lifetime import until_told
from standfast.temporal.workflows.run.run_parts import RunParts
from standfast.tools import Asked, Failed, Outcome, Returned, Unknown

_CANCELLED = "message: the run is cancelled"


class Messages:
    """The messages to a run.

    Args:
        owner: the user of the run; a message that names its user must name this one.
        first: the message that the run was started with, if it has an id.
    """

    def __init__(self, run: RunState, parts: RunParts, owner: Owner, first: Said | None) -> None:
        self.kept: set[str] = set()  # ids of messages that the store has
        self._given_up: dict[str, str] = {}  # by id, the reason why a message is not stored
        self._run, self._owner = run, owner
        self._seen: dict[str, tuple[str, str | None]] = {}  # by sender id: the message's digest, and its author
        for said in (one for one in (first,) if one is not None):
            self.note(said)
        self._board, self._inbox, self._running, self._box = parts.board, parts.inbox, parts.running, parts.mailbox
        self._workers = parts.workers
        self._senders: dict[str, str] = {}  # by message, the id of the signal that brought it
        self._updates: set[str] = set()  # the ids of messages whose updates wait until they are stored
        self._keeping: asyncio.Task[None] | None = None
        self._looked = 0  # the number of resets after which the run has looked for messages

    @property
    def is_keeping(self) -> bool:
        return self._keeping is not None

    # --- what arrives ---

    def take_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take("message", data, lambda given, sent_id: self.read(given, extra, sent_id), self._keep_signal)

    async def take_update(self, data: Any, extra: tuple[Any, ...]) -> JSONObject:
        message_id = str(sent_by_update(names.MESSAGE).id)
        said = self._read_update(data, extra)
        if self._has(said):
            return {"accepted": True}
        self._say(with_id(said, message_id))
        if not self._run.is_open:  # until then only the history has it
            return {"accepted": True}
        self._updates.add(message_id)
        await workflow.wait_condition(
            lambda: (
                message_id in self.kept
                or message_id in self._given_up
                or (bool(self._board.ended) and not self.is_keeping)
            )
        )
        if message_id not in self.kept:
            refuse(self._given_up.get(message_id, "message: the run has ended"))
        return {"accepted": True}

    def check_update(self, data: Any, extra: tuple[Any, ...]) -> None:
        refuse_by(lambda: self._has(self._read_update(data, extra)))

    def _read_update(self, data: Any, extra: tuple[Any, ...]) -> Said:
        message_id, rest = split_id(data)
        return self.read(rest, extra, message_id)

    def read(self, data: Any, extra: tuple[Any, ...], message_id: str | None) -> Said:
        limit = self._run.loop.loop.max_message_bytes
        return self._box.read_message(self._inbox.one("message", data, extra), limit, self._owner, message_id)

    def _has(self, said: Said) -> bool:
        """Whether this run received a message before, by its sender id.

        Raises:
            InputError: the id belongs to another message.
        """
        if (message_id := message_id_of(said)) not in self._seen or message_id is None:
            return False
        check_same(user_message(said), *self._seen[message_id])
        return True

    def note(self, said: Said) -> None:
        """Remember a message by its sender id: the same message counts once."""
        if (message_id := message_id_of(said)) is not None:
            message = user_message(said)
            self._seen[message_id] = content_digest(message), message.by

    def _keep_signal(self, said: Said, sent: Sent) -> JSONObject:
        """Take in a message. In an open run, the sender learns that the message counts once it is stored."""
        if self._has(said):
            return {"accepted": True}
        # The value is the same after a reset, which repeats the signal, and differs in the run that continues as new.
        message_id = f"signal/{workflow.info().original_execution_run_id}/{sent.digest}/{sent.number}"
        self._say(with_id(said, message_id))
        if sent.id is not None:
            self._senders[message_id] = sent.id
        return {} if self._run.is_open and sent.id is not None else {"accepted": True}

    def _say(self, said: Said) -> None:
        self.note(said)
        self._box.messages.append(said)
        self.keep()

    # --- in the store ---

    def keep(self) -> None:
        """Begin to store messages, where they outlive the run, as soon as the run is open."""
        if self._run.is_open and self._keeping is None and self._unkept():
            self._keeping = asyncio.create_task(self._keep_all())

    def _unkept(self) -> list[Said]:
        ids, settled = ((said, said_id(said)) for said in self._box.messages), {None, *self.kept, *self._given_up}
        return [said for said, message_id in ids if message_id not in settled]

    async def _keep_all(self) -> None:
        try:
            while messages := self._unkept():
                reference = self._run.reference(KeepReference)
                reference["messages"] = messages
                try:
                    found: Any = await self._workers.execute(names.KEEP, reference, otherwise=False)
                except FailureError as error:
                    self._refuse(messages, f"message: it could not be kept: {why(error)}")
                    continue
                self._drop_repeated(cast(Kept, found) if isinstance(found, dict) else {})
                is_kept = found is not False
                sent = [str(said_id(said)) for said in messages]
                sent = [one for one in sent if one not in self._given_up]
                if is_kept:
                    self.kept |= set(sent)
                else:
                    self._given_up |= dict.fromkeys(sent, _CANCELLED)
                came_to: JSONObject = {"accepted": True} if is_kept else {"refused": _CANCELLED}
                for message_id in [one for one in self._senders if one in sent]:
                    self._box.came_of(self._senders.pop(message_id), **came_to)
        finally:
            self._keeping = None

    def _drop_repeated(self, found: Kept) -> None:
        """Drop messages that the session already has, and those whose id belongs to another message."""
        for message_id, reason in found.get("refused", {}).items():
            self._given_up[message_id] = reason
            if (sender := self._senders.pop(message_id, None)) is not None:
                self._box.came_of(sender, refused=reason)
            self._board.refuse(names.MESSAGE, reason)
        self._forget(found.get("refused", {}))
        dropped = {*found.get("has", ()), *found.get("refused", ())}
        self._box.messages = [said for said in self._box.messages if said_id(said) not in dropped]

    def _forget(self, refused: Collection[str]) -> None:
        """Release the ids of messages that do not count."""
        for said in [one for one in self._box.messages if said_id(one) in refused]:
            self._seen.pop(str(message_id_of(said)), None)

    def _refuse(self, messages: list[Said], reason: str) -> None:
        """Tell waiting senders that their messages do not count. The run still takes in the other messages."""
        ids = [str(said_id(said)) for said in messages]
        self._given_up |= dict.fromkeys(ids, reason)
        self._forget(ids)
        for message_id in ids:
            if message_id in self._senders:
                self._box.came_of(self._senders.pop(message_id), refused=reason)
            elif message_id not in self._updates:
                continue
            self._box.messages = [said for said in self._box.messages if said_id(said) != message_id]

    async def until_kept(self) -> None:
        """Wait until the messages are stored: the run can mark only stored messages as read."""
        await workflow.wait_condition(lambda: not self.is_keeping)

    async def senders_told(self) -> None:
        if self._senders and self.is_keeping and workflow.patched(names.SENDERS_HEAR):
            await until_told(lambda: not self.is_keeping)

    # --- what is heard ---

    async def take_all(self) -> None:
        """Pass the messages to the next model call."""
        await self.until_kept()
        self._run.progress.say += self._box.take_messages()

    def hear_first(self, said: Said) -> None:
        """Take in a person's answer to the agent itself. If its sender waits, the answer is kept like a message."""
        message_id = f"answer/{self._run.progress.turn.seq}"
        if message_id in self.kept or any(not call_id for _, call_id in self._box.unwritten):
            said = with_id(said, message_id)
        self._box.messages.insert(0, said)
        self.keep()

    async def recall(self) -> None:
        """After a reset, find the earlier messages that the agent has not read."""
        if self._looked >= self._running.resets:
            return
        resets = self._running.resets
        reference = self._run.reference(KeepReference)
        reference |= {"messages": [], "again": True}
        found = await self._workers.execute(names.KEEP, reference)
        self._looked = resets
        known = {said_id(said) for said in [*self._box.messages, *self._run.progress.say]}
        unheard = [said for said in found or () if said_id(said) not in known]
        self.kept |= {str(said_id(said)) for said in unheard}
        self._box.messages[:0] = unheard

    async def recall_answer(self) -> dict[str, Outcome]:
        """Return the answer that the agent itself was given before a reset, if it is stored; see `hear_first`."""
        await self.recall()
        for said in [one for one in self._box.messages if said_id(one) == f"answer/{self._run.progress.turn.seq}"]:
            self._box.messages.remove(said)
            return {"": Returned(user_message(said).content)}
        return {}


_ASKING = ("question", "unknown")  # the kinds of items that wait for an answer
_LOOKING = "answer: the run was reset, and is looking up its earlier answers; send it again"
_RESOLVED = 20  # operators' decisions that `status` shows


class Questions:
    """The questions of a run, and their answers.

    Args:
        is_interrupted: whether the run has other work than waiting for an answer.
    """

    def __init__(
        self, run: RunState, parts: RunParts, messages: Messages, calls: Calls, is_interrupted: Callable[[], bool]
    ) -> None:
        self._run, self._messages, self._calls = run, messages, calls
        self._board, self._inbox, self._running, self._box = parts.board, parts.inbox, parts.running, parts.mailbox
        self._pauses, self._workers = parts.pauses, parts.workers
        self._is_interrupted = is_interrupted
        self._looked = 0  # the number of resets after which the run has looked for the turn's answers
        self._turn = 0  # the last turn in which it has looked
        self._recalled: dict[str, Outcome] = {}  # by call, the answers from before a reset, as they were written
        self._held: list[tuple[Any, tuple[Any, ...]]] = []  # answers without an id that came while it was looking
        self._inbox.parked.append(lambda: [data for data, _ in self._held])

    # --- waiting ---

    async def ask(self, question: Question) -> None:
        """Wait until an open question has its answer. All open questions may be answered, in any order."""
        progress = self._run.progress
        self._look_in_each_turn()
        since = progress.since = progress.since or workflow.now()
        deadline = self._pauses.deadline(since)
        waiting = tuple(
            Waiting(
                "unknown" if asked.tool_call_id in progress.unknown else "question",
                asked.tool_call_id or "",
                asked.question,
                since,
                deadline,
            )
            for asked in self._run.loop.questions
        )
        self._board.rows.keeps = False
        if waiting != self._board.waiting:
            self._board.begin_instead(*waiting)
        await self._running.until(
            lambda: self._with_answer() is not None or self._is_interrupted() or self._looked < self._running.resets,
            deadline,
            f"answer to {question.tool_call_id or 'the agent'}",
        )
        if self._with_answer() is None:
            await self._inbox.looked_up()
        if self._looked < self._running.resets:
            await self._recall()
        question = self._with_answer() or question
        box, key = self._box, question.tool_call_id or ""
        if key in self._recalled:
            self._take_recalled(question)
        elif key in box.resolves:
            await self._resolve(question, box.take_resolve(key))
        elif key in box.answers:
            answer = box.take_answer(question.tool_call_id)
            if answer.is_late and await self._inbox.is_late(answer.sent, deadline):
                box.answered.remove(key)
            else:
                box.note_taken(answer)
                self._answered(question, Returned(answer.text), answer.by)
        elif deadline is not None and workflow.now() >= deadline and not self._running.cancelled:
            if key in progress.unknown and question.unknown is None:  # an older worker asked
                question = question.model_copy(update={"unknown": ""})
            self._answered(question, nobody_answered(question, deadline - since))

    def _with_answer(self) -> Question | None:
        """Return the first question that has its answer, even if earlier questions are still open.

        Answers from before a reset come first, in the order of the transcript: they are written to it again.
        """
        questions = {one.tool_call_id or "": one for one in self._run.loop.questions}
        given = (key for key in questions if key in self._box.answers or key in self._box.resolves)
        return next((questions[key] for key in (*self._recalled, *given) if key in questions), None)

    def _look_in_each_turn(self) -> None:
        """After a reset, look for earlier answers in each turn that asks, not only in the first."""
        if self._turn not in (0, self._run.progress.turn.number) and workflow.patched(names.EACH_TURN_LOOKS):
            self._looked, self._turn = 0, 0

    async def _recall(self) -> None:
        """Find the answers that the questions of the turn had before the run was reset."""
        resets, run = self._running.resets, self._run
        reference = run.reference(AnsweredReference)
        reference["after"] = run.progress.turn.seq
        found = await self._workers.execute(names.ANSWERED, reference)
        asked = {question.tool_call_id or "" for question in run.loop.questions}
        self._recalled = {key: read_outcome(outcome) for key, outcome in (found or {}).items() if key in asked}
        if "" in asked and "" not in self._recalled:
            self._recalled |= await self._messages.recall_answer()
        self._looked, self._turn = resets, run.progress.turn.number
        held, self._held = self._held, []
        for data, extra in held:
            self.answer_signal(data, extra)

    def _take_recalled(self, question: Question) -> None:
        key = question.tool_call_id or ""
        self._box.answered.append(key)
        if (later := self._box.answers.pop(key, None)) is not None:
            self._inbox.came_of(names.ANSWER, later.sent.id, f"answer: call {key} already has its answer")
        self._answered(question, self._recalled.pop(key))

    def _answered(self, question: Question, outcome: Outcome, by: str | None = None) -> None:
        """Take in a question's answer: the result of its call, or a person's message to the agent."""
        call_id, progress = question.tool_call_id, self._run.progress
        if call_id is None:
            said = outcome.content if isinstance(outcome, Returned) else _text(outcome)
            self._messages.hear_first(said_by_user(said, by=by))
        else:
            position = progress.turn.calls[call_id].position
            if position not in progress.turn.sources:
                spent: Source = {} if question.usage is None else {"spent": question.usage.plain()}
                who: Source = {} if by is None else {"by": by}
                progress.turn.sources[position] = {**write_outcome(outcome), **spent, **who}
            progress.unknown.pop(call_id, None)
        self._run.loop = self._run.loop.answered(question)
        if not self._run.loop.questions:
            progress.since = None
        self._end_waiting(call_id or "")

    def _end_waiting(self, name: str) -> None:
        self._board.end(*(item for item in self._board.waiting if item.name == name))

    async def _resolve(self, question: Question, resolve: Resolve) -> None:
        progress = self._run.progress
        call: Call = progress.unknown[resolve.tool_call_id]
        resolved = {
            "tool_call_id": call.id,
            "decision": resolve.decision,
            "by": resolve.by,
            "reason": None if resolve.reason is None else resolve.reason[:500],
            "at": workflow.now().isoformat(),
        }
        progress.resolved = [*progress.resolved[1 - _RESOLVED :], resolved]
        match resolve.decision:
            case "happened":
                self._answered(question, Returned(resolve.result), resolve.by)
            case "leave":
                self._answered(question, Unknown(resolve.reason or ""))
            case "not-happened":
                await self._run_again(question, call)

    async def _run_again(self, question: Question, call: Call) -> None:
        """Run a call that did not happen.

        No further decision on the call is accepted until it has run, which may need a deploy.
        """
        progress = self._run.progress
        progress.turn.dispatches.setdefault(call.position, 1)
        progress.unknown.pop(call.id, None)
        self._box.answered.append(call.id)
        self._end_waiting(call.id)
        outcome = await self._calls.run_again(call, self._run.loop, self._box.written)
        match outcome:
            case Unknown() | Asked():
                progress.turn.sources.pop(call.position, None)
                self._box.answered.remove(call.id)
                if isinstance(outcome, Unknown):
                    progress.unknown[call.id] = call
                self._run.loop = self._run.loop.asked_instead(question, outcome)
            case _:
                self._answered(question, outcome)

    # --- answers ---

    def answer_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        if self._is_held(data):
            self._held.append((data, extra))
            return
        self._inbox.take("answer", data, lambda given, _: self.read_answer(given, extra), self._keep_answer)

    def _is_held(self, data: Any) -> bool:
        """Whether an answer waits for the end of the look-up, since its sender is not told of a refusal.

        The sender of an answer with an id sends it again. An unreadable answer, or one that finds no room, is refused.
        """
        is_looking = self._is_looking(self._running.is_just_reset())
        if not is_looking or self._run.loop.gates or not isinstance(data, dict) or data.get("id") is not None:
            return False
        try:
            read_fields(self._inbox.one("answer", data, ()), "answer", ANSWER_FIELDS)
        except InputError:
            return False
        return len(self._held) < PARKED_MESSAGES and workflow.patched(names.ANSWERS_HELD)

    def _is_looking(self, was_just_reset: bool = False) -> bool:
        """Whether a question is open whose earlier answer, from before a reset, has not been looked up.

        Args:
            was_just_reset: whether a reset came with the message at hand.
        """
        is_new = was_just_reset or self._looked < self._running.resets
        return is_new and any(one.gate is None for one in self._run.loop.questions)

    async def answer_update(self, data: Any, extra: tuple[Any, ...]) -> JSONObject:
        sent = sent_by_update(names.ANSWER)
        return self._keep_answer(self.read_answer(data, extra), sent) or await self._outcome(sent)

    def check_answer(self, data: Any, extra: tuple[Any, ...]) -> None:
        def read() -> None:
            if self._is_looking(self._running.is_just_reset()):
                raise EarlyError(_LOOKING)
            self.read_answer(data, extra)
            self._inbox.refuse_overdue("answer", *_ASKING)

        refuse_by(read)

    def read_answer(self, data: Any, extra: tuple[Any, ...]) -> Answer:
        if self._is_looking():
            raise EarlyError(_LOOKING)
        state = self._run.loop
        questions, gates = tuple(one for one in state.questions if one.gate is None), state.gates
        call_id = data.get("tool_call_id") if isinstance(data, dict) else None
        if gates and isinstance(data, dict) and call_id in (None, *(one.tool_call_id for one in gates)):
            call_id = call_id or gates[0].tool_call_id
            raise InputError(f"answer: call {call_id} waits to be approved, not for an answer; send `decide`")
        # The run takes in the other messages after an answer that it waits for, so there is always room for one.
        is_awaited = isinstance(data, dict) and call_id in (None, *(question.tool_call_id for question in questions))
        data = self._inbox.one("answer", data, extra, most=AWAITED_BYTES if is_awaited else PARKED_BYTES)
        loop = Loop() if state is None else state.loop
        return self._box.read_answer(data, questions, loop.max_message_bytes)

    def _keep_answer(self, answer: Answer, sent: Sent) -> JSONObject:
        sender = _told_once_written(sent)
        is_late = bool(sent.number) and self._board.overdue(*_ASKING) is not None
        self._box.keep_answer(replace(answer, sent=sender, is_late=is_late))
        return {} if sender.id else {"accepted": True, "tool_call_id": answer.tool_call_id}

    async def _outcome(self, sent: Sent) -> JSONObject:
        """Return the outcome of an update, as soon as its content is stored."""
        outcomes, board = self._box.outcomes, self._board
        await workflow.wait_condition(lambda: bool(outcomes.get(str(sent.id))) or bool(board.ended))
        outcome = outcomes.pop(str(sent.id), {"refused": f"{sent.name}: the run has ended, and may have taken it in"})
        if "refused" in outcome:
            raise ApplicationError(outcome["refused"], type="InputError", non_retryable=True)
        return outcome

    # --- calls of unknown outcome ---

    def resolve_signal(self, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take("resolve", data, lambda given, _: self._read_resolve(given, extra), self._keep_resolve)

    async def resolve_update(self, data: Any, extra: tuple[Any, ...]) -> JSONObject:
        sent = sent_by_update(names.RESOLVE)
        return self._keep_resolve(self._read_resolve(data, extra), sent) or await self._outcome(sent)

    def check_resolve(self, data: Any, extra: tuple[Any, ...]) -> None:
        refuse_by(lambda: self._read_resolve(data, extra))

    def _read_resolve(self, data: Any, extra: tuple[Any, ...]) -> Resolve:
        self._inbox.refuse_overdue("resolve", "unknown")
        data = self._inbox.one("resolve", data, extra, most=AWAITED_BYTES)
        return self._box.read_resolve(data, self._run.progress.unknown)

    def _keep_resolve(self, resolve: Resolve, sent: Sent) -> JSONObject:
        sender = _told_once_written(sent)
        self._box.resolves[resolve.tool_call_id] = replace(resolve, sent=sender)
        return {} if sender.id else {"accepted": True, "tool_call_id": resolve.tool_call_id}


def _told_once_written(sent: Sent) -> Sent:
    """Return the sender to notify once an answer is stored: none without an id, or in older runs, which reply early."""
    is_told = sent.id is not None and workflow.patched(names.ANSWERS_WRITTEN)
    return sent if is_told else replace(sent, id=None)


def _text(outcome: Outcome) -> str:
    return outcome.error if isinstance(outcome, Failed) else ""
