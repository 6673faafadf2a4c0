"""The activity that calls the model: once per turn, however often the activity is attempted."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agent_loop import CallPlace, LoopState, first_of, question_about, refused_by_guardrails, released
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import SessionConflictError
from standfast.events import AnswerDelta
from standfast.messages import JSONObject, Message, cut, read_json, size_over, unfenced
from standfast.runtime.tasks import retry_write
from standfast.runtime.users_functions import output_problem
from standfast.stores.kept_values import read_kept
from standfast.stores.protocol import Append, has_partial_answers
from standfast.temporal.activities.gates.open_gates import asked_of, find_gates, held_by
from standfast.temporal.activities.models.answers import (
    Answered,
    Answers,
    ModelRefusedError,
    PartialAnswerWriter,
    soonest,
)
from standfast.temporal.activities.sessions.session_marks import begin_work, check_conflict, end_work, write_at_work
from standfast.temporal.activities.sessions.stored_outcomes import (
    called_tools,
    digest,
    news,
    split_heard,
    started_facts,
)
from standfast.temporal.activities.sessions.transcripts import Transcript
from standfast.temporal.activities.worker.activity_guards import AfterAWhile, Guard, json_activity, write_in_sight
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Asked, LastReply, ModelReference, ModelReply
from standfast.temporal.wire.inputs import INLINE_BYTES, PREVIEW, SOURCES, THOUGHTS
from standfast.temporal.wire.outcomes import shown_arguments
from standfast.temporal.wire.run_state import write_tripped
from standfast.temporal.wire.turn_records import KeptView, TurnRecord, read_record
from standfast.tools.calls import turn_scope

_LOG = logging.getLogger("standfast")


class ModelActivities:
    """Calls models for a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host
        self._answers = Answers(host)

    def all(self) -> list[Any]:
        return [self.call_model]

    @json_activity(names.CALL_MODEL)
    async def call_model(self, reference: ModelReference) -> ModelReply:
        """Write the last turn's results, call the model, write its answer, and return the workflow's part of it."""
        with Guard(self._host):
            return await self.answer(reference, looks=activity.info().attempt > 1)

    async def answer(self, reference: ModelReference, *, looks: bool) -> ModelReply:
        """Return the same as `call_model`.

        Args:
            looks: another attempt may have kept the answer.
        """
        is_moved = "run" in reference  # reset, or just continued as new
        reference = await self._host.records.located(reference)
        if is_moved:
            reference["again"] = True
        run, turn = reference["run"], reference["turn"]
        view = await self._load_view(run, reference)
        transcript = await Transcript.load(self._host, reference, after=0 if view is None else view.seq)
        if is_moved or (turn > 1 and _has_ended(transcript.messages)):  # then the user has sent further messages
            await begin_work(self._host.store, reference)
        if not transcript.is_fresh or is_moved or looks:
            # Otherwise this worker wrote the previous turn, and no other attempt can have run yet.
            kept = await self._host.store.load_reply(run, turn)
            if kept is not None:
                return await self._write(reference, transcript, kept)
        agent = self._host.catalogue.speaker(reference.get("agent"))
        results = await transcript.take_results(turn=turn - 1)
        transcript.check_answered()
        try:
            async with self._known_to_last(transcript, results):
                record = await self._ask_in_turn(agent, reference, transcript, view)
                return await self._keep(reference, transcript, results, record)
        except ModelRefusedError as error:
            for append in results:
                await retry_write(partial(transcript.write, append))
            return {"error": str(error), "seq": transcript.seq}

    async def _check_named(self, agent: Agent, reference: ModelReference) -> None:
        """Refuse to call a different model than people see on this activity, after a deploy has changed the agent's."""
        if "model" in reference:
            return
        today, known = agent.model or "", await started_facts(self._host, reference["run"])
        then = known.get("agents", {}).get(reference.get("agent"), known)
        if today != reference.get("named", then.get("model", "")):
            raise ApplicationError(
                f"The agent's model is {today or 'given by its worker'} now",
                {"model": today},
                type=names.MODEL_CHANGED,
                non_retryable=True,
                category=ApplicationErrorCategory.BENIGN,
            )

    @contextlib.asynccontextmanager
    async def _known_to_last(self, transcript: Transcript, results: list[Append]) -> AsyncIterator[None]:
        """If the answer takes long, record in the store that this activity runs, and write the results.

        The results are written with the answer anyway, and only once. So nothing depends on this write, and a fault in
        it also makes the later write fail.
        """
        store, owner = self._host.store, self._host.identity.owner()

        async def write() -> None:
            for append in results:
                with contextlib.suppress(Exception):
                    await transcript.write(append)

        async def last() -> None:
            with contextlib.suppress(Exception):
                if (running := self._host.identity.running(owner)) is not None:
                    await store.begin_call(running)
            await write()

        with AfterAWhile(last) as begun:
            try:
                yield
            except BaseException:
                if not begun:
                    await write()
                raise
            finally:
                if begun:
                    await asyncio.wait(begun)
                    with contextlib.suppress(Exception):  # the answer is kept, or the error matters more
                        await store.end_call(owner)

    @contextlib.asynccontextmanager
    async def _telling(self, run: str, turn: int) -> AsyncIterator[Callable[[AnswerDelta], None] | None]:
        """Yield a function that takes the words of the answer as they arrive, if anyone may be watching."""
        store = self._host.store
        if not self._host.stream or not has_partial_answers(store):
            yield None
            return
        async with PartialAnswerWriter(store, run, turn) as writer:
            yield writer.tell

    # --- asking ---

    async def _load_view(self, run: str, reference: ModelReference) -> KeptView | None:
        if "view" not in reference:
            return None
        kept = await self._host.records.load_kept(f"{run}/view", reference["view"])
        return read_kept(f"a compressed view of run {run}", kept, KeptView.model_validate_json)

    async def _ask_in_turn(
        self, agent: Agent, reference: ModelReference, transcript: Transcript, view: KeptView | None
    ) -> TurnRecord:
        """Call the model; in an outage, try the possible models in turn until one answers.

        Raises:
            ApplicationError: no model has answered, and at least one may do so later.
            ModelRefusedError: none will answer.
        """
        run, turn, failures = reference["run"], reference["turn"], list[Exception]()
        for asked in _each_model(reference):
            try:
                async with self._telling(run, turn) as tell:
                    return await self._ask(agent, asked, transcript, view, tell)
            except (ModelRefusedError, ApplicationError) as error:
                if isinstance(error, ApplicationError) and error.type != names.MODEL_UNAVAILABLE:
                    raise
                failures.append(error)
        raise soonest(failures)

    async def _ask(
        self,
        agent: Agent,
        reference: ModelReference,
        transcript: Transcript,
        view: KeptView | None,
        tell: Callable[[AnswerDelta], None] | None,
    ) -> TurnRecord:
        """Get the next answer, and return the record of the turn, for storage."""
        decided = await self._answers.decided(reference)
        answer = None if decided is None else released(decided)
        if answer is not None:
            answered = await self._answers.release(agent, transcript, answer)
        else:
            await self._check_named(agent, reference)
            answered = await self._answers.ask(agent, reference, transcript, view, tell, decided)
        if answered.shorter is not None:
            # The newest messages will also be in the transcript, so the stored view ends before them.
            shorter = answered.shorter[: -len(answered.said)] if answered.said else answered.shorter
            kept = KeptView(seq=transcript.seq, messages=tuple(shorter))
            await self._host.store.save_reply(f"{reference['run']}/view", reference["turn"], kept.model_dump_json())
        message, context = answered.answer, answered.context
        gates, refused = await self._gates(agent, reference["run"], transcript, answered)
        tools, available = called_tools(self._host, agent, message.tool_calls or ())
        return TurnRecord(
            message=message,
            said=tuple(digest(one) for one in reference.get("say", ())) if answered.said else (),
            state=agent.write_state(context.state),
            key=turn_scope(transcript.session.key, transcript.seq + len(answered.said) + 1),
            session=transcript.session.id,
            agent_id=context.agent.id,
            user_id=context.user_id,
            tenant_id=context.tenant_id,
            view=None if answered.shorter is None else reference["turn"],
            gates=tuple(gates),
            refused=refused,
            tools=tools,
            available=available,
            epoch=self._host.records.epoch,
        )

    async def _gates(
        self, agent: Agent, run: str, transcript: Transcript, answered: Answered
    ) -> tuple[list[Question], dict[str, str]]:
        """Return the gates of a turn, and by call id the reasons why calls do not run."""
        message, context, session = answered.answer, answered.context, transcript.session
        if not message.tool_calls and answered.held is None:
            return [], {}
        asks = LoopState(loop=agent.loop, tools=agent.tool_map).replied(message).unasked
        refused = refused_by_guardrails(message)
        if not asks and answered.held is None:
            return [], refused
        whole = await self._host.store.load_messages(session.id) if transcript.after else transcript.messages
        spoke = [context.user_id, session.user_id, *(one.by for one in (*whole, *answered.said))]
        if answered.held is not None:
            number = transcript.seq + len(answered.said) + 1
            return [question_about(agent, answered.held, number, at=datetime.now(UTC), requesters=spoke)], {}
        place = CallPlace(
            agent=self._host.catalogue.agent().name,
            run=run,
            session=session.id,
            session_key=session.key,
            tenant_id=context.tenant_id,
            user_id=context.user_id,
        )
        gates, unasked = await find_gates(self._host, agent, asks, run, spoke, place, message.tripped or ())
        return gates, refused | unasked

    # --- keeping ---

    async def _keep(
        self, reference: ModelReference, transcript: Transcript, results: list[Append], record: TurnRecord
    ) -> ModelReply:
        """Keep the answer, and write it with the results before it: all or nothing."""
        run, turn, written = reference["run"], reference["turn"], record.model_dump_json()
        said = await transcript.in_context(split_heard(reference, record)[0])
        appends = [*results, _take_answer(reference, transcript, record, said)]
        try:
            append = partial(self._host.store.append_reply, appends, journal_key=run, turn=turn, reply=written)
            marked = partial(write_at_work, append, self._host.store, reference)
            write = write_in_sight(marked, reference, self._host.store_patience)
            ends = record.ends and self._host.catalogue.agent().on_complete is None
            if ends:  # with the answer, in one transaction
                kept, _ = await asyncio.gather(write, end_work(self._host.store, reference))
            else:
                kept = await write
        except SessionConflictError as error:  # a session whose run was overtaken or deleted does not continue
            await self._host.records.check_run(run)
            await check_conflict(self._host, reference, error)
            await retry_write(partial(self._host.store.save_reply, run, turn, written), tries=3)
            raise
        except BaseException:  # it was billed: the next attempt finds it
            await retry_write(partial(self._host.store.save_reply, run, turn, written), tries=3)
            raise
        if kept != written:  # another attempt was faster; its answer is the turn's
            return await self._write(
                reference, await Transcript.load(self._host, reference, after=transcript.after), kept
            )
        self._host.records.cache.records[run, turn] = record
        if said:
            await transcript.heard(said)
        return await self._reply(reference, transcript, record, said)

    async def _write(self, reference: ModelReference, transcript: Transcript, kept: str) -> ModelReply:
        """Write an answer that is already kept: the transcript has it, unless its writer died in between."""
        record = read_record(reference["run"], reference["turn"], kept)
        await transcript.commit(turn=reference["turn"] - 1)
        told = await transcript.in_context(split_heard(reference, record)[0])
        if len(told) < len(record.said):  # after a reset to a time before these messages: the run does not know them
            told = [one for one in await transcript.written_since() if one.role == "user"][: len(record.said)] or told
        await transcript.write(_take_answer(reference, transcript, record, told))
        return await self._reply(reference, transcript, record, told)

    async def _reply(
        self, reference: ModelReference, transcript: Transcript, record: TurnRecord, told: Sequence[Message]
    ) -> ModelReply:
        """Return the workflow's part of an answer."""
        reply, message = _told_beside(reference, transcript, record), record.message
        if record.is_held:
            self._host.records.cache.keep(transcript)
            return {**reply, **asked_of(record.gates, reference["run"], reference["turn"])}
        if message.usage is not None:
            reply["usage"] = message.usage.plain()
        if message.stop_reason is not None:
            reply["stop_reason"] = message.stop_reason
        reply.update(_beside_text(message))
        if message.tool_calls:
            if record.view == reference["turn"]:  # everything before the answer is in the view now
                transcript.shorten(len(told) + 1)
            self._host.records.cache.keep(transcript)
            if declared := await news(self._host, reference["run"], record):
                reply["declared"] = declared
            return {**reply, **_requested_calls(record, reference)}
        await transcript.prune()
        if message.tripped:
            reply["tripped"] = write_tripped(message.tripped[0])
            return {**reply, "text": cut(message.content, INLINE_BYTES)}
        return {**reply, **await final_reply(self._host.catalogue.agent(), message)}


