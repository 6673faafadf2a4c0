"""Keeps messages to an agent until the agent reads them; the store keeps them beyond the end of the run."""

import asyncio
from collections.abc import Collection
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import FailureError

from standfast.messages import check_same, content_digest
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import KeepReference, Kept
from standfast.temporal.wire.inbox import Sent, split_id
from standfast.temporal.wire.inputs import Owner, Said, message_id_of, said_id, user_message, with_id
from standfast.temporal.workflows.inbox.arrivals import refuse_by, sent_by_update
from standfast.temporal.workflows.run.activity_results import refuse, why
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_lifetime import until_told
from standfast.temporal.workflows.run.run_parts import RunParts
from standfast.tools import Outcome, Returned

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

    async def take_update(self, data: Any, extra: tuple[Any, ...]) -> dict[str, Any]:
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

    def _keep_signal(self, said: Said, sent: Sent) -> dict[str, Any]:
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
                came_to: dict[str, Any] = {"accepted": True} if is_kept else {"refused": _CANCELLED}
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
