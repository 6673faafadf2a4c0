"""Stores with one fault each in sessions, holds or objects. The store suite finds all of them."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any
from uuid import uuid4

from standfast import Message, SessionConflictError, StoreError
from standfast.stores import Session, SQLiteStore
from standfast.stores.file_holds import SessionLocks
from standfast.stores.sql.rows import Write, message_rows
from standfast.stores.sqlite.store import append_rows


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    while not await condition():
        await asyncio.sleep(0.001)


class TwoSteps(SQLiteStore):
    """One whose users look, and write when another has been in between, so that the fault shows in every race."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.between = list[Hashable]()  # what this object's users have looked at

    async def meet(self, key: Hashable, is_written: Callable[[], Awaitable[Any]]) -> None:
        """Wait until another user of this object has looked at the same, or anybody has written it."""

        async def is_met() -> bool:
            return self.between.count(key) > 1 or await is_written()

        self.between.append(key)
        await until(is_met)


# --- sessions ---


class AppendsWithoutComparing(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        key = known.get("write_key")
        return await super().append_messages_atomic(session_id, messages, session, write_key=key)


class ComparesThenAppends(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        now = await self.load_session(session_id) or session
        if known.get("expected_seq") != now.last_seq or known.get("expected_version") not in (None, now.version):
            raise SessionConflictError("another run has written")
        return await super().append_messages_atomic(session_id, messages, session)


class IgnoresWriteKeys(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        known.pop("write_key", None)
        return await super().append_messages_atomic(session_id, messages, session, **known)


class LooksForTheKeyThenAppends(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        now = await self.load_session(session_id)
        keys, key = [] if now is None else json.loads(now.state), known["write_key"]
        if now is not None and key in keys:
            return now.last_seq
        session = session.model_copy(update={"state": json.dumps([*keys, key])})
        return await super().append_messages_atomic(session_id, messages, session)


class AppendsOneByOne(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        for message in messages:
            last = await super().append_messages_atomic(session_id, [message], session)
        return last


class AppendsInTwoTransactions(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        await self.save_session(session)
        await self.append_messages(session_id, messages, session)
        return -1


class AcknowledgesBeforeItWrites(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        async def later() -> None:
            await asyncio.sleep(0.2)
            await SQLiteStore.append_messages_atomic(self, session_id, messages, session, **known)

        self._writing = asyncio.create_task(later())
        return known["expected_seq"] + len(messages)


class RefusesWhoIsLate(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        now = await self.load_session(session_id)
        if now is not None and now.updated_at.timestamp() > time.time():
            raise SessionConflictError("another run has written later")
        return await super().append_messages_atomic(session_id, messages, session, **known)


class CutsTexts(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        short = [message.model_copy(update={"content": message.content[:65_535]}) for message in messages]
        return await super().append_messages_atomic(session_id, short, session, **known)


class CutsAtNul(SQLiteStore):
    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        cut = session.model_copy(update={"state": session.state.partition("\0")[0]})
        return await super().append_messages_atomic(session_id, messages, cut, **known)


class PrunesInTwoSteps(SQLiteStore):
    async def prune_messages(self, session_id: str, keep: int) -> None:
        messages = await self.load_messages(session_id)
        kept = messages[-keep:]
        for _ in range(50):  # two writes come in between, except at the end of a race
            if len(await self.load_messages(session_id)) >= len(messages) + 4:
                break
            await asyncio.sleep(0.01)

        def work(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT last_seq FROM agent_sessions WHERE id = ?", (session_id,)).fetchone()
            if row is not None:
                last = row[0] - len(kept)
                db.execute("DELETE FROM agent_messages WHERE session_id = ?", (session_id,))
                db.execute("UPDATE agent_sessions SET last_seq = ? WHERE id = ?", (last, session_id))
                append_rows(db, Write(Session(id=session_id, agent_name="greeter"), message_rows(kept)))

        await self._do(work)


class DeletesOnlyTheSession(SQLiteStore):
    """One whose messages stay, and belong to the next session with that id."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._left = dict[str, list[Message]]()

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        self._left[session_id] = await self.load_messages(session_id)
        await super().delete_session(session_id)

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        return [*self._left.get(session_id, []), *await super().load_messages(session_id, after=after)]


# --- holds ---


class HoldsOfAnObject(SQLiteStore):
    shares_holds = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._locks = SessionLocks(None)


_HELD = dict[str, SessionLocks]()


class HoldsOfAProcess(SQLiteStore):
    shares_holds = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._locks = _HELD.setdefault(self._path, SessionLocks(None))


class Rows(SQLiteStore):
    """One whose holds are rows of a table, with the time at which they end."""

    shares_holds = True
    ends_after = 1e9  # seconds
    asks_for_holder = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._holder = uuid4().hex

    async def hold(self, session_id: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            db.execute("CREATE TABLE IF NOT EXISTS holds (name TEXT PRIMARY KEY, holder TEXT, until REAL)")
            db.execute("DELETE FROM holds WHERE until < ?", (time.time(),))
            values = (session_id, self._holder, time.time() + self.ends_after)
            return db.execute("INSERT INTO holds VALUES (?, ?, ?) ON CONFLICT DO NOTHING", values).rowcount == 1

        return await self._do(work)

    async def let_go(self, session_id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("CREATE TABLE IF NOT EXISTS holds (name TEXT PRIMARY KEY, holder TEXT, until REAL)")
            holder = self._holder if self.asks_for_holder else None
            db.execute("DELETE FROM holds WHERE name = ? AND holder = coalesce(?, holder)", (session_id, holder))

        await self._do(work)


class HoldsThatOutliveProcesses(Rows):
    pass


class HoldsThatAnybodyEnds(Rows):
    asks_for_holder = False


class HoldsByTheHoldersClock(Rows):
    ends_after = 30.0


class HoldsThatAreLost(SQLiteStore):
    """One that continues writing when it has lost its holds."""


# --- objects ---


class IdentityOfAnObject(SQLiteStore):
    async def identity(self) -> str:
        self._made = getattr(self, "_made", uuid4().hex)
        return self._made


class ServesOneLoop(SQLiteStore):
    _loop: asyncio.AbstractEventLoop | None = None

    async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return await super().append_messages_atomic(*args, **options)


class StaysClosed(SQLiteStore):
    _is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        await super().close()

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        if self._is_closed:
            raise StoreError("closed")
        return await super().load_messages(session_id, after=after)


# --- a store that is interrupted ---


class InterruptedStore(SQLiteStore):
    """After `interrupt`, it makes every second write, and acknowledges none of them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._usual, self._unheard = self._do, 0
        self._do = self._do_or_not  # type: ignore[method-assign, assignment]

    def _do_or_not(self, work: Callable[[sqlite3.Connection], Any], *, writes: bool = True) -> Awaitable[Any]:
        if not writes or not self._unheard:
            return self._usual(work, writes=writes)
        self._unheard -= 1
        return self._do_unheard(work, is_done=self._unheard % 2 == 0)

    async def _do_unheard(self, work: Callable[[sqlite3.Connection], Any], *, is_done: bool) -> None:
        if is_done:
            await self._usual(work)
        raise StoreError("the connection was lost")


async def interrupt(store: SQLiteStore) -> None:
    if isinstance(store, InterruptedStore):
        store._unheard = 11
    if isinstance(store, HoldsThatAreLost):
        for name in list(store._locks._held):
            store._locks.release(name)
