"""Stores with one fault each in their ledger, as if written for a single user. The suite finds all of them."""

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

from standfast import SessionConflictError
from standfast.stores import Append, AtWork, DecisionRecord, LedgerEntry, RunningCall, Session, SQLiteStore
from standfast.stores.sql.rows import Write, message_rows
from standfast.stores.sqlite.store import append_rows, ledger_entry
from support.faulty_stores import TwoSteps, until


class LooksThenClaims(TwoSteps):
    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        if known := (await self.load_entries(scope, [call_key])).get(call_key):
            return known
        await self.meet(call_key, lambda: self.load_entries(scope, [call_key]))
        await self._do(
            lambda db: (
                db.execute(
                    "INSERT OR REPLACE INTO tool_ledger (run_key, call_key, state, owner, arguments_hash)"
                    " VALUES (?, ?, 'claimed', ?, ?)",
                    (scope, call_key, owner, arguments_hash),
                )
                and None
            )
        )
        return LedgerEntry(state="claimed", owner=owner, arguments_hash=arguments_hash)


class ClaimsWhatIsOld(SQLiteStore):
    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        entry = await super().claim(scope, call_key, owner=owner, arguments_hash=arguments_hash, running=running)
        if entry.claimed_at is not None and time.time() - entry.claimed_at.timestamp() > 600:
            return await self.take_over(scope, call_key, owner=owner)
        return entry


class SettlesInTwoSteps(SQLiteStore):
    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        await asyncio.sleep(0.01)  # so that the settling side looks before the call is claimed
        return await super().claim(scope, call_key, owner=owner, arguments_hash=arguments_hash, running=running)

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        if known := (await self.load_entries(scope, [call_key])).get(call_key):
            return known
        for _ in range(100):  # and writes after it, so that the fault always shows
            if await self.load_entries(scope, [call_key]):
                break
            await asyncio.sleep(0.01)
        await self._do(
            lambda db: (
                db.execute(
                    "INSERT OR REPLACE INTO tool_ledger (run_key, call_key, state) VALUES (?, ?, 'abandoned')",
                    (scope, call_key),
                )
                and None
            )
        )
        return LedgerEntry(state="abandoned")


class SettlesWithoutAFence(SQLiteStore):
    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        return (await self.load_entries(scope, [call_key])).get(call_key, LedgerEntry(state="abandoned"))


