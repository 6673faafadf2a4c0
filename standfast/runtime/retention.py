"""Deletes a session for a person, and by age a store's records of runs that can neither continue nor come back.

Nothing else is deleted, however old it is: the records of a Temporal run stay as long as Temporal knows the run. The
calls of a session that stays are kept as long as the transcript does not answer them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol
from uuid import uuid4

from standfast.errors import SessionConflictError, SessionNotFoundError
from standfast.runtime.session_states import check_not_at_work, hold
from standfast.runtime.tasks import uninterrupted
from standfast.stores.deletion import (
    Deletion,
    Dropped,
    NotedRun,
    is_temporal_run,
    made_at,
    name_of,
    next_after,
    session_of,
)
from standfast.stores.protocol import (
    ActOutcome,
    AgentStore,
    DecisionRecord,
    Ledger,
    Session,
    has_deletion,
    has_ledger,
    has_standing_approvals,
    session_id_of,
)
from standfast.stores.workers import Workers

IsForgotten = Callable[[str, NotedRun | None], Awaitable[bool]]


async def delete_session(
    store: AgentStore, session_id: str, *, keep_decisions: bool = False, by: str | None = None
) -> Session:
    """Delete a session with all stored data of its runs, and return it.

    Args:
        session_id: as `session_key_of` returns it.
        keep_decisions: keeps who decided what and when; see `Deletion.delete_session`.
        by: the person who deletes it; the audit trail records the act before and after.

    Raises:
        SessionNotFoundError: there is none.
        SessionConflictError: a run is working on it.
    """
    if not await hold(store, session_id):
        raise SessionConflictError(
            f"Session {session_id_of(session_id)} has a run in flight; wait for it to end, then delete it"
        )
    try:
        session = await store.load_session(session_id)
        if session is None:
            raise SessionNotFoundError(session_id_of(session_id))
        await check_not_at_work(store, session_id)
        act = uuid4().hex
        await _record(store, session, "intended", act, by)
        if has_deletion(store):
            await store.delete_session(session_id, keep_decisions=keep_decisions)
        else:
            await store.delete_session(session_id)
        await _record(store, session, "done", act, by)
        return session
    finally:
        await uninterrupted(partial(store.let_go, session_id))


async def _record(store: AgentStore, session: Session, outcome: ActOutcome, act: str, by: str | None) -> None:
    if not has_ledger(store):
        return
    run = str(session.journal_key or "").rpartition("/")[0]
    await store.record_decision(
        DecisionRecord(
            journal_key=run or f"{session.agent_name}/{session.id}",  # the place of its other decisions
            gate="",
            at=datetime.now(UTC),
            decision="delete",
            by=by,
            key=act if outcome == "intended" else None,
            act_id=act,
            outcome=outcome,
        )
    )


"""Tells whether Temporal has deleted a run, by its journal key and its note; False if that is unknown."""


class PrunedStore(Deletion, AgentStore, Ledger, Workers, Protocol):
    """The stores that can be pruned."""


async def nobody_knows(name: str, noted: NotedRun | None) -> bool:
    """Report for each Temporal run that it may come back."""
    return False


async def continued_runs(store: PrunedStore) -> dict[str, set[str]]:
    """Return the runs of versions that did not note their runs, by the journal key of the runs that they continue."""
    found: dict[str, set[str]] = {}
    after = ""
    while keys := await store.list_records(after):
        for key in keys:
            here = key.removesuffix("/run")
            if is_temporal_run(here) and here != key and (run := await store.load_reply(key, 0)) is not None:
                found.setdefault(run, set()).add(here)
        after = keys[-1]
    return found


@dataclass(slots=True)
class Pruning:
    """Deletes a store's records that are older than a given time.

    Args:
        is_older_known: whether `is_forgotten` has been asked about the runs of versions that did not note them, so that
            sessions from that time have no others.
        decisions: also deletes decisions.
        pause: seconds after each checked name.
        dropped: the deleted records, or the records to delete.
        living: names that are kept since their runs may continue or come back.
    """

    store: PrunedStore
    before: datetime
    is_forgotten: IsForgotten
    is_older_known: bool = False
    decisions: bool = False
    dry_run: bool = False
    pause: float = 0.0
    dropped: Dropped = field(default_factory=Dropped)
    sessions: int = 0
    living: int = 0
    _with_sessions: set[str] = field(default_factory=set)  # names of deleted sessions, and of their runs

    async def names(self) -> AsyncIterator[str]:
        """Yield the names that have records."""
        after = ""
        while keys := await self.store.list_records(after):
            for name in dict.fromkeys(map(name_of, keys)):
                if name is not None and name not in self._with_sessions:
                    yield name
                    await asyncio.sleep(self.pause)
            last = name_of(keys[-1])
            after = keys[-1] if last is None else max(keys[-1], next_after(last))

    async def prune(self) -> None:
        """Delete the records of runs, and then the calls of sessions."""
        sessions = []
        async for name in self.names():
            if is_temporal_run(name):
                await self._prune_run(name)
            elif session_of(name) is None:
                await self._prune_local_run(name)
            else:
                sessions.append(name)
        if self.decisions and has_standing_approvals(self.store):
            ended = await self.store.forget_standing_approvals(self.before, dry_run=self.dry_run)
            self.dropped += Dropped(standing_approvals=ended)
        for name in sessions:  # now the runs of older versions are noted, if they were asked about
            await self._prune_calls(name)
            await asyncio.sleep(self.pause)

    async def prune_sessions(self) -> None:
        """Delete sessions without recent writes, with everything that belongs to them; before `prune`."""
        for session in await self.store.list_sessions():
            if session.updated_at is not None and session.updated_at < self.before:
                await self._prune_session(session)

    async def _drop(self, name: str, before: datetime, below: int | None = None) -> None:
        self.dropped += await self.store.drop_records(
            name, before=before, below=below, decisions=self.decisions, dry_run=self.dry_run
        )

    async def _prune_run(self, name: str) -> None:
        noted = next(iter(await self.store.find_runs([name])), None)
        if noted is not None and noted.noted_at is not None and noted.noted_at >= self.before:
            return
        if await self.is_forgotten(name, noted):
            await self._drop(name, self.before)
        else:
            self.living += 1

    async def _prune_local_run(self, name: str) -> None:
        async with self._held(name) as is_free:
            if is_free:
                await self._drop(name, self.before)

    async def _prune_calls(self, name: str) -> None:
        session_id = str(session_of(name))
        if made_at(name) >= self.before:
            return
        if not await self._is_at_rest(session_id, made_at(name)):
            self.living += 1
            return
        async with self._held(session_id) as is_free:
            if not is_free:
                return
            session = await self.store.load_session(session_id)
            if session is None or session.key != name:
                await self._drop(name, self.before)
            elif below := await self._last_answer(session):
                await self._drop(name, self.before, below)

    async def _prune_session(self, session: Session) -> None:
        last = str(session.journal_key or "").rpartition("/")[0]  # it may no longer be noted
        is_over = not last or await self.store.find_runs([last]) or await self.is_forgotten(last, None)
        if not is_over or not await self._is_at_rest(session.id, session.created_at):
            self.living += 1
            return
        async with self._held(session.id) as is_free:
            if not is_free:
                return
            runs = await self.store.find_runs(session_id=session.id)
            messages = await self.store.load_messages(session.id)
            self.sessions += 1
            self.dropped += Dropped(bytes=sum(len(message.content.encode()) for message in messages))
            if not self.dry_run:
                await self.store.delete_session(session.id, keep_decisions=not self.decisions)
            # No returning run needs protection from repeated effects.
            for name in filter(None, (session.key, last, *(run.journal_key for run in runs))):
                self._with_sessions.add(name)
                await self._drop(name, datetime.now(UTC) + timedelta(days=1))

    async def _is_at_rest(self, session_id: str, made: datetime | None) -> bool:
        """Whether no Temporal run is working on a session, or can come back to it."""
        if not self.is_older_known and (made is None or made < (await self.store.noted()).since):
            return False
        for run in await self.store.find_runs(session_id=session_id):
            if not await self.is_forgotten(run.journal_key, run):
                return False
        return all(work.ended_at is not None for work in await self.store.find_work(session_id))

    async def _last_answer(self, session: Session) -> int:
        """Return the number of a model's last message: all earlier calls have their results. 0 if there is none.

        Calls of the last one may still be open, and are settled by the ledger.
        """
        messages = await self.store.load_messages(session.id)
        after = next((place for place, one in enumerate(reversed(messages)) if one.role == "assistant"), None)
        return 0 if after is None else session.last_seq - after

    @asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[bool]:
        """Hold a session or a run, if no process has it."""
        if not await hold(self.store, name):
            self.living += 1
            yield False
            return
        try:
            yield True
        finally:
            await uninterrupted(partial(self.store.let_go, name))
