"""A store in memory, for tests and for chats that may be forgotten."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from standfast.errors import MemoryStoreNotDurableError
from standfast.messages import Message
from standfast.stores.locks import SessionLocks
from standfast.stores.protocol import Session, first_kept_index
from standfast.stores.standing_in_memory import StandingInMemory
from standfast.stores.waits_in_memory import WaitsInMemory


class MemoryStore(WaitsInMemory, StandingInMemory):
    """A store in a dict. It refuses every operation that only a durable store can guarantee."""

    durable = False
    shares_holds = False

    def __init__(self) -> None:
        WaitsInMemory.__init__(self)
        StandingInMemory.__init__(self)
        self._identity = uuid4().hex
        self._locks = SessionLocks(None)
        self._sessions: dict[str, Session] = {}
        self._messages: dict[str, list[Message]] = {}
        self._replies: dict[tuple[str, int], str] = {}

    async def identity(self) -> str:
        return self._identity

    async def hold(self, session_id: str) -> bool:
        return self._locks.take(session_id)

    async def let_go(self, session_id: str) -> None:
        self._locks.release(session_id)

    async def load_session(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    async def save_session(self, session: Session) -> None:
        known, now = self._sessions.get(session.id), datetime.now(UTC)
        set_by_store: dict[str, Any] = {
            "created_at": session.created_at or now,
            "updated_at": now,
            "last_seq": 0,
            "version": 1,
        }
        if known is not None:
            set_by_store |= {
                "agent_name": known.agent_name,
                "created_at": known.created_at,
                "last_seq": known.last_seq,
                "version": known.version + 1,
            }
        # Popped first, so that the order of the dict is the order of updates.
        self._sessions.pop(session.id, None)
        self._sessions[session.id] = session.model_copy(update=set_by_store)

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        messages, session = self._messages.get(session_id, []), self._sessions.get(session_id)
        first = (len(messages) if session is None else session.last_seq) - len(messages)
        return [message.model_copy(deep=True) for message in messages[max(0, after - first) :]]

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        stored = [message.model_copy(deep=True) for message in messages if message.role != "system"]
        self._messages.setdefault(session_id, []).extend(stored)
        if known := self._sessions.get(session_id):
            self._sessions[session_id] = known.model_copy(
                update={"last_seq": known.last_seq + len(stored), "version": known.version + 1}
            )

    async def append_messages_atomic(
        self,
        session_id: str,
        messages: Sequence[Message],
        session: Session,
        *,
        write_key: str | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> int:
        raise MemoryStoreNotDurableError(f"Session {session_id} needs an atomic write")

    async def prune_messages(self, session_id: str, keep: int) -> None:
        messages = self._messages.get(session_id, [])
        del messages[: first_kept_index([message.role for message in messages], keep)]

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        return self._replies.setdefault((journal_key, turn), reply)

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        return self._replies.get((journal_key, turn))

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            kept = self._replies.items()
            self._replies = {place: one for place, one in kept if not place[0].startswith(f"{session.key}/")}
        self._messages.pop(session_id, None)
        self._boards = {place: kept for place, kept in self._boards.items() if kept[0].session != session_id}
        self.forget_of_session(session_id)

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        found = [
            session
            for session in reversed(self._sessions.values())
            if agent_name in (None, session.agent_name) and user_id in (None, session.user_id)
        ]
        return found[:limit]


def memory_store() -> MemoryStore:
    """Return a store whose data are lost with its process."""
    return MemoryStore()
