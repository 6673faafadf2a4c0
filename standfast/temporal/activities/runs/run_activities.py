"""The activities around a run: hooks, results, its end, its rows on the board, exports, and agents of calls."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from standfast.agent_loop import unanswered
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import Checkpoint, Question, signed
from standfast.errors import SessionStoreError, StoreBehindError
from standfast.messages import Usage, cut
from standfast.runtime.call_ledger import has_started
from standfast.runtime.model_answers import cut_answers, noted_usage
from standfast.runtime.users_functions import call_users
from standfast.stores.protocol import has_waits
from standfast.stores.waits import Board
from standfast.temporal.activities.gates.open_gates import arguments_of, load_edit
from standfast.temporal.activities.gates.posted_messages import PostedMessages
from standfast.temporal.activities.sessions.session_marks import end_work, is_running
from standfast.temporal.activities.sessions.stored_outcomes import state_left, with_last_answer
from standfast.temporal.activities.sessions.transcripts import Transcript
from standfast.temporal.activities.tools.dependencies import run_with_deps
from standfast.temporal.activities.worker.activity_guards import Guard, is_given_up, json_activity
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.client.runs.ended_runs import cancelled_end, end_of, find_run
from standfast.temporal.wire import activity_types as types
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AgentEnd, Exported, ExportReference, LostReference
from standfast.temporal.wire.boards import ShowReference, wait_of
from standfast.temporal.wire.inputs import CHECKPOINT_BYTES, INLINE_BYTES, check_json
from standfast.temporal.wire.results import LOST, OTHER, receipted
from standfast.temporal.wire.snapshots import BegunState
from standfast.temporal.wire.turn_records import held_in
from standfast.time_limits import time_limit


class RunActivities:
    """Writes and ends the runs of a worker's agents, and waits for the agents that they call."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.start, self.commit, self.finish, self.attach]

    async def _transcript(self, reference: types.RunReference) -> Transcript:
        return await Transcript.load(self._host, await self._host.records.located(reference))

    @json_activity(names.START)
    async def start(self, reference: types.RunReference) -> BegunState | None:
        """Call `on_start`; return the agent's state if that changed it."""
        with Guard(self._host):
            transcript = await self._transcript(reference)
            agent = self._host.catalogue.agent()
            context = await transcript.context(agent)
            left = None if agent.state is None else await state_left(self._host, transcript.reference)
            if left is not None:  # it will be written with the results of those calls
                context.state = agent.read_state(left.text)
            before = agent.write_state(context.state)
            after = before if agent.on_start is None else await self._state_after(agent, agent.on_start, context)
            check_json(after, "the agent's state after on_start")
            if after == before and transcript.session.version:
                return None
            return after if left is None else (left.number, after)

    @json_activity(names.COMMIT)
    async def commit(self, reference: types.RunReference) -> int:
        """Write the results and the questions of a turn; return the number of the session's last message."""
        with Guard(self._host, beats=False):
            transcript = await self._transcript(reference)
            await transcript.commit(turn=reference["turn"], questions=reference["questions"])
            if not reference["questions"]:
                await transcript.ask_nothing(turn=reference["turn"])
            return receipted(reference, transcript.seq)

    @json_activity(names.FINISH)
    async def finish(self, reference: types.FinishReference) -> types.Finished:
        """Write the remaining results, call the hook for the end, and return the text of the last answer."""
        with Guard(self._host):
            return await self._finish(reference)

    async def _finish(self, reference: types.FinishReference) -> types.Finished:
        if (status := reference["status"]) in ("cancelled", "error"):
            why = None if status == "cancelled" else f"the run ended with {status}"
            reference = await with_last_answer(self._host, await self._host.records.located(reference), why)
        spent = await self._cut_off(reference) if status in ("cancelled", "error") else None
        beside: types.Finished = {"seq": 0, "response": ""}
        if spent is not None:
            beside["spent"] = spent.plain()
        if reference["status"] == "cancelled" and not reference["seq"]:  # nothing was written
            await end_work(self._host.store, reference)
            return beside
        try:
            turn, transcript = reference["turn"], await self._transcript(reference)
        except StoreBehindError:
            if reference["status"] != "cancelled":
                raise
            await end_work(self._host.store, await self._host.records.located(reference))
            return {**beside, "seq": reference["seq"]}  # nothing can be appended to a missing session
        questions = reference.get("questions", ())
        await transcript.commit(turn=turn, questions=questions)
        if spent is not None and transcript.seq:  # a run that was never answered leaves no session
            await transcript.count(spent, turn=turn)
        if not questions and any(one.is_held for one in transcript.session.questions or ()):
            await transcript.ask_nothing(turn=turn)  # a held answer cannot be decided on any more
        is_cancelled = reference["status"] == "cancelled"
        await self._say_the_rest(reference, transcript, questions, is_heard=not is_cancelled)
        if not is_cancelled:
            await transcript.end(reference["status"])
        await end_work(self._host.store, transcript.reference)
        # The last answer, regardless of later messages.
        answers = (message.content for message in reversed(transcript.messages) if message.role == "assistant")
        response = next(answers, "")
        return {**beside, "seq": transcript.seq, "response": cut(response, INLINE_BYTES)}

    async def _say_the_rest(
        self,
        reference: types.FinishReference,
        transcript: Transcript,
        questions: Sequence[Mapping[str, Any]],
        *,
        is_heard: bool,
    ) -> None:
        """Call the hook, and write the state that it leaves, with the messages that no model reads."""
        state = None
        if name := reference.get("hook"):
            agent = self._host.catalogue.agent()
            if (hook := getattr(agent, name)) is not None:
                context = await transcript.context(agent)
                state = await self._state_after(agent, hook, context)
        messages = await transcript.said() if is_heard else []
        if messages or (state is not None and state != transcript.session.state):
            end = transcript.take(
                messages,
                key=f"{reference['turn']}.{reference.get('part', 0)}/end",
                turn=reference["turn"],
                state=state,
                questions=tuple(Question(**question) for question in questions),
            )
            await transcript.write(end)

    async def _cut_off(self, reference: types.FinishReference) -> Usage | None:
        """Return what was used by answers that were cut off, if the run ends without another answer."""
        run, turn = reference["run"], reference["turn"] + 1
        if await self._host.store.load_reply(run, turn) is not None:
            return None  # it has counted them
        return await noted_usage(self._host.store, cut_answers(run, turn))

    async def _state_after(self, agent: Agent, hook: Callable[[AgentContext], object], context: AgentContext) -> str:
        """Call a hook, and return the resulting state. A state that cannot be stored is the hook's fault."""

        @wraps(hook)
        async def call(who: AgentContext) -> str:
            await call_users(hook, who)
            return agent.write_state(who.state)

        return str(await self._host.thread.run(run_with_deps(agent, call, context)))

    # --- agents that agents run ---

    @json_activity(names.ATTACH)
    async def attach(self, reference: types.AttachReference | types.LostReference) -> types.AgentEnd | None:
        """Return the result of an agent that was started by an earlier attempt at the same call, or by another call.

        For a call that an earlier run has left, return whether its agent can continue, once its session is at rest.
        """
        with Guard(self._host):
            if "child" in reference:
                return await lost_agent(self._host, await self._host.records.located(reference))
            client, child = activity.client(), reference["workflow_id"]
            try:
                described = await client.get_workflow_handle(child).describe()
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise
                return dict(OTHER)  # its retention has expired: its session has its work
            if await described.memo_value(names.ASKED_MEMO, default=None) != reference["asked"]:
                return dict(OTHER)
            if (called := await described.memo_value(names.CALLER_MEMO, default=None)) is not None:
                await _tell_caller(client, child, called)
            try:
                return await end_of(client, child)
            except asyncio.CancelledError:
                if is_given_up():
                    await cancelled_end(client, child)  # it ends before this call does
                raise
            except WorkflowFailureError as error:
                if isinstance(cause := error.cause, ApplicationError):  # as if the caller had waited for it itself
                    raise ApplicationError(
                        cause.message, *cause.details, type=cause.type, non_retryable=True
                    ) from error
                kind = f"Workflow{type(error.cause).__name__}"
                raise ApplicationError(str(error.cause), type=kind, non_retryable=True) from error


