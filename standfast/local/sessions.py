"""Keeps the record of a run: its session, and which part of it is already written."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from standfast.agent_loop import repair_transcript
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import Question
from standfast.errors import (
    InputError,
    MemoryStoreNotDurableError,
    SessionConflictError,
    SessionNotFoundError,
    StoreError,
)
from standfast.messages import Message, usage_of
from standfast.runtime.cancellation import to_the_end, uninterrupted
from standfast.runtime.inputs import check_access
from standfast.runtime.message_ids import prune_session
from standfast.runtime.session_marks import check_not_at_work, hold
from standfast.runtime.unread_messages import Unheard
from standfast.stores.capabilities import has_ledger
from standfast.stores.protocol import (
    AgentStore,
    Session,
    check_session_id,
    check_tenant_id,
    session_id_of,
    session_key_of,
)

_LOG = logging.getLogger("standfast")
_RETRY_DELAYS = (0.05, 0.2, 1.0)  # seconds; a locked database has waited for its own timeout each time


class Log:
    """A run's session: its contents, and the writes to it.

    A durable store is written at once. A memory store gets everything at the end. Without a store, nothing is written.
    """

    def __init__(
        self,
        store: AgentStore | None,
        session: Session,
        messages: list[Message],
        *,
        is_new: bool,
        is_pruned: bool = False,
    ) -> None:
        if session.usage is None and messages:  # written by a version that did not track usage
            session = session.model_copy(update={"usage": usage_of(messages)})
        self.session = session
        self.messages = messages
        self.is_new, self.is_pruned = is_new, is_pruned
        self.last_seq = session.last_seq
        self.key = session.key
        self._version = session.version
        self._store = store
        self._unwritten: list[Message] = []
        self._run = uuid4().hex[:16]
        self._writes = 0

    @property
    def has_written(self) -> bool:
        return self._writes > 0

    @property
    def is_stored(self) -> bool:
        """Whether the session exists. A run whose first model call failed has not written one."""
        return not self.is_new or self.has_written

    @property
    def unheard(self) -> Unheard | None:
        """The session's messages that the agent has not read; None if there can be none."""
        return Unheard(self.session, self._store) if has_ledger(self._store) and not self.is_new else None

    @property
    def session_id(self) -> str | None:
        return None if self._store is None else session_id_of(self.session.id)

    async def write(self, messages: Sequence[Message], state: str, questions: tuple[Question, ...] = ()) -> None:
        """Record messages together with the agent's state and the open questions, all or nothing."""
        session, usage = self.session, self.session.used_by(messages)
        if (state, questions, None, usage) != (
            session.state,
            session.questions or (),
            session.journal_key,
            session.usage,
        ):
            ours = {"state": state, "questions": questions or None, "workflow_id": None, "journal_key": None}
            session = session.model_copy(update={**ours, "usage": usage})
        self._writes += 1
        if self._store is None or not self._store.durable:
            self._unwritten.extend(messages)
            self.last_seq += len(messages)
            self.session = session
            return
        try:
            self.last_seq = await self._append(self._store, session, messages, _RETRY_DELAYS)
        except asyncio.CancelledError:
            # The write may or may not have landed. Repeating it is harmless and settles that. Only then may the run
            # end.
            try:
                self.last_seq = await to_the_end(partial(self._append, self._store, session, messages, ()))
                self._version, self.session = self._version + 1, session
            except Exception as error:  # it must not replace the cancel
                _LOG.warning("Session %s: a cancelled run could not write: %s", session.id, error)
            raise
        self._version, self.session = self._version + 1, session

    async def _append(
        self, store: AgentStore, session: Session, messages: Sequence[Message], delays: tuple[float, ...]
    ) -> int:
        """Write, and retry for a while: these may be the results of effects that have happened."""
        append = partial(
            store.append_messages_atomic,
            session.id,
            messages,
            session,
            write_key=f"{self._run}.{self._writes}",
            expected_seq=self.last_seq,
            expected_version=self._version,
        )
        for delay in delays:
            try:
                return await append()
            except StoreError:
                await asyncio.sleep(delay)
        return await append()

    async def flush(self) -> None:
        """Write everything that a memory store does not have yet."""
        if self._store is not None and not self._store.durable and self.has_written:  # perhaps only questions
            await self._store.save_session(self.session)
            await self._store.append_messages(self.session.id, self._unwritten, self.session)
            self._unwritten = []

    async def prune(self, agent: Agent, stored: Sequence[Message], keep: int) -> None:
        """Prune the session when its run has ended; see `prune_session`."""
        if self._store is not None:
            await prune_session(self._store, agent, self.session, stored, keep)


@asynccontextmanager
async def open_log(
    store: AgentStore | None,
    agent: Agent,
    session_id: str | None,
    *,
    create: bool,
    who: AgentContext,
) -> AsyncIterator[Log]:
    """Open a session for one run, which then holds it: no other run may start on it until this run has ended.

    Raises:
        InputError: a malformed session id, or another agent's session.
        SessionNotFoundError: `create` is False and the session does not exist.
        SessionAccessDeniedError: it belongs to another user or tenant.
        SessionConflictError: another run holds it.
        MemoryStoreNotDurableError: a memory store does not have the session and could not keep it.
    """
    user_id, tenant_id = who.user_id, who.tenant_id
    if session_id is not None:
        check_session_id(session_id)
        if store is None:
            raise InputError(f"session_id={session_id!r} needs a store to find the session in: pass store=")
    new = Session(
        id=session_key_of(check_tenant_id(tenant_id), session_id or f"sess_{uuid4()}"),
        agent_name=agent.name,
        user_id=user_id,
        tenant_id=tenant_id,
        created_at=datetime.now(UTC),
    )
    if store is None:
        yield Log(None, new, [], is_new=True)
        return
    _check_store(store)
    if not await hold(store, new.id):
        held = await store.load_session(new.id)
        if held is not None:
            check_access(held, agent, user_id, tenant_id)  # a stranger must learn nothing, not even that the run exists
        raise SessionConflictError(
            f"Session {session_id_of(new.id)} has a run in flight; wait for it to end, then run again"
        )
    try:
        session = await store.load_session(new.id) if session_id else None
        await _check_free(store, new, agent, session)
        if session is None:
            if session_id and not store.durable:
                raise MemoryStoreNotDurableError(f"Session {session_id} is unknown to this memory store")
            if session_id and not create:
                raise SessionNotFoundError(session_id)
            yield Log(store, new, [], is_new=True)
            return
        messages = await store.load_messages(session.id)
        is_pruned = session.last_seq > len(messages)
        yield Log(store, session, repair_transcript(messages), is_new=False, is_pruned=is_pruned)
    finally:
        await uninterrupted(partial(store.let_go, new.id))


async def _check_free(store: AgentStore, new: Session, agent: Agent, session: Session | None) -> None:
    """Refuse a session that belongs to another user, or that a Temporal run is at work on."""
    if session is not None:
        check_access(session, agent, new.user_id, new.tenant_id)
    await check_not_at_work(store, new.id)


def _check_store(store: object) -> None:
    for needed in ("durable", "hold", "let_go", "append_messages_atomic"):
        if not hasattr(store, needed):
            raise InputError(f"store must be a store, such as sqlite_store('a.db'); {store!r:.80} has no {needed!r}")
