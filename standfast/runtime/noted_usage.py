"""Notes in the store about usage that no message has: of agents that a call runs, and of answers that were cut off."""

import json
import logging
from uuid import uuid4

from standfast.errors import StoreError
from standfast.messages import Usage
from standfast.runtime.repeating import retry_write
from standfast.stores.protocol import AgentStore, Ledger, has_ledger

_LOG = logging.getLogger("standfast")


def called_agents(scope: str, call_id: str) -> str:
    """Return the place of notes about the agents that a call runs; `scope` is the prefix of its turn's keys."""
    return f"{scope}/{call_id}/agents"


def cut_answers(run: str, turn: int) -> str:
    """Return the place of notes about answers of a turn that were cut off."""
    return f"{run}/cut/{turn}"


class UsageNotes:
    """Adds notes at one place, and remembers those that are there."""

    def __init__(self, store: Ledger, place: str) -> None:
        self._store, self._place = store, place
        self._known: dict[int, str] = {}

    async def session(self, session: str) -> bool:
        """Note the session of an agent, and return whether it is new here. All its usage counts."""
        while (note := await self._store.load_reply(self._place, number := len(self._known))) is not None:
            self._known[number] = note
        if session in self._known.values():
            return False
        await self._add(session)
        return True

    async def usage(self, usage: Usage) -> None:
        """Note a usage. A store that refuses the note only makes the count too low."""
        note = json.dumps({"id": uuid4().hex, "usage": usage.plain()})
        try:
            await retry_write(lambda: self._add(note), tries=3)
        except StoreError as error:
            _LOG.warning("Usage is not noted, and may not be counted: %s", error)

    async def _add(self, note: str) -> None:
        while note not in self._known.values():  # others add notes at the same time
            number = len(self._known)
            self._known[number] = await self._store.save_reply(self._place, number, note)


async def noted_usage(store: AgentStore | None, place: str) -> Usage | None:
    """Return the usage that is noted at a place; None if there is none."""
    if store is None or not has_ledger(store):
        return None
    number, total = 0, None
    while (note := await store.load_reply(place, number)) is not None:
        number += 1
        if note.startswith("{"):
            total = Usage.of(json.loads(note)["usage"]) + total
            continue
        session = await store.load_session(note)
        if session is not None and session.usage is not None:
            total = session.usage + total
    return total
