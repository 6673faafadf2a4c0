"""Recognizes a message that is sent again with the same id, so that it counts once, and finds its answer.

The transcript is the record; the journal has the endings of runs that reached a limit. Before pruning cuts a message
with an id, the id moves to the journal, with the answer.

A session's messages that its agent has not read yet are stored from the moment they are acknowledged. They outlive the
run that they were sent to: the session's next run reads them before its own message.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.agent_loop import Finish, LoopState, last_answer, next_action
from standfast.agents import Agent
from standfast.checkpoints import EndStatus
from standfast.errors import InputError, StoreError
from standfast.messages import Message, Record, check_same, content_digest
from standfast.runtime.session_states import begin_state
from standfast.runtime.users_functions import output_problem
from standfast.stores.kept_values import append, length, read_kept
from standfast.stores.protocol import AgentStore, Journal, Ledger, Session, first_kept_index, has_journal

_LOG = logging.getLogger("standfast")
# Sent again, a message of such a run gets the same ending. A run that failed or was cancelled continues instead.
_LIMITS: frozenset[EndStatus] = frozenset(
    ("max-iterations", "stuck", "token-budget-exhausted", "cost-budget-exhausted", "diminishing-returns")
)
_CUT, _ENDED = 0, 1  # the journal's records of a message


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """The final answer to a message, or the ending of the run that read it, if at a limit.

    Args:
        finish, ending: the ending of the run that gave it; see `LoopState.judged`.
        problem: why the answer does not fit the agent's output; None if it does.
    """

    message: Message
    state: LoopState[Any, Any]
    finish: Finish
    ending: Finish
    problem: str | None


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that its session has already read; `answer` is None if it is not answered yet."""

    answer: MessageAnswer | None


class _CutMessage(Record):
    """A message that was pruned; `answer` is None if it had none."""

    id: str
    digest: str
    by: str | None = None
    answer: Message | None = None


class _Ending(Record):
    """The ending of a run that read a message, if at a limit; `response` is the text of the model's last answer."""

    id: str
    status: EndStatus
    response: str


def check_can_hear_once(store: AgentStore | None, session_id: str | None) -> None:
    """Refuse a message with an id if the same message, sent again, could not be recognized.

    Raises:
        InputError: the store does not keep ids, or each attempt would create a new session.
    """
    if store is None:
        return
    if not has_journal(store):
        raise InputError(f"message_id= needs a store with load_reply and save_reply, which {store!r:.80} lacks")
    if session_id is None and store.durable:  # a memory store names its sessions itself
        raise InputError("message_id= needs session_id=: without it, each run begins a new session")


async def find_heard(
    said: Message,
    transcript: Sequence[Message],
    agent: Agent,
    session: Session,
    store: AgentStore | None,
    *,
    is_pruned: bool,
) -> Heard | None:
    """Return the answer to the message with this id in a session; None if the session has not read it.

    Args:
        is_pruned: whether the transcript has lost earlier messages.

    Raises:
        InputError: the id belongs to another message.
    """
    place = next((place for place, one in enumerate(transcript) if one.message_id == said.message_id), None)
    if place is not None:
        check_same(said, content_digest(transcript[place]), transcript[place].by)
        ending = await _find_ending(agent, said, session, store)
        return Heard(ending or await _answer_after(agent, session, transcript, place))
    cut = await _find_cut(said, session, store) if is_pruned and has_journal(store) else None
    if cut is None:
        return None
    if (ending := await _find_ending(agent, said, session, store)) is not None:
        return Heard(ending)
    if cut.answer is not None:
        return Heard(await _read_answer(agent, [said, cut.answer]))
    return Heard(await _answer_after(agent, session, transcript, -1))


async def check_not_another(said: Message, session_id: str, store: AgentStore) -> None:
    """Refuse a message whose id belongs to another message of its session, before a run is started for it.

    Args:
        session_id: as `session_key_of` returns it.

    Raises:
        InputError: the id belongs to another message.
    """
    session = await store.load_session(session_id)
    messages = [] if session is None else await store.load_messages(session_id)
    for one in [one for one in messages if one.message_id == said.message_id]:
        check_same(said, content_digest(one), one.by)
        return
    if session is not None and session.last_seq > len(messages) and has_journal(store):
        await was_pruned(said, session, store)