class TakesOverWhatHasEnded(SQLiteStore):
    async def take_over(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(
                "UPDATE tool_ledger SET owner = ?, state = 'claimed' WHERE run_key = ? AND call_key = ?",
                (owner, scope, call_key),
            )
            return ledger_entry(db, scope, call_key, self._name)

        return await self._do(work)


class FinishesForAnybody(SQLiteStore):
    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        entry = (await self.load_entries(scope, [call_key]))[call_key]
        return await super().finish(scope, call_key, owner=str(entry.owner), state=state, result=result)


class FinishesInTwoSteps(TwoSteps):
    """One whose first owner looks before anybody takes the call away, and writes when it has ended."""

    async def take_over(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        await self._after_a_look(scope, call_key)
        self.between.append((call_key, owner))
        return await super().take_over(scope, call_key, owner=owner)

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        await self._after_a_look(scope, call_key)
        return await super().abandon(scope, call_key, owner=owner)

    async def _after_a_look(self, scope: str, call_key: str) -> None:
        async def is_over() -> bool:
            return call_key in self.between or await self._owner(scope, call_key) != "me"

        await until(is_over)

    async def _owner(self, scope: str, call_key: str) -> str | None:
        """Return who has a claim; None if the call has ended."""
        entry = (await self.load_entries(scope, [call_key]))[call_key]
        return entry.owner if entry.state == "claimed" else None

    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        entry = (await self.load_entries(scope, [call_key]))[call_key]
        if (entry.state, entry.owner) != ("claimed", owner):
            return (entry.owner, entry.state, entry.result) == (owner, state, result)
        if (call_key, owner) not in self.between:

            async def has_ended() -> bool:
                return await self._owner(scope, call_key) is None

            self.between.append(call_key)
            await until(has_ended)

        def work(db: sqlite3.Connection) -> None:
            values = (state, result, owner, scope, call_key)
            db.execute(
                "UPDATE tool_ledger SET state = ?, result = ?, owner = ? WHERE run_key = ? AND call_key = ?", values
            )
            db.execute("DELETE FROM running_calls WHERE owner = ?", (owner,))

        await self._do(work)
        return True


class AbandonsWhatIsAnothers(SQLiteStore):
    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        entry = (await self.load_entries(scope, [call_key]))[call_key]
        return await super().abandon(scope, call_key, owner=str(entry.owner))


class LeavesRunningCalls(SQLiteStore):
    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        calls = [call for call in await self.running_calls() if call.owner == owner]
        is_done = await super().finish(scope, call_key, owner=owner, state=state, result=result)
        for call in calls:
            await self.begin_call(call)
        return is_done


class EndsAllCallsOfAWorker(SQLiteStore):
    async def end_call(self, owner: str) -> None:
        await self._do(lambda db: db.execute("DELETE FROM running_calls WHERE worker = 'w'").rowcount)


class KeepsTheLastReply(SQLiteStore):
    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        if (known := await self.load_reply(journal_key, turn)) is not None:
            return known
        await self._do(
            lambda db: (
                db.execute("INSERT OR REPLACE INTO model_replies VALUES (?, ?, ?)", (journal_key, turn, reply)).rowcount
            )
        )
        return reply


class AppendsWhoeverReplied(SQLiteStore):
    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        for append in appends:
            await self.append_messages_atomic(
                append.session.id, append.messages, append.session, write_key=append.write_key
            )
        if (await self.load_messages(appends[-1].session.id))[-1].content == appends[-1].messages[-1].content:
            await until(lambda: self.load_reply(journal_key, turn))  # another one's, so that the fault always shows
        return await self.save_reply(journal_key, turn, reply)


class LooksThenRecordsADecision(TwoSteps):
    async def record_decision(self, record: DecisionRecord) -> None:
        async def is_known() -> bool:
            return record.key in [known.key for known in await self.load_decisions(record.journal_key) if known.key]

        if not await is_known():
            if record.key is not None:
                await self.meet(record.journal_key, is_known)
            key = None if record.key is None else f"{record.key}\0{uuid4()}"
            await super().record_decision(record.model_copy(update={"key": key}))

    async def load_decisions(self, journal_key: str) -> list[DecisionRecord]:
        found = await super().load_decisions(journal_key)
        return [one.model_copy(update={"key": one.key and one.key.partition("\0")[0]}) for one in found]


class LooksThenBeginsWork(TwoSteps):
    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        async def is_another_at_work() -> bool:
            return instead_of not in await self.find_work(work.session_id)

        known = await self.find_work(work.session_id)
        if known and known[0] != instead_of:
            return known[0]
        if instead_of is not None:
            await self.meet(work.session_id, is_another_at_work)
        for one in known:
            await self.end_work(one)
        await super().begin_work(work)
        return work


def _is_followed(marks: Sequence[AtWork], session: Session) -> bool:
    return any(session.journal_key and not session.journal_key.startswith(f"{one.journal_key}/") for one in marks)


class LooksWhoIsAtWorkThenAppends(TwoSteps):
    """One whose writers look before a run follows theirs, and write when that run has read."""

    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        async def is_looked_at() -> bool:
            return ("looked", work.session_id) in self.between or instead_of not in await self.find_work(
                work.session_id
            )

        if instead_of is not None:
            self.between.append(("follows", work.session_id))
            await until(is_looked_at)
        return await super().begin_work(work, instead_of=instead_of)

    async def load_session(self, session_id: str) -> Session | None:
        found = await super().load_session(session_id)
        self.between.append(("read", session_id))
        return found

    async def append_messages_atomic(self, session_id: str, messages: Any, session: Session, **known: Any) -> int:
        async def is_read() -> bool:
            if ("follows", session_id) in self.between:
                return ("read", session_id) in self.between
            return _is_followed(await self.find_work(session_id), session)  # by a run of another object

        if _is_followed(await self.find_work(session_id), session):
            raise SessionConflictError("another run is at work")
        self.between.append(("looked", session_id))
        await until(is_read)
        rows = message_rows(messages)
        unknown = session.model_copy(update={"journal_key": None})
        return await self._do(lambda db: append_rows(db, Write(unknown, rows, known["write_key"])))


class LetsEndedRunsAnswer(SQLiteStore):
    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        ours = [replace(one, session=one.session.model_copy(update={"journal_key": None})) for one in appends]
        return await super().append_reply(ours, journal_key=journal_key, turn=turn, reply=reply)


class DropsAllWorkers(SQLiteStore):
    async def drop_worker(self, name: str) -> None:
        await self._do(lambda db: db.execute("DELETE FROM workers").rowcount)