async def _tell_caller(client: Client, child: str, called: str) -> None:
    """Tell this activity's run whether the agent waits, since the agent reported it once, before the reset."""
    run, told = client.get_workflow_handle(str(activity.info().workflow_id)), "running"
    with suppress(RPCError, WorkflowQueryFailedError, TimeoutError):
        while True:  # until the state is unchanged after a report
            async with time_limit(_ANSWER):
                seen = await client.get_workflow_handle(child).query(names.STATUS)
            status = seen.get("status") if isinstance(seen, dict) else None
            if status == told or status not in ("running", "waiting", "paused"):
                return
            await run.signal(names.CALLED_STATUS, {"name": called, "status": status})
            told = status


_ANSWER = 3.0  # seconds within which a worker reports its run's activity
_LOOK_EVERY = 0.3  # seconds; an agent that was cancelled with its run ends soon


async def lost_agent(host: AgentHost, reference: LostReference) -> AgentEnd | None:
    """Return `LOST` if the agent of a call can continue; None if its work in an in-process run is unknown.

    While its workflow runs, this waits: the workflow was cancelled when the run that called it was closed.
    """
    record = await host.records.load_record(reference["run"], reference["turn"])
    position = reference.get("position", 0)
    call, child = record.calls[position], reference["child"]
    parent = await host.store.load_session(reference["session"])
    started_by = None if parent is None else parent.workflow_id
    while await _is_asked(started_by, call.id, reference["asked"]) or await _is_at_work(host, child):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY)
    session = await host.store.load_session(child)
    if session is None and await has_started(host.store, record.key, position, call.id):
        return None
    if session is not None and session.user_id not in (None, record.user_id):
        return None
    return dict(LOST)


