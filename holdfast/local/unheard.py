"""What a user said to a session that its agent has not heard yet: kept in the store once it was acknowledged.

It outlives the run that it was said to. The next run of the session hears it, before what it was started with.
"""

from collections.abc import Collection, Sequence

from holdfast.messages import Message, Record
from holdfast.stores.kept_values import read_kept
from holdfast.stores.protocol import Ledger, Session


class KeptMessage(Record):
    """A message that was acknowledged.

    Args:
        id: what tells it from all others, however often it is kept.
    """

    id: str
    message: Message


class Unheard:
    """The messages of one session that nobody has heard, in the order in which they were said and will be heard."""

    def __init__(self, session: Session, store: Ledger) -> None:
        self._said, self._heard, self._store = f"{session.key}/said", f"{session.key}/heard", store

    async def load(self) -> list[KeptMessage]:
        """Return them."""
        first = await self._count(self._heard)
        found: list[KeptMessage] = []
        while (text := await self._store.load_reply(self._said, first + len(found))) is not None:
            found.append(read_kept(f"a message in {self._said}", text, KeptMessage.model_validate_json))
        return found

    async def keep(self, messages: Sequence[KeptMessage]) -> None:
        """Keep messages, each once."""
        known = {one.id for one in await self.load()}
        number = await self._count(self._said)
        for one in messages:
            if one.id in known:
                continue
            text = one.model_dump_json()
            while await self._store.save_reply(self._said, number, text) != text:
                number += 1  # another run was faster
            number += 1

    async def hear(self, ids: Collection[str]) -> None:
        """Take note that these were heard, and so all that were said before."""
        unheard = await self.load()
        last = max((place for place, one in enumerate(unheard) if one.id in ids), default=None)
        if last is None:
            return
        first = await self._count(self._heard)
        for number in range(first, first + last + 1):
            await self._store.save_reply(self._heard, number, "")

    async def _count(self, place: str) -> int:
        """Return how many values stand in a list; it takes few looks, however long that is."""
        beyond = 1
        while await self._store.load_reply(place, beyond - 1) is not None:
            beyond *= 2
        there, beyond = beyond // 2, beyond - 1
        while there < beyond:
            middle = (there + beyond) // 2
            if await self._store.load_reply(place, middle) is None:
                beyond = middle
            else:
                there = middle + 1
        return there
