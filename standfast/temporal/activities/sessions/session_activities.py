"""Opens sessions: the facts that steer a run, the state of its session, and the remainder of an earlier run."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_core import to_json
from temporalio import activity

from standfast.agent_loop import (
    CallPlace,
    LoopState,
    handed_to,
    last_answer,
    last_speaker,
    next_calls,
    repair_transcript,
)
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import Checkpoint, Question
from standfast.errors import InputError, SessionConflictError, StoreError
from standfast.messages import Message, check_same, content_digest, cut, usage_of
from standfast.runtime.call_ledger import NOT_RUN, claim_next, last_entry, read_result
from standfast.runtime.dependencies import begin_context, context_of, kept_context
from standfast.runtime.inputs import RunInput, check_access, check_may_start
from standfast.runtime.message_ids import MessageAnswer, find_heard
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.restored_stores import current_epoch
from standfast.runtime.session_states import begin_state, check_exported_from, exported_session, is_held
from standfast.runtime.stored_gates import Whose, show_gates
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import DurableStore, Session, session_id_of
from standfast.temporal.activities.gates import open_gates
from standfast.temporal.activities.models.model_activities import final_reply
from standfast.temporal.activities.sessions.message_activities import unheard_by
from standfast.temporal.activities.sessions.session_marks import (
    LOST,
    begin_work,
    check_writer,
    end_work,
    is_running,
    note_run,
)
from standfast.temporal.activities.sessions.stored_outcomes import (
    called_before,
    called_tools,
    still_asked,
    was_written_by,
)
from standfast.temporal.activities.tools.dependencies import guardrails_at
from standfast.temporal.activities.worker.activity_guards import Guard, called, json_activity
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.activities.worker.run_records import not_deleted
from standfast.temporal.wire import activity_types as types
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import INLINE_BYTES, AgentInput, Said, message_id_of, said_by_user, user_message
from standfast.temporal.wire.outcomes import shown_arguments
from standfast.temporal.wire.run_state import Call, write_state, write_tripped
from standfast.temporal.wire.snapshots import write_facts
from standfast.temporal.wire.turn_records import TurnRecord, read_record
from standfast.tools import Unknown
from standfast.tools.calls import turn_scope


def read_checkpoint(host: AgentHost, agent: Agent, given: AgentInput) -> RunInput:
    """Read the checkpoint from which a run continues."""
    limit, key = agent.loop.max_message_bytes, host.checkpoint_key
    return RunInput.read(None, None, given.checkpoint, None, limit=limit, agent=agent.name, key=key)


def unanswered_in_export(
    host: AgentHost, agent: Agent, given: AgentInput, session: Session, messages: Sequence[Message]
) -> list[Said]:
    """Return the messages in a session's own export that are missing from the session: they were never answered.

    Raises:
        InputError: it is not an export of this session.
    """
    brought = read_checkpoint(host, agent, given)
    assert brought.checkpoint is not None
    check_exported_from(brought.checkpoint, session)
    unwritten = brought.in_session(session_id_of(session.id)).not_in(list(messages))
    return [said_by_user(message.content, message.images, message.by) for message in unwritten]


async def check_at_rest(store: DurableStore, checkpoint: Checkpoint, session: str) -> None:
    """Refuse to continue from the export of another session while that session has a run in flight.

    Raises:
        SessionConflictError: it has one.
    """
    key = await exported_session(store, checkpoint)
    if key is None or key == session:
        return
    name, client = session_id_of(key), activity.client()
    for work in await store.find_work(key):
        if await is_running(client, work):
            raise SessionConflictError(
                f"Session {name}, which was exported, has a run in flight, workflow {work.workflow_id}: cancel it first"
            )
    if await is_held(store, key):
        raise SessionConflictError(f"Session {name}, which was exported, has a run in flight in a process")


class SessionActivities:
    """Opens the sessions of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.open]

    @json_activity(names.OPEN)
    async def open(self, reference: types.OpenReference) -> types.Opened | types.Looked:
        """Record the facts that steer the run, and the state of its session. Only orphans' answers are written."""
        with Guard(self._host):
            agent = self._host.catalogue.agent()
            if "input" in reference:
                await self._host.check_queue()
            reference = await self._host.records.located(reference)
            self._host.catalogue.speaker(reference.get("agent"))
            if "tool" in reference:
                self._host.catalogue.tool(reference["tool"])
            if "input" not in reference:  # the run is open, and searches for a worker
                return {}
            # A run that is reset to its start begins from its first start, not from its later writes.
            place = f"{reference['run']}/open"
            kept = await self._host.store.load_reply(place, 0)
            if kept is None:
                try:
                    found = await self._open(agent, reference)
                except Exception:  # no work is in progress for this run
                    await end_work(self._host.store, reference)
                    raise
                kept = await self._host.store.save_reply(place, 0, to_json(found).decode())
                again = {}
            else:
                await begin_work(self._host.store, reference)
                again = {"again": True}  # messages acknowledged since are in the store
            not_deleted(reference["run"], kept)
            opened = cast(types.Opened, read_kept_object("what steers this run", kept) | again)
            if "answered" in opened:  # no work follows
                await end_work(self._host.store, reference)
            self._host.records.cache.facts[reference["run"]] = opened["facts"]
            self._host.records.note_context(reference["run"], opened)
            opened.pop("context", None)  # they stay in the store
            opened.pop("context_before", None)
            if (version := opened.pop("gates_of", None)) is not None:
                await self._take_over_gates(agent, reference, version)
            return opened

    async def _take_over_gates(self, agent: Agent, reference: types.OpenReference, version: int) -> None:
        """Mark the gates of a session as this run's: people cannot decide on them elsewhere."""
        store, run = self._host.store, reference["run"]
        session = await store.load_session(reference["session"])
        assert session is not None, "it was opened"
        await show_gates(store, Whose.of_session(session), ())  # the board of this run shows them
        if was_written_by(session, run):  # marked already: the run was reset to its start
            return
        here = activity.info().workflow_id or ""
        known = [await open_gates.after_decisions(self._host, agent, session, one) for one in session.questions or ()]
        ours = {"questions": open_gates.held_by(here, known) or None, "workflow_id": here, "journal_key": f"{run}/0"}
        await store.append_messages_atomic(
            session.id, [], session.model_copy(update=ours), write_key=f"{run}/gates", expected_version=version
        )

    async def _open(self, agent: Agent, reference: types.OpenReference) -> types.Opened:
        given = AgentInput.read(reference["input"])
        speakers = agent.speakers.values() or (agent,)
        every_tool = {name: tool for one in speakers for name, tool in one.tool_map.items()}
        opened: types.Opened = {
            "session": reference["session"],
            "facts": write_facts(agent, every_tool, self._host.surroundings, self._host.lane),
            "seq": 0,
        }
        if agent.access:
            await called(self._host, lambda: check_may_start(agent, given.user_id))
        else:
            check_may_start(agent, given.user_id)
        said = await self._message(agent, given)
        limit = agent.loop.max_message_bytes
        brought = RunInput.read(
            said, None, None, None, images=given.images or (), message_id=given.message_id, limit=limit
        )
        session = await self._session(agent, given, reference)
        loaded = [] if session is None else await self._host.store.load_messages(session.id)
        messages = repair_transcript(loaded)
        if session is not None and brought.message_id is not None:
            new, is_pruned = brought.user_message(given.user_id), session.last_seq > len(loaded)
            heard = await find_heard(new, messages, agent, session, self._host.store, is_pruned=is_pruned)
            if heard is not None and heard.answer is not None:
                answered = await _answered(agent, heard.answer)
                return {**opened, "seq": session.last_seq, "key": session.key, "answered": answered}
            if heard is not None:
                brought, given = brought.without_message(), replace(given, message=None, context=None)
        taken_in = given.checkpoint is not None and (session is None or session.journal_key == f"{reference['run']}/0")
        if not taken_in:
            await self._begin(agent, given, brought, messages, opened)
        message = brought.message
        if session is None:
            created = datetime.now(UTC)
            opened |= {
                "created": created.isoformat(),
                "key": Session(id=reference["session"], agent_name=agent.name, created_at=created).key,
            }
            if given.checkpoint is not None:
                return await self._take_in(agent, given, brought, reference, opened)
            if message is None:
                opened["empty"] = True
            return opened
        if given.checkpoint is not None and session.journal_key == f"{reference['run']}/0":
            opened["created"] = cast(datetime, session.created_at).isoformat()
            return await self._take_in(agent, given, brought, reference, opened)  # as an earlier attempt began to
        return await self._opened_again(agent, given, brought, reference, opened, session, messages)

    async def _opened_again(
        self,
        agent: Agent,
        given: AgentInput,
        brought: RunInput,
        reference: types.OpenReference,
        opened: types.Opened,
        session: Session,
        messages: list[Message],
    ) -> types.Opened:
        """Continue a session that an earlier run has left."""
        unheard = await unheard_by(self._host.store, session, messages)
        if given.checkpoint is not None:
            unheard += unanswered_in_export(self._host, agent, given, session, messages)
        if unheard:
            opened["unheard"] = unheard
            self._hear_once(brought, given, opened)
        if not messages and brought.message is None:
            opened["empty"] = True
        questions = tuple(
            [await open_gates.after_decisions(self._host, agent, session, one) for one in session.questions or ()]
        )
        questions = await still_asked(self._host.store, session, messages, questions)
        if any(question.gate is not None for question in questions):
            opened["gates_of"] = session.version
        # An in-process run writes its verdicts before it runs a call: behind an open gate, no call has begun.
        asked = {question.tool_call_id for question in questions}
        gates = [one for one in session.questions or () if one.gate is not None and one.tool_call_id in asked]
        before = [one for one in gates if "workflow" not in (one.gate or {})]
        has_begun = not any(one.is_open for one in before)
        state = await self._state(agent, reference, session, messages, questions, recovering=has_begun)
        opened = await self._found(agent, reference, opened, session, messages, state)
        # If the agent was lost with an earlier run of its caller, it has read its message.
        has_heard = messages and given.call is not None
        kept = {name: value for name, value in opened.items() if not (has_heard and name == "message")}
        return cast(types.Opened, kept)

    def _hear_once(self, brought: RunInput, given: AgentInput, opened: types.Opened) -> None:
        """Leave out the message that the run was started with if an earlier run received it and has not read it."""
        if brought.message_id is None:
            return
        for before in [user_message(one) for one in opened["unheard"] if message_id_of(one) == brought.message_id]:
            check_same(brought.user_message(given.user_id), content_digest(before), before.by)
            opened.pop("message", None)

    async def _begin(
        self, agent: Agent, given: AgentInput, brought: RunInput, messages: list[Message], opened: types.Opened
    ) -> None:
        """Add the run's context and its first message."""
        asked = given.context
        if given.step is not None:
            kept, key = Kept(given.step["run"], self._host.store), f"{given.step['path']}?context"
            asked = kept[key] if await kept.find(key) else None
        if agent.context is None:
            context = context_of(agent, asked, messages)
        else:
            context = await called(self._host, lambda: context_of(agent, asked, messages))
        _say(opened, given, brought, context)
        before = kept_context(messages)
        if context is not None and before not in (None, context):
            opened["context_before"] = before

    async def _message(self, agent: Agent, given: AgentInput) -> str | None:
        if given.step is not None:
            kept = Kept(given.step["run"], self._host.store)
            if not await kept.find(f"{given.step['path']}?with"):
                raise StoreError(f"Step {given.step['path']} of run {given.step['run']} is not in this store")
            return str(kept[f"{given.step['path']}?with"])
        if given.call is None:
            return given.message
        record = await self._host.records.load_record(given.call["run"], given.call["turn"])
        position = given.call["position"]
        entry = await last_entry(self._host.store, record.key, position, record.calls[position].id)
        if entry is not None and entry.owner == NOT_RUN and entry.result is not None:
            answer, *_ = read_result(entry).values()
            raise InputError(str(answer))
        tool = Agent("caller", tools=[agent]).tool_map[agent.name]  # for others, an agent is such a tool
        asked = record.calls[position].arguments
        if "edit" in (approved := given.call.get("approved", {})):
            asked = await open_gates.load_edit(self._host, given.call["run"], approved["edit"])
        return str(tool.read_arguments(asked)["message"])

    async def _session(self, agent: Agent, given: AgentInput, reference: types.OpenReference) -> Session | None:
        """Return the session, if it exists and the run may have it."""
        store, session_id = self._host.store, reference["session"]
        known = await store.load_session(session_id)
        if known is not None:
            check_access(known, agent, given.user_id, given.tenant_id)
        # First the mark, then a check of the hold; an in-process run takes the hold first. So one of them detects the
        # other.
        await asyncio.gather(begin_work(store, reference), note_run(store, reference))
        if await is_held(store, session_id):
            raise SessionConflictError(
                f"Session {session_id_of(session_id)} has a run in flight in a process; wait for it to end"
            )
        session = await store.load_session(session_id)
        if session is not None:
            check_access(session, agent, given.user_id, given.tenant_id)
            await check_writer(session)
        return session

    async def _take_in(
        self, agent: Agent, given: AgentInput, said: RunInput, reference: types.OpenReference, opened: types.Opened
    ) -> types.Opened:
        """Begin a session with the messages of a checkpoint, and the message that follows them."""
        run = reference["run"]
        brought = read_checkpoint(self._host, agent, given)
        brought.check_questions()
        checkpoint, messages = brought.checkpoint, brought.messages or []
        assert checkpoint is not None
        context, messages = begin_context(agent, given.context, [], messages, brought)
        if said.message_id is not None:
            for one in [one for one in messages if one.message_id == said.message_id]:
                check_same(said.user_message(given.user_id), content_digest(one), one.by)
                said = said.without_message()
        _say(opened, given, said, context)
        if not brought.is_signed:
            messages = await self._checked(agent, given, reference, messages, context)
        await check_at_rest(self._host.store, checkpoint, reference["session"])
        if checkpoint.session_id is not None:
            raise InputError(
                f"the checkpoint belongs to session {checkpoint.session_id}: start that session, or leave its "
                "session_id out to continue in another one"
            )
        session = Session(
            id=reference["session"],
            agent_name=agent.name,
            state=agent.write_state(agent.new_state()),
            user_id=given.user_id,
            tenant_id=given.tenant_id,
            workflow_id=activity.info().workflow_id,
            journal_key=f"{run}/0",
            created_at=datetime.fromisoformat(opened.pop("created")),
            usage=usage_of(messages),
        )
        spoke = [person for gate in brought.claimed_gates for person in gate.requesters]
        state = await self._state(
            agent,
            reference,
            session,
            messages,
            brought.credible_questions,
            spoke,
            recovering=False,
            checkpoint=checkpoint,
        )
        held = open_gates.held_by(activity.info().workflow_id or "", state.kept_questions) or None
        session = session.model_copy(update={"questions": held})
        seq = await self._host.store.append_messages_atomic(
            session.id, messages, session, write_key=f"{run}/0", expected_seq=0
        )
        session = session.model_copy(update={"last_seq": seq})
        return await self._found(agent, reference, opened, session, messages, state)

    async def _checked(
        self,
        agent: Agent,
        given: AgentInput,
        reference: types.OpenReference,
        messages: list[Message],
        written: str | None,
    ) -> list[Message]:
        """Return a checkpoint's messages, with the guardrails' verdicts on the calls that are open in them."""
        speaker = self._host.catalogue.speaker(last_speaker(messages))
        me = AgentIdentity(given.instance_id or reference["run"], speaker.name)
        who = AgentContext(me, agent.new_state(), given.user_id, given.tenant_id, session_id_of(reference["session"]))
        return await self._host.thread.run(guardrails_at(speaker, who, written).checked_again(messages))

    async def _state(
        self,
        agent: Agent,
        reference: types.OpenReference,
        session: Session,
        messages: list[Message],
        questions: tuple[Question, ...],
        spoke: Sequence[str | None] = (),
        *,
        recovering: bool,
        checkpoint: Checkpoint | None = None,
    ) -> LoopState:
        """Return the state that a session leaves, its gates open."""
        used = usage_of(messages) if session.usage is None else session.usage
        asks = self._host.catalogue.speaker(last_speaker(messages))
        self._host.catalogue.speaker(handed_to(asks, messages))  # if this worker has the agent that answers next
        state = begin_state(agent, messages, questions, recovering=recovering, used=used, checkpoint=checkpoint)
        if not state.unasked:
            return state
        people = [reference["input"].get("user_id"), session.user_id, *(message.by for message in messages), *spoke]
        run, at = reference["run"], session.created_at
        place = CallPlace(
            agent=agent.name,
            run=run,
            session=session.id,
            session_key=session.key,
            tenant_id=session.tenant_id,
            user_id=session.user_id,
        )
        last = last_answer(messages)
        tripped = () if last is None else messages[last].tripped or ()
        found = open_gates.find_gates(self._host, asks, state.unasked, run, people, place, tripped, at=at)
        return state.gated(*await found)

    async def _found(
        self,
        agent: Agent,
        reference: types.OpenReference,
        opened: types.Opened,
        session: Session,
        messages: list[Message],
        state: LoopState,
    ) -> types.Opened:
        is_heard = "message" in opened and "call" in reference["input"]
        if state.ended is not None and (opened.keys() & {"message", "unheard"}) and not is_heard:
            state = state.with_user_message()  # otherwise the run would end like the last one
        last = last_answer(messages)
        answer = None if last is None else messages[last]
        calls = () if answer is None else answer.tool_calls or ()
        opened |= {"seq": session.last_seq, "key": session.key}
        if held := [question for question in state.kept_questions if question.is_held]:
            await open_gates.note_held(self._host, reference, session, held, await self._epoch_of(session))
        elif state.open_calls or state.questions:
            assert last is not None
            assert answer is not None
            number = session.last_seq - (len(messages) - 1 - last)
            asks = self._host.catalogue.speaker(last_speaker(messages))
            _, available = called_tools(self._host, asks, calls)
            if available is not None and agent.speakers:
                opened["declared"] = {"available": list(available)}
            record = TurnRecord(
                message=answer,
                key=turn_scope(session.key, number),
                session=session.id,
                agent_id=reference["input"].get("instance_id") or reference["run"],
                user_id=session.user_id,
                tenant_id=session.tenant_id,
                gates=tuple(question for question in state.kept_questions if question.gate is not None),
                tools=await called_before(self._host, asks, session.journal_key, calls, opened["facts"]["tools"]),
                epoch=await self._epoch_of(session),
            )
            await self._host.store.save_reply(reference["run"], 0, record.model_dump_json())
            if session.journal_key is None and state.recovering:
                await self._claim_lost(record, state, "a run in process")
            elif record.epoch < self._host.records.epoch:
                await self._claim_lost(record, state, LOST)
            opened["number"] = number
            opened["calls"] = [
                [call.id, call.name, place, shown_arguments(call.arguments)] for place, call in enumerate(calls)
            ]
            opened["unknown"] = _of_unknown_outcome(state)
        if state.verdicts:
            opened["approved"] = open_gates.let_through(state, calls)
        if state.gates or state.verdicts:
            asked = open_gates.asked_of(state.gates, reference["run"], 0)
            opened["arguments"] = asked["arguments"]
            if "sizes" in asked:
                opened["sizes"] = asked["sizes"]
            state = await open_gates.with_references(self._host, reference["run"], state)
        plain = {item[0]: Call(*item) for item in opened.get("calls", ())}
        light = LoopState(
            **{
                **{name: getattr(state, name) for name in state.__dataclass_fields__},
                "open_calls": tuple(plain[call.id] for call in state.open_calls),
                "response": cut(state.response, INLINE_BYTES),
            }
        )
        opened["state"] = write_state(light)
        return opened

    async def _epoch_of(self, session: Session) -> int:
        """Return the epoch of the store in which a session's open calls were requested, if it is known."""
        self._host.records.epoch = await current_epoch(self._host.store)
        run, _, turn = (session.journal_key or "").rpartition("/")
        kept = await self._host.store.load_reply(run, int(turn)) if run else None
        if kept is not None:
            return read_record(run, int(turn), kept).epoch
        # The writer is not recorded if it is an in-process run, or this run, which has imported a checkpoint.
        return self._host.records.epoch

    async def _claim_lost(self, record: TurnRecord, state: LoopState, owner: str) -> None:
        """Claim calls that may have run without a claim in the ledger, so that every later run knows.

        An in-process run keeps no ledger, and a restored store has lost its entries. Only now is this possible: the
        session names its last writer until this run writes.
        """
        safe = {name for name, tool in state.tools.items() if tool.safe_to_retry}
        # Calls that the loop answers itself, such as rejected or incomplete ones, have never begun.
        never_run = {call.id for call, outcome in next_calls(state).settled if not isinstance(outcome, Unknown)}
        lost = {call.id for call in state.open_calls if call.name not in safe and call.id not in never_run}
        for position, call in enumerate(record.calls):
            if call.id in lost:
                await claim_next(self._host.store, record.key, position, call.id, owner=owner)


async def _answered(agent: Agent, answer: MessageAnswer) -> types.AnsweredBefore:
    """Return the result of a message that was answered before."""
    final = await final_reply(agent, answer.message)
    result: types.AnsweredBefore = {"status": answer.ending.status, "response": final["text"]}
    if "size" in final:
        result["size"] = final["size"]
    if answer.ending.tripped is not None:
        result["tripped"] = write_tripped(answer.ending.tripped)
    if answer.problem is not None:
        result["error"] = answer.problem
    elif answer.ending.status == "complete" and "output" in final:
        result["output"] = final["output"]
    return result


def _of_unknown_outcome(state: LoopState) -> list[str]:
    return [one.tool_call_id for one in state.questions if one.unknown is not None and one.tool_call_id is not None]


def _say(opened: types.Opened, given: AgentInput, said: RunInput, context: str | None) -> None:
    """Note the context of a run, and its first message."""
    if context is not None:
        opened["context"] = context
    if said.message is not None:
        opened["message"] = said_by_user(said.message, said.images, given.user_id, context, said.message_id)
