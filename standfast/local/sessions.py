"""Keeps the record of a run: its session, its messages, and which part of them is already written."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from standfast.agent_loop import CallModel, LoopState, answer_message, in_call_order, repair_transcript, unanswered
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import Checkpoint, Question, signed
from standfast.errors import (
    InputError,
    MemoryStoreNotDurableError,
    SessionConflictError,
    SessionNotFoundError,
    StoreError,
)
from standfast.events import Event, MessageAdded
from standfast.local.model_calls import ModelCalls
from standfast.messages import LLMResponse, Message, Usage, usage_of
from standfast.runtime.dependencies import heard_in
from standfast.runtime.inputs import check_access
from standfast.runtime.message_ids import Unheard, prune_session
from standfast.runtime.session_states import check_not_at_work, hold
from standfast.runtime.tasks import to_the_end, uninterrupted
from standfast.stores.protocol import (
    AgentStore,
    Session,
    check_session_id,
    check_tenant_id,
    has_ledger,
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

    async def count(self, used: Usage) -> None:
        """Add usage that no message has, if the session exists."""
        if self.is_stored:
            total = used + self.session.usage
            self.session = self.session.model_copy(update={"usage": total})
            await self.write([], self.session.state, self.session.questions or ())

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


class RunTranscript:
    """The messages of a run, shown to its model and written to its session.

    Args:
        log: the session's log.
        model: sees every message that is added.
        agent: the agent that runs; checkpoints are signed for it.
        context: has the agent's state, which is written with every message.
        key: signs checkpoints; None if they are not signed.
    """

    def __init__(
        self,
        log: Log,
        model: ModelCalls,
        agent: Agent,
        context: AgentContext,
        emit: Callable[[Event], None] | None,
        key: bytes | None,
    ) -> None:
        self.log = log
        self.messages: list[Message] = []
        self.unwritten: list[Message] = []
        self.call_ids: set[str] = set()
        self.said_in: str | None = None  # of the run, as JSON
        self._model = model
        self._agent, self._context = agent, context
        self._emit = emit
        self._key = key

    def state(self) -> str:
        """Return the agent's state as text."""
        return self._agent.write_state(self._context.state)

    def begin(self, messages: Sequence[Message], unwritten: Sequence[Message]) -> None:
        """Start with these messages. The last ones, `unwritten`, are not in the session yet."""
        self.messages, self.unwritten = list(messages), list(unwritten)
        self.call_ids = {call.id for message in messages for call in message.tool_calls or ()}

    def add(self, added: Sequence[Message]) -> None:
        messages = heard_in(self.said_in, added)
        self.messages.extend(messages)
        self.unwritten.extend(messages)
        self.call_ids.update(call.id for message in messages for call in message.tool_calls or ())
        self._model.add(messages)

    def answer(self, response: LLMResponse, action: CallModel, tools: Set[str]) -> Message:
        """Return the model's answer as the next message; `tools` are the names that exist."""
        return answer_message(
            response,
            turn=self.log.last_seq + len(self.unwritten),  # so that ids do not repeat after pruning
            taken=self.call_ids,
            tools=tools,
            limit=self._agent.loop.max_message_bytes,
            model=action.model,
            agent=action.agent or None,
        )

    async def take_answer(
        self, question: Question, answer: str, by: str | None, questions: tuple[Question, ...]
    ) -> None:
        """Write a person's answer, and the questions that are still open."""
        if question.tool_call_id is None:
            result = Message(role="user", content=answer, by=by)
        else:
            names = {call.id: call.name for call in unanswered(self.messages)}
            result = Message(
                role="tool",
                content=answer,
                tool_call_id=question.tool_call_id,
                tool_name=names.get(question.tool_call_id),
                status="completed",
                usage=question.usage,
                by=by,
            )
        self.add([result])
        await self.write(questions)
        # An answer is written when it arrives, which may be after the results of later calls.
        self.put_in_order()

    def put_in_order(self) -> None:
        """Move late results to their calls."""
        self.messages = in_call_order(self.messages)
        self._model.put_in_order()

    async def write(self, questions: tuple[Question, ...] = ()) -> None:
        """Write new messages, the agent's state and open questions, all or nothing."""
        messages, self.unwritten, before = self.unwritten, [], self.log.last_seq
        try:
            await self.log.write(messages, self.state(), questions)
        except BaseException:
            if self.log.last_seq == before:  # a cancelled write may still have landed
                self.unwritten = messages + self.unwritten
            raise
        if self._emit is not None:
            for index, message in enumerate(messages, len(self.messages) - len(messages)):
                self._emit(MessageAdded(index, message))

    async def hear(self, state: LoopState) -> LoopState:
        """Add the messages that were sent to the session's earlier Temporal runs and that no run has read."""
        unheard = self.log.unheard if state.is_at_rest else None
        if unheard is None or not (kept := await unheard.take(self.messages)):
            return state
        self.add([one.message for one in kept])
        await self.write()
        await unheard.hear([one.message for one in kept])
        return state.with_user_message()

    async def write_rest(self, state: LoopState) -> None:
        """Write new messages, if there are any."""
        if self.unwritten:
            await self.write(state.kept_questions)

    def checkpoint(self, state: LoopState) -> Checkpoint:
        """Return the run as plain JSON, without questions that have been answered since `state`."""
        waiting = {None, *(call.id for call in unanswered(self.messages))}
        questions = tuple(one for one in state.kept_questions if one.is_held or one.tool_call_id in waiting)
        asked = [one for one in questions if one.is_open]
        made = Checkpoint(
            messages=tuple(self.messages),
            iterations=state.iterations,
            usage=state.usage or Usage(),
            pending_tool_use_id=asked[0].tool_call_id if asked else None,
            questions=questions or None,
            session_id=self.log.session_id if self.log.is_stored else None,
        )
        return signed(made, self._agent.name, self._key)