async def _is_asked(parent: str | None, call_id: str, asked: str) -> bool:
    """Whether the child that the lost run started for the call still runs, even if its session is not open yet."""
    if parent is None:
        return False
    child = await find_run(activity.client(), names.child_id(parent, call_id))
    if child is None or await child.memo_value(names.ASKED_MEMO, default=None) != asked:
        return False
    return child.status is WorkflowExecutionStatus.RUNNING


async def _is_at_work(host: AgentHost, child: str) -> bool:
    client = activity.client()
    return any([await is_running(client, work) for work in await host.store.find_work(child)])


class BoardActivities:
    """Writes the boards of runs."""

    def __init__(self, host: AgentHost, posted: PostedMessages) -> None:
        self._host, self._posted = host, posted

    def all(self) -> list[Any]:
        return [self.show]

    @json_activity(names.SHOW)
    async def show(self, reference: ShowReference) -> list[str]:
        """Store exactly the items that a run waits for; return the keys of items missing from the store."""
        with Guard(self._host, beats=False):
            store, info = self._host.store, activity.info()
            if (why := self._host.misplaced.get(info.task_queue)) is not None:
                raise SessionStoreError(why)
            if (
                info.workflow_type in self._host.catalogue.agents
                or info.workflow_type in self._host.catalogue.pipelines
            ):
                await self._host.records.check_run(reference["run"])  # a user's workflow does not record its store
            if not has_waits(store):
                raise SessionStoreError(
                    f"The store {store!r:.80} of this worker has no board; see standfast.stores.Waits"
                )
            board = Board(
                namespace=info.namespace,
                workflow_id=info.workflow_id or "",
                run_id=info.workflow_run_id or "",
                first_run_id=reference["first_run"],
                journal_key=reference["run"],
                agent=info.workflow_type or "",
                task_queue=info.task_queue,
                at=datetime.fromisoformat(reference["at"]),
                session=reference.get("session"),
                tenant_id=reference.get("tenant_id"),
                user_id=reference.get("user_id"),
                parent=reference.get("parent"),
            )
            put = [wait_of(shown, key, board) for key, shown in reference["put"]]
            missing = await store.show_waits(board, put, reference["keep"])
            self._posted.look(reference["run"], board.workflow_id)
            return missing


class ExportActivities:
    """Exports the runs of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.export]

    @json_activity(names.EXPORT)
    async def export(self, reference: ExportReference) -> Exported:
        """Return the run as a checkpoint, or the reason why it cannot be exported."""
        with Guard(self._host, beats=False):
            transcript = await Transcript.load(self._host, await self._host.records.located(reference))
            asked = {question["tool_call_id"] for question in reference["questions"]}
            if "at_gate" not in reference and any(call.id not in asked for call in unanswered(transcript.messages)):
                await transcript.commit(turn=reference["turn"], questions=reference["questions"])
            located = await self._host.records.located(reference)
            questions = tuple([await self._whole(located, Question(**question)) for question in reference["questions"]])
            usage = reference.get("usage")
            said = await transcript.said()  # no answer was written with them yet
            made = Checkpoint(
                messages=(*transcript.messages, *said),
                iterations=reference["iterations"],
                usage=Usage() if usage is None else Usage(**usage),
                pending_tool_use_id=questions[0].tool_call_id if questions else None,
                questions=questions or None,
                exported_from=transcript.session.key,
            )
            key = self._host.checkpoint_key
            checkpoint = signed(made, self._host.catalogue.agent().name, key).model_dump(mode="json")
            if (size := len(to_json(checkpoint))) > CHECKPOINT_BYTES:
                error = f"export: the run is {size:,} bytes, more than {CHECKPOINT_BYTES:,}; read it from the store"
                return {"error": error, "seq": transcript.seq}
            return {"checkpoint": checkpoint, "seq": transcript.seq}

    async def _whole(self, reference: ExportReference, question: Question) -> Question:
        """Return a gate with the arguments, or the held content, that are too large for a history."""
        if question.gate is None:
            return question
        run = reference["run"]
        record = await self._host.records.load_record(run, reference["turn"])
        if question.is_held:
            return held_in(record, question.gate)
        approvals = [dict(one) for one in question.gate["approvals"]]
        for one in approvals:
            if one.get("edit") is not None:
                one["edit"] = await load_edit(self._host, run, one["edit"]["digest"])
        arguments = arguments_of(record, str(question.tool_call_id))
        return question.model_copy(update={"gate": {**question.gate, "approvals": approvals, "arguments": arguments}})
