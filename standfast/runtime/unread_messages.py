"""Stores the messages that a session's agent has not read yet, from the moment they are acknowledged.

They outlive the run that they were sent to. The session's next run reads them before its own message.
"""

from collections.abc import Iterable, Sequence

from standfast.errors import InputError
from standfast.messages import Message, Record, check_same, content_digest
from standfast.stores.kept_values import append, length, read_kept
from standfast.stores.protocol import Ledger, Session


class KeptMessage(Record):
    """An acknowledged message.

    Args:
        id: identifies it, however often it is stored.
    """

    id: str
    message: Message


class Unheard:
    """A session's unread messages, in the order in which they were sent."""

    def __init__(self, session: Session, store: Ledger) -> None:
        self._said, self._heard, self._store = f"{session.key}/said", f"{session.key}/heard", store

    async def load(self, transcript: Iterable[Message]) -> list[KeptMessage]:
        """Return the messages; those in the transcript were read, even if no process survived to note that."""
        heard = {message.id for message in transcript}
        return [one for one in await self._noted() if one.id not in heard]

    async def take(self, transcript: Sequence[Message]) -> list[KeptMessage]:
        """Return the messages, and note those in the transcript as read; they may be pruned from there later."""
        await self.hear(transcript)
        return await self.load(transcript)

    async def _noted(self) -> list[KeptMessage]:
        """Return the messages that are not noted as read."""
        first = await length(self._store, self._heard)
        found: list[KeptMessage] = []
        while (text := await self._store.load_reply(self._said, first + len(found))) is not None:
            kept = read_kept(f"a message in {self._said}", text, KeptMessage.model_validate_json)
            found.append(kept.model_copy(update={"message": kept.message.model_copy(update={"id": kept.id})}))
        return found

    async def keep(self, messages: Sequence[KeptMessage], transcript: Iterable[Message]) -> dict[str, str | None]:
        """Store messages, each once, except those in the transcript.

        Returns, by id, the messages whose `message_id` belongs to a message that was read, or was sent under another
        id. The value is None, or the reason why such a message is refused.
        """
        heard = list(transcript)
        there = [*heard, *(one.message for one in await self._noted())]
        known, was_heard = {message.id for message in there}, {message.id for message in heard}
        by_sender = {message.message_id: message for message in there if message.message_id is not None}
        number, repeated = await length(self._store, self._said), dict[str, str | None]()
        for one in messages:
            before = by_sender.get(str(one.message.message_id))
            # Sent again to a run that was reset, a message has the id under which the session has read it.
            if before is not None and (before.id != one.id or one.id in was_heard):
                repeated[one.id] = _refusal(one.message, before)
            elif one.id not in known:
                number = await append(self._store, self._said, one.model_dump_json(), number)

        return repeated

    async def hear(self, messages: Iterable[Message]) -> None:
        """Note that these messages were read, up to the first unread one."""
        ids = {message.id for message in messages if message.id is not None}
        first = await length(self._store, self._heard) if ids else 0
        for number, one in enumerate(await self._noted() if ids else (), first):
            if one.id not in ids:
                break
            await self._store.save_reply(self._heard, number, "")


def _refusal(said: Message, before: Message) -> str | None:
    """Return why a message cannot have the id of an earlier one; None if it is the same message."""
    try:
        check_same(said, content_digest(before), before.by)
    except InputError as error:
        return str(error)
    return None
