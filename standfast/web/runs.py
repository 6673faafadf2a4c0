"""Collects all known facts about one run from the server, its worker and the store."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.messages import Message
from standfast.runtime.streamed_answers import Heard, load_more
from standfast.runtime.unread_messages import Unheard
from standfast.stores.capabilities import has_ledger, has_partial_answers
from standfast.stores.protocol import (
    AgentStore,
    DurableStore,
    session_key_of,
)
from standfast.temporal import StandfastClient
from standfast.temporal.client.runs import answer, looked_at
from standfast.temporal.client.waiting_items import read_items
from standfast.temporal.wire import names
from standfast.temporal.wire.names import child_id
from standfast.web.people import Person
from standfast.web.progress import Progress, load_progress
from standfast.web.visible_runs import owns

_MESSAGES = 400  # of a transcript, the last
_PATIENCE = timedelta(seconds=2)
_STEPS = 100  # running agents of a pipeline whose waiting items are queried


class Runs:
    """Reads runs; without a store, all data that only a store has is missing."""

    def __init__(self, people: StandfastClient, store: AgentStore | None) -> None:
        self._people, self._store = people, store

    async def seen(self, run: str) -> dict[str, Any]:
        """Return all known facts about a run; for a pipeline's run also the waiting items of its steps' agents."""
        seen = await looked_at(self._people.client, run)
        paths = [path for path in seen.get("state", {}).get("running", ()) if isinstance(path, str)][:_STEPS]
        found = await asyncio.gather(*(self._pending(child_id(run, path)) for path in paths))
        if steps := {path: items for path, items in zip(paths, found, strict=True) if items}:
            seen["steps"] = steps
        return seen

    async def _pending(self, run: str) -> list[dict[str, Any]]:
        with suppress(StandfastError, RPCError, WorkflowQueryFailedError):  # a tool's step has no separate run
            found = read_items(await answer(self._people.client, self._people.run(run), names.PENDING, _PATIENCE))
            return [{**item, "workflow_id": run} for item in found]
        return []

    async def is_session_of(self, person: Person, seen: Mapping[str, Any]) -> bool:
        """Whether a person may read a run's session; anyone can begin a run in it that no worker has refused yet."""
        if self._store is None or "session_id" not in seen or not person.is_bounded:
            return True
        session = await self._store.load_session(session_key_of(seen.get("tenant_id"), seen["session_id"]))
        return session is None or owns(person, session.user_id, session.tenant_id)

    async def messages(self, seen: dict[str, Any], *, most: int = _MESSAGES) -> list[Message]:
        """Return the last messages of a run's session."""
        if self._store is None or "session_id" not in seen:
            return []
        key = session_key_of(seen.get("tenant_id"), seen["session_id"])
        session = await self._store.load_session(key)
        after = 0 if session is None else max(0, session.last_seq - most)
        return await self._store.load_messages(key, after=after)

    async def unheard(self, seen: dict[str, Any], messages: Iterable[Message]) -> list[str]:
        """Return the unread messages: the run itself reports them, and after its end its session has them."""
        if "closed" not in seen or "session_id" not in seen or not has_ledger(self._store):
            return list(seen.get("state", {}).get("unheard", ()))
        session = await self._store.load_session(session_key_of(seen.get("tenant_id"), seen["session_id"]))
        kept = [] if session is None else await Unheard(session, self._store).load(messages)
        return [one.message.content for one in kept]

    async def partial(self, journal_key: str) -> Heard:
        """Return the stored words of a run's model; see `is_said_now`."""
        if not has_partial_answers(self._store):
            return Heard()
        pieces = await load_more(self._store, journal_key, Heard())
        return pieces[-1][1] if pieces else Heard()

    async def progress(self, journal_key: str, seen: dict[str, Any]) -> Progress | None:
        store = self._store
        return await load_progress(cast(DurableStore, store), journal_key, seen) if has_ledger(store) else None


def is_said_now(said: Heard, seen: Mapping[str, Any]) -> bool:
    """Whether a run's model is producing words now; the words of a dead worker stay in the store for a day.

    Args:
        seen: the run, as `Runs.seen` returns it; without a worker no model runs.
    """
    state = seen.get("state", {})
    later = [item["attempt"] for item in seen.get("retries", ()) if item["activity"] == names.CALL_MODEL]
    turn, now = said.latest
    is_calling = state.get("status") == "running" and not state.get("running") and turn > (state.get("turn") or 0)
    return is_calling and not any(not now.endswith(f".{attempt:03}") for attempt in later)
