"""A store in memory, for tests and for chats that may be forgotten: sessions, the board and standing approvals."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from standfast.agent_loop import StandingApproval
from standfast.errors import MemoryStoreNotDurableError
from standfast.messages import Message, person
from standfast.stores.file_holds import SessionLocks
from standfast.stores.protocol import DecisionRecord, Session, StandingFilter, first_kept_index, is_wanted
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace

_NEVER = datetime.max.replace(tzinfo=UTC)


class WaitsInMemory:
    """The `Waits` of a memory store."""

    def __init__(self) -> None:
        self._boards: dict[tuple[str, str], tuple[Board, dict[str, Wait]]] = {}

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        place = (board.namespace, board.workflow_id)
        known, items = self._boards.get(place, (board, {}))
        if known.at > board.at:
            return []
        there = {key: wait for key, wait in items.items() if key in {*keep, *(one.key for one in put)}}
        self._boards[place] = board, {**{wait.key: wait for wait in put}, **there}
        return [key for key in keep if key not in items]

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        found = sorted(self._wanted(wanted), key=lambda one: _order(one.place))
        return [one for one in found if after is None or _order(one.place) > _order(after)][:limit]

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        counts: dict[str, int] = {}
        for one in self._wanted(wanted):
            counts[one.wait.kind] = counts.get(one.wait.kind, 0) + 1
        return counts

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        kept = self._boards.get((namespace, workflow_id))
        return None if kept is None else kept[0]

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        found = [
            (board, len(items))
            for (space, run), (board, items) in self._boards.items()
            if space == namespace and run > after
        ]
        return sorted(found, key=lambda one: one[0].workflow_id)[:limit]

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        self._boards = {
            place: (board, items)
            for place, (board, items) in self._boards.items()
            if items or place[0] != namespace or board.at >= before
        }

    def _wanted(self, wanted: WaitFilter) -> list[ShownWait]:
        shown = [ShownWait(board=board, wait=wait) for board, items in self._boards.values() for wait in items.values()]
        return [one for one in shown if _is_wanted(wanted, one.board, one.wait)]


def _order(place: WaitPlace) -> tuple[datetime, datetime, str, str]:
    return place.deadline or _NEVER, place.since, place.workflow_id, place.key


def _is_wanted(wanted: WaitFilter, board: Board, wait: Wait) -> bool:
    return (
        board.namespace == wanted.namespace
        and wanted.kind in (None, wait.kind)
        and wanted.agent in (None, board.agent)
        and wanted.tenant_id in (None, board.tenant_id)
        and (wanted.tenants is None or board.tenant_id in wanted.tenants)
        and (wanted.owner is None or (board.user_id is not None and person(board.user_id) == wanted.owner))
        and wanted.workflow_id in (None, board.workflow_id)
        and (wanted.group is None or wanted.group in wait.groups)
        and (wanted.before is None or wait.since <= wanted.before)
        and all(word in wait.words for word in wanted.words)
        and (wanted.person is None or wait.is_for(wanted.person, wanted.person_kinds) is not wanted.others)
    )


class StandingInMemory:
    """The `StandingApprovals` of a memory store. It does not have an audit trail, so the number of uses is unknown."""

    def __init__(self) -> None:
        self._standing: dict[str, StandingApproval] = {}

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        self._standing.setdefault(approval.id, approval)

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        found = [
            one
            for one in self._standing.values()
            if is_wanted(wanted, one, [person(one.user_id), person(one.given_by)])
        ]
        found.sort(key=lambda one: one.id)
        return sorted(found, key=lambda one: one.created_at, reverse=True)[:limit]

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        one = self._standing.get(approval_id)
        if one is not None and one.revoked_at is None:
            self._standing[approval_id] = one.model_copy(update={"revoked_at": at, "revoked_by": by})

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        over = [one.id for one in self._standing.values() if one.expires_at < before]
        for one in () if dry_run else over:
            del self._standing[one]
        return len(over)

    def forget_of_session(self, session_id: str) -> None:
        """Delete the approvals for a deleted session. Approvals for all runs of its agent stay."""
        kept = self._standing.items()
        self._standing = {key: one for key, one in kept if one.session != session_id or not one.scope_key}


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