async def was_pruned(said: Message, session: Session, store: Journal) -> bool:
    """Whether a session has read a message with this id, which was pruned.

    Raises:
        InputError: the id belongs to another message.
    """
    return await _find_cut(said, session, store) is not None


async def _find_cut(said: Message, session: Session, store: Journal) -> _CutMessage | None:
    text = await store.load_reply(_place(session, str(said.message_id)), _CUT)
    if text is None:
        return None
    cut = read_kept(f"message {said.message_id} of session {session.id}", text, _CutMessage.model_validate_json)
    check_same(said, cut.digest, cut.by)
    return cut


def ends_at_limit(status: str) -> bool:
    """Whether a run with this status ended at a limit, without a final answer."""
    return status in _LIMITS


async def keep_ending(store: object, session: Session, transcript: Sequence[Message], status: EndStatus) -> None:
    """Store the ending of a run at a limit, under the id of each message that it read, as the answer to repeats.

    Args:
        transcript: all messages of the session at the end of the run.
    """
    last = last_answer(transcript)
    if not ends_at_limit(status) or last is None or not has_journal(store):
        return
    response = "" if status == "stuck" else transcript[last].content
    for one in reversed(transcript[:last]):
        if one.role == "assistant" and not one.tool_calls:
            return  # earlier messages are answered
        if one.role == "user" and one.message_id is not None:
            ending = _Ending(id=one.message_id, status=status, response=response)
            await store.save_reply(_place(session, one.message_id), _ENDED, ending.model_dump_json())


async def _find_ending(agent: Agent, said: Message, session: Session, store: AgentStore | None) -> MessageAnswer | None:
    """Return the ending of the run that read a message, if at a limit."""
    text = await store.load_reply(_place(session, str(said.message_id)), _ENDED) if has_journal(store) else None
    if text is None:
        return None
    kept = read_kept(f"message {said.message_id} of session {session.id}", text, _Ending.model_validate_json)
    state, finish = begin_state(agent, [said], (), recovering=True, used=None), Finish(kept.status, kept.response)
    return MessageAnswer(Message(role="assistant", content=kept.response), state, finish, finish, None)


async def prune_session(
    store: AgentStore, agent: Agent, session: Session, stored: Sequence[Message], keep: int
) -> None:
    """Prune a session of these messages to `keep`. A failure is only logged: the next run prunes again."""
    if len(stored) > keep:
        try:
            await _keep_ids_of_cut(store, agent, session, stored, keep)
            await store.prune_messages(session.id, keep)
        except StoreError as error:
            _LOG.warning("Session %s was not pruned: %s", session.id, error)


async def _keep_ids_of_cut(
    store: AgentStore, agent: Agent, session: Session, stored: Sequence[Message], keep: int
) -> None:
    """Keep the ids of the messages that pruning to `keep` cuts, each with its answer."""
    first = first_kept_index([message.role for message in stored], keep)
    with_ids = [place for place, one in enumerate(stored[:first]) if one.message_id is not None]
    if not with_ids or not has_journal(store):
        return
    for place in with_ids:
        said, found = stored[place], await _answer_after(agent, session, stored, place)
        cut = _CutMessage(
            id=str(said.message_id),
            digest=content_digest(said),
            by=said.by,
            answer=None if found is None else found.message,
        )
        await store.save_reply(_place(session, cut.id), _CUT, cut.model_dump_json())


async def _answer_after(
    agent: Agent, session: Session, transcript: Sequence[Message], place: int
) -> MessageAnswer | None:
    """Return the first final answer after a message."""
    for at in range(place + 1, len(transcript)):
        if at == len(transcript) - 1 and session.questions:
            return None  # people are asked about it
        is_final = transcript[at].role == "assistant" and not transcript[at].tool_calls
        if is_final and (found := await _read_answer(agent, transcript[: at + 1])) is not None:
            return found
    return None