def _each_model(reference: ModelReference) -> Iterator[ModelReference]:
    """Yield the reference for each model that is called in turn: only one, except in an outage."""
    if "models" not in reference:
        yield reference
        return
    plain = cast(ModelReference, {name: value for name, value in reference.items() if name != "model"})
    for model in reference["models"]:
        yield plain if model is None else {**plain, "model": model}


def _told_beside(reference: ModelReference, transcript: Transcript, record: TurnRecord) -> ModelReply:
    """Return the fields that a workflow gets with every answer, even a held one."""
    reply: ModelReply = {"seq": transcript.seq}
    if "models" in reference:
        reply["answered_by"] = record.message.model
    if record.view is not None:
        reply["view"] = record.view
    if untold := split_heard(reference, record)[1]:
        reply["untold"] = untold
    return reply


def _beside_text(message: Message) -> ModelReply:
    """Return what people see of an answer besides its text and calls, as far as a history should have it."""
    found: JSONObject = {}
    if message.reasoning is not None and (thoughts := message.reasoning.text):
        found["thoughts"] = thoughts if len(thoughts) <= THOUGHTS else thoughts[:THOUGHTS] + "…"
    for name, records in (("hosted", message.hosted), ("citations", message.citations)):
        if records:
            found[name] = [one.model_dump() for one in first_of(records, SOURCES)]
    return cast(ModelReply, found)


