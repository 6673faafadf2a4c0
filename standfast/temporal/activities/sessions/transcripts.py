"""Reads and writes a session for activities: its transcript as far as the run knows it, and the results of a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from standfast.agent_loop import extended, last_answer, left_open, outcome_of, result_message, unanswered, with_edit
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import EndStatus, Question
from standfast.errors import InputError, SessionConflictError
from standfast.messages import Message, ToolCall, Usage, cut, read_usage
from standfast.runtime.call_ledger import answer_without_run, last_dispatch, read_result, told, with_answer
from standfast.runtime.dependencies import heard_in
from standfast.runtime.message_ids import Unheard, ends_at_limit, keep_ending, prune_session
from standfast.stores.protocol import Append, Session, session_id_of
from standfast.temporal.activities.gates.open_gates import load_edit
from standfast.temporal.activities.sessions.session_marks import check_conflict, check_session, write_at_work
from standfast.temporal.activities.sessions.stored_outcomes import (
    NO_ANSWER,
    _time,
    begun_state,
    final_answer,
    last_state,
    recorded,
    strictest,
    was_written_by,
)
from standfast.temporal.activities.tools.tool_activities import ToolActivities
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import RunReference, SettleReference, Source, Verdict, WrittenOutcome
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.outcomes import read_outcome, source_of, write_outcome
from standfast.tools import Failed, Outcome
from standfast.tools.calls import call_key, turn_scope

_MAY_NOT_HAVE_RUN = {"failed", "cancelled", "unknown"}


@dataclass(slots=True)
class Transcript:
    """A session as one activity sees it. Writing results does not need the agent, so any worker can do it.

    Args:
        session: its current state, or its state when it is first written.
        messages: up to `seq`, the last that the run knows, ready to be shown to a model.
        call_ids: of all tool calls in them.
        size: of the messages, in characters.
        is_fresh: whether it comes from this worker's cache, which has nothing later.
        after: messages up to here were not loaded: a compressed view replaces them.
        later: by call id, results that the run wrote before it was reset, and does not know.
    """

    host: AgentHost
    reference: RunReference
    session: Session
    seq: int
    messages: list[Message] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    size: int = 0
    after: int = 0
    is_fresh: bool = False
    later: dict[str, Message] = field(default_factory=dict)

    @classmethod
    async def load(cls, host: AgentHost, reference: RunReference, *, after: int = 0) -> "Transcript":
        """Load the session of a reference. Messages that the run does not know were written by an earlier attempt."""
        store, seq = host.store, reference["seq"]
        known = host.records.cache.take(reference["session"])
        if isinstance(known, Transcript) and (known.after, known.seq) == (after, seq):
            # Nothing checks whether it is still up to date: the next write would be refused.
            return replace(known, reference=reference, is_fresh=True)
        session = await store.load_session(reference["session"])
        await check_session(host, reference, session)
        if session is None and seq:
            raise SessionConflictError(f"Session {reference['session']} was deleted while its run was in flight")
        if session is None:
            agent = host.catalogue.agent()
            session = Session(
                id=reference["session"],
                agent_name=agent.name,
                state=agent.write_state(agent.new_state()),
                user_id=reference.get("user_id"),
                tenant_id=reference.get("tenant_id"),
                created_at=_time(reference.get("created")),
            )
            return cls(host, reference, session, seq)
        result = cls(host, reference, session, seq, after=after)
        if after:  # an id inside a compressed view must not be used again
            for message in await store.load_messages(session.id):
                result.call_ids.update(call.id for call in message.tool_calls or ())
        messages = await store.load_messages(session.id, after=after)
        known_up_to = max(0, len(messages) - max(0, session.last_seq - seq))
        result._add(messages[:known_up_to])
        result.later = {str(one.tool_call_id): one for one in messages[known_up_to:] if one.role == "tool"}
        return result

    def _add(self, messages: Sequence[Message]) -> None:
        """Add later messages, and order the turn that they belong to; earlier turns are in order."""
        self.messages = extended(self.messages, messages)
        self.call_ids.update(call.id for message in messages for call in message.tool_calls or ())
        self.size += sum(map(_size_of, messages))

    def shorten(self, count: int) -> None:
        """Keep only the last messages; a compressed view replaces the earlier ones."""
        self.messages = self.messages[-count:]
        self.after = self.seq - count
        self.size = sum(map(_size_of, self.messages))

    async def context(self, agent: Agent) -> AgentContext:
        """Return the context of hooks and instructions, with the agent's state as it was last written."""
        reference = self.reference
        begun = begun_state(reference)
        written = await self.host.records.load_context(agent, reference["run"])
        try:
            given = agent.read_context(written)
        except InputError as error:  # a deploy has changed its type, and another deploy may fix it
            raise ApplicationError(str(error), type=names.HOOK_ERROR, non_retryable=True) from None
        return AgentContext(
            AgentIdentity(reference.get("agent_id") or reference["run"], agent.name),
            agent.read_state(self.session.state if begun is None else begun.text),
            self.session.user_id if reference.get("user_id") is None else reference["user_id"],
            self.session.tenant_id if reference.get("tenant_id") is None else reference["tenant_id"],
            session_id_of(self.session.id),
            given,
        )

    async def said(self) -> list[Message]:
        """Return the user's next message, in the context of the run."""
        return await self.in_context([user_message(one) for one in self.reference.get("say", ())])

    async def in_context(self, said: Sequence[Message]) -> list[Message]:
        """Return the user's message with the context of the run, which later runs look for."""
        if not said or self.reference["run"] in self.host.records.cache.without_context:
            return list(said)
        context = (await self.host.records.load_opened(self.reference["run"])).get("context")
        return heard_in(context, said)

    # --- writing ---

    async def commit(self, *, turn: int, questions: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the results of a turn that are not written yet, and the questions."""
        for append in await self.take_results(turn=turn, questions=questions):
            await self.write(append)

    async def ask_nothing(self, *, turn: int) -> None:
        """Record that no question is open any more, unless that is already recorded. The held answer was billed."""
        if self.session.questions:
            dropped = [one.held for one in self.session.questions if one.held is not None]
            self.session = self.session.model_copy(update={"usage": self.session.used_by(dropped)})
            await self.write(self.take([], key=f"{turn}.{self.reference.get('part', 0)}", turn=turn))

    async def count(self, spent: Usage, *, turn: int) -> None:
        """Add usage that no message has to the session, once."""
        store, place = self.host.store, f"{self.reference['run']}/counted"
        if await store.load_reply(place, turn) is not None:
            return
        self.session = self.session.model_copy(update={"usage": spent + self.session.usage})
        append = self.take([], key=f"{turn}/cut", turn=turn, questions=self.session.questions or ())
        await store.append_reply([append], journal_key=place, turn=turn, reply="1")

    async def take_results(self, *, turn: int, questions: Sequence[Mapping[str, Any]] = ()) -> list[Append]:
        """Add the results of a turn so far to the transcript; return the writes that this needs."""
        waiting = {question.get("tool_call_id") for question in questions}
        calls = [call for call in unanswered(self.messages) if call.id not in waiting]
        if not calls and not questions:
            return []
        sources = dict(self.reference.get("sources", ()))
        positions = {call.id: place for place, call in enumerate(self._last_calls())}
        in_ledger = await self._in_ledger(calls, turn, positions, sources)
        results = []
        for call in calls:
            source = sources.get(positions[call.id], {})
            written = in_ledger.get(call.id)
            if written is None:
                found = await self._with_note_of_edit(source, await self._elsewhere(source))
                is_open = bool(source.keys() & _MAY_NOT_HAVE_RUN)
                written = await self._answered(turn, positions[call.id], call, found) if is_open else found
            spent = read_usage(written.get("spent"))
            message = result_message(call, read_outcome(written), self.host.catalogue.max_message_bytes, spent)
            if message is not None:
                self._check_unchanged(message)
                results.append(message.model_copy(update={"by": written["by"]}) if "by" in written else message)
        left, begun = last_state(in_ledger.values()), begun_state(self.reference)
        if left is not None and begun is not None and left.number <= begun.number:
            left = None  # `on_start` has seen it
        append = self.take(
            results,
            key=f"{turn}.{self.reference.get('part', 0)}",
            turn=turn,
            state=None if left is None else left.text,
            questions=tuple(Question.model_validate(dict(question)) for question in questions),
        )
        return [append]

    def _last_calls(self) -> tuple[ToolCall, ...]:
        last = next((message for message in reversed(self.messages) if message.role == "assistant"), None)
        return () if last is None or last.tool_calls is None else last.tool_calls

    async def _in_ledger(
        self, calls: Sequence[ToolCall], turn: int, positions: Mapping[str, int], sources: Mapping[int, Source]
    ) -> dict[str, WrittenOutcome]:
        """Return the outcomes that are in the ledger, by call id.

        The ledger also has the outcome of a call without a source.
        """
        keys = {}
        for call in calls:
            place = positions[call.id]
            source = sources.get(place, {"dispatch": 1})
            if "dispatch" in source:
                keys[call.id] = call_key(place, call.id, source["dispatch"])
        if not keys:
            return {}
        scope, cache = (await self.host.records.load_record(self.reference["run"], turn)).key, self.host.records.cache
        result = {
            call_id: written for call_id, key in keys.items() if (written := cache.results.pop((scope, key), None))
        }
        if there := {call_id: key for call_id, key in keys.items() if call_id not in result}:
            entries = await self.host.store.load_entries(scope, list(there.values()))
            missing = [call_id for call_id, key in there.items() if key not in entries]
            # A run that ends early leaves calls that were never decided on.
            if missing and "status" not in self.reference:
                raise await self.host.records.behind(
                    self.reference["run"], f"the result of its call {missing[0]} is missing"
                )
            result |= {call_id: recorded(entries.get(key)) for call_id, key in there.items()}
        return result

    async def _answered(self, turn: int, position: int, call: ToolCall, source: Source) -> WrittenOutcome:
        """Return the answer to a call that was not dispatched or was lost: from the ledger, or else from the source.

        The ledger gets the answer before the model reads it, so that no run starts the call later.
        """
        store, last = self.host.store, last_answer(self.messages)
        assert last is not None, "the call is in the last answer"
        scope = turn_scope(self.session.key, self.seq - (len(self.messages) - 1 - last))
        ours = ("settled", "edited")
        answer = cast(WrittenOutcome, {name: value for name, value in source.items() if name not in ours})
        is_settled = "settled" in source
        while True:
            entry = await answer_without_run(store, scope, position, call, to_json(answer).decode())
            if entry.result is not None:
                return told(read_result(entry), answer)
            if not is_settled:  # it may still run: its workflow was reset or cancelled
                verdict = await self._look_up(turn, position)
                is_settled = "claimed" in verdict
                if is_settled and "unknown" not in source:
                    answer = write_outcome(await self._left_open(turn, call, verdict))
                continue
            key = call_key(position, call.id, await last_dispatch(store, scope, position, call.id))
            await with_answer(store, scope, key, entry, to_json(answer).decode(), owner=str(entry.owner))

    async def _look_up(self, turn: int, position: int) -> Verdict:
        known = ("run", "session", "user_id", "tenant_id", "agent_state")
        place = {name: value for name, value in self.reference.items() if name in known}
        asked = cast(SettleReference, {**place, "turn": turn, "position": position, "recovering": True})
        return await ToolActivities(self.host).look_up(asked)

    async def _left_open(self, turn: int, call: ToolCall, verdict: Verdict) -> Outcome:
        then = (await self.host.records.load_record(self.reference["run"], turn)).tools.get(call.name)
        now = self.host.catalogue.facts.get(call.name)
        return left_open(None if now is None else strictest(then, now), verdict.get("reason", ""))

    def _check_unchanged(self, result: Message) -> None:
        """Stop a run whose result for a call differs from the stored one.

        Raises:
            SessionConflictError: the results differ.
        """
        stored = self.later.get(str(result.tool_call_id))
        if stored is not None and (stored.status, stored.content) != (result.status, result.content):
            raise SessionConflictError(
                f"Session {session_id_of(self.session.id)}: its transcript and the ledger differ on call "
                f"{result.tool_call_id} of tool {result.tool_name}. The transcript says: "
                f"{cut(stored.content, 200)}. The ledger says: {cut(result.content, 200)}. Find out what the call "
                "did, and tell the agent in the next message"
            )

    def check_answered(self) -> None:
        """Stop a run that would ask the model while one of its calls lacks a result: providers refuse that.

        Raises:
            SessionConflictError: naming the call.
        """
        for call in unanswered(self.messages):
            raise SessionConflictError(
                f"Session {session_id_of(self.session.id)}: call {call.id} of tool {call.name} has no result, but its "
                "run has gone on. The model was not asked. Send the session a message: the next run settles the call"
            )

    async def _elsewhere(self, source: Source) -> Source:
        match source:
            case {"answer_of": session}:
                answer = final_answer(await self.host.store.load_messages(session))
                if answer is None:
                    return source_of(Failed(NO_ANSWER))
                return {"returned": answer, "spent": source.get("spent")}
        return source

    async def _with_note_of_edit(self, source: Source, found: Source) -> Source:
        """Return the outcome of an agent's call, with a note to the model if people have edited its arguments."""
        if (edited := source.get("edited")) is None:
            return found
        arguments = await load_edit(self.host, self.reference["run"], edited["edit"])
        noted = with_edit(read_outcome(found), edited.get("editor"), arguments, self.host.catalogue.max_message_bytes)
        return {**found, **write_outcome(noted)}

    def take(
        self,
        messages: Sequence[Message],
        *,
        key: str,
        turn: int,
        state: str | None = None,
        questions: tuple[Question, ...] = (),
    ) -> Append:
        """Add messages to the transcript; return the write that this needs."""
        run = self.reference["run"]
        changes: dict[str, Any] = {
            "questions": questions or None,
            "workflow_id": activity.info().workflow_id,
            "journal_key": f"{run}/{turn}",
            "usage": self.session.used_by(messages),
        }
        if state is None and (begun := begun_state(self.reference)) is not None:
            state = begun.text
        if state is not None:
            changes["state"] = state
            known = {name: value for name, value in self.reference.items() if name != "agent_state"}
            self.reference = cast(RunReference, known)
        append = Append(self.session.model_copy(update=changes), messages, f"{run}/{key}", self.seq)
        self.session = append.session
        self.seq += len(messages)
        self._add(messages)
        return append

    async def write(self, append: Append) -> None:
        """Write messages, once however often this is called.

        Raises:
            SessionConflictError: another writer has written since.
        """
        try:
            write = partial(
                self.host.store.append_messages_atomic,
                append.session.id,
                append.messages,
                append.session,
                write_key=append.write_key,
                expected_seq=append.expected_seq,
            )
            await write_at_work(write, self.host.store, self.reference)
        except SessionConflictError as error:
            await check_conflict(self.host, {**self.reference, "seq": append.expected_seq}, error)
            # A store recognises a repeat of its last write only. After a reset, the last write may be a later one of
            # this run.
            if append.messages or not await self._was_written(append):
                raise
        await self.heard(append.messages)

    async def end(self, status: str) -> None:
        """Record how the run ended, if at a limit, and prune its session."""
        store = self.host.store
        if ends_at_limit(status):
            stored = await store.load_messages(self.session.id) if self.after else self.messages
            await keep_ending(store, self.session, stored, cast(EndStatus, status))
        await self.prune()

    async def prune(self) -> None:
        """Prune the session when its run has ended; see `prune_session`."""
        store, keep = self.host.store, self.host.max_stored_messages
        agent = self.host.catalogue.agents.get(activity.info().workflow_type or "")
        if agent is not None and len(self.messages) > keep:  # a worker without the agent leaves it to the next run
            stored = await store.load_messages(self.session.id) if self.after else self.messages
            await prune_session(store, agent, self.session, stored, keep)

    async def heard(self, messages: Sequence[Message]) -> None:
        """Tell the store that the transcript now has messages that the store has kept."""
        await Unheard(self.session, self.host.store).hear(messages)

    async def written_since(self) -> list[Message]:
        """Return the stored messages that the run does not know, since it wrote them before it was reset."""
        return await self.host.store.load_messages(self.session.id, after=self.seq)

    async def _was_written(self, append: Append) -> bool:
        """Return whether this run itself made the last write to the session."""
        session = await self.host.store.load_session(append.session.id)
        run = str(append.session.journal_key).rpartition("/")[0]
        return session is not None and was_written_by(session, run)

    async def answered(self, after: int) -> dict[str, WrittenOutcome]:
        """Return by call id the outcomes for the calls of the answer with that number, whichever attempt wrote them.

        The user's answer to a question of the loop itself is under "".
        """
        found: dict[str, WrittenOutcome] = {}
        for message in await self.host.store.load_messages(self.session.id, after=after):
            if message.role == "assistant":
                break
            if message.role == "user":
                found.setdefault("", {"returned": message.content})
            else:
                found[str(message.tool_call_id)] = write_outcome(outcome_of(message))
        return found


def _size_of(message: Message) -> int:
    """Return the approximate number of characters that a message keeps alive."""
    calls = sum([len(str(call.arguments)) for call in message.tool_calls]) if message.tool_calls else 0
    return len(message.content) + calls