async def _read_answer(agent: Agent, transcript: Sequence[Message]) -> MessageAnswer | None:
    """Return the answer at the end of a transcript, unless the model was asked to correct it."""
    last = transcript[-1]
    state = begin_state(agent, transcript, (), recovering=True, used=None)
    finish = next_action(state)
    if not isinstance(finish, Finish):
        return None
    problem = None if last.unfit else await output_problem(agent, finish.answer)
    ending = state.judged(finish, problem, last.unfit)
    return MessageAnswer(last, state, finish, ending, last.unfit or problem) if isinstance(ending, Finish) else None


def _place(session: Session, message_id: str) -> str:
    """Return the key of a pruned message. It is deleted with the session, like the keys of calls, which are numbers."""
    number = int.from_bytes(hashlib.blake2b(message_id.encode(), digest_size=8).digest(), "big")
    return f"{session.key}/1{number:020}"  # longer than the number of any message


class KeptMessage(Record):
    """An acknowledged message.

    Args:
        id: identifies it, however often it is stored.
    """

    id: str
    message: Message


class Unheard:
    """A session's unread messages, in the order in which they were sent."""

    def __init__(self, session: Session, store: Ledger) -> None:
        self._said, self._heard, self._store = f"{session.key}/said", f"{session.key}/heard", store

    async def load(self, transcript: Iterable[Message]) -> list[KeptMessage]:
        """Return the messages; those in the transcript were read, even if no process survived to note that."""
        heard = {message.id for message in transcript}
        return [one for one in await self._noted() if one.id not in heard]

    async def take(self, transcript: Sequence[Message]) -> list[KeptMessage]:
        """Return the messages, and note those in the transcript as read; they may be pruned from there later."""
        await self.hear(transcript)
        return await self.load(transcript)

    async def _noted(self) -> list[KeptMessage]:
        """Return the messages that are not noted as read."""
        first = await length(self._store, self._heard)
        found: list[KeptMessage] = []
        while (text := await self._store.load_reply(self._said, first + len(found))) is not None:
            kept = read_kept(f"a message in {self._said}", text, KeptMessage.model_validate_json)
            found.append(kept.model_copy(update={"message": kept.message.model_copy(update={"id": kept.id})}))
        return found

    async def keep(self, messages: Sequence[KeptMessage], transcript: Iterable[Message]) -> dict[str, str | None]:
        """Store messages, each once, except those in the transcript.

        Returns, by id, the messages whose `message_id` belongs to a message that was read, or was sent under another
        id. The value is None, or the reason why such a message is refused.
        """
        heard = list(transcript)
        there = [*heard, *(one.message for one in await self._noted())]
        known, was_heard = {message.id for message in there}, {message.id for message in heard}
        by_sender = {message.message_id: message for message in there if message.message_id is not None}
        number, repeated = await length(self._store, self._said), dict[str, str | None]()
        for one in messages:
            before = by_sender.get(str(one.message.message_id))
            # Sent again to a run that was reset, a message has the id under which the session has read it.
            if before is not None and (before.id != one.id or one.id in was_heard):
                repeated[one.id] = _refusal(one.message, before)
            elif one.id not in known:
                number = await append(self._store, self._said, one.model_dump_json(), number)

        return repeated

    async def hear(self, messages: Iterable[Message]) -> None:
        """Note that these messages were read, up to the first unread one."""
        ids = {message.id for message in messages if message.id is not None}
        first = await length(self._store, self._heard) if ids else 0
        for number, one in enumerate(await self._noted() if ids else (), first):
            if one.id not in ids:
                break
            await self._store.save_reply(self._heard, number, "")


def _refusal(said: Message, before: Message) -> str | None:
    """Return why a message cannot have the id of an earlier one; None if it is the same message."""
    try:
        check_same(said, content_digest(before), before.by)
    except InputError as error:
        return str(error)
    return None