def _has_ended(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls


def _requested_calls(record: TurnRecord, reference: ModelReference) -> Asked:
    """Return the workflow's part of an answer that asks for calls."""
    calls, text = record.calls, record.message.content
    asked: Asked = {
        "calls": [(call.id, call.name, place, shown_arguments(call.arguments)) for place, call in enumerate(calls)]
    }
    if text:
        asked["text"] = text[:PREVIEW]
    if record.refused:
        asked["refused"] = dict(record.refused)
    return {**asked, **asked_of(record.gates, reference["run"], reference["turn"])} if record.gates else asked


def _take_answer(
    reference: ModelReference, transcript: Transcript, record: TurnRecord, told: Sequence[Message]
) -> Append:
    turn = reference["turn"]
    messages = told if record.is_held else [*told, record.message]
    held = held_by(activity.info().workflow_id or "", record.gates) if record.gates else ()
    return transcript.take(messages, key=str(turn), turn=turn, state=record.state, questions=held)


async def final_reply(agent: Agent, answer: Message) -> LastReply:
    """Return the workflow's part of a final answer: its text, and the output that is parsed from it."""
    text = answer.content
    final: LastReply = {"text": text}
    if size := size_over(text, INLINE_BYTES):
        final = {"text": cut(text, INLINE_BYTES), "size": size}
    if answer.unfit is not None:
        return {**final, "unfit": answer.unfit}
    if agent.output is None:
        return final
    if (problem := await output_problem(agent, text)) is not None:
        return {**final, "output_error": problem}
    return final if "size" in final else {**final, "output": read_json(unfenced(text))}
