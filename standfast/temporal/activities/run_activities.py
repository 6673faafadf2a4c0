"""Calls the hooks of an agent's run, writes its results, ends it, and waits for the agents of calls."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from standfast.agents import Agent, AgentContext
from standfast.checkpoints import Question
from standfast.errors import StoreBehindError
from standfast.messages import cut
from standfast.runtime.call_ledger import has_started
from standfast.runtime.users_functions import call_users
from standfast.temporal.activities.activity_guards import Guard, is_given_up
from standfast.temporal.activities.agent_host import AgentHost
from standfast.temporal.activities.dependencies import run_with_deps
from standfast.temporal.activities.json_activities import json_activity
from standfast.temporal.activities.session_marks import end_work, is_running
from standfast.temporal.activities.stored_outcomes import state_left, with_last_answer
from standfast.temporal.activities.transcripts import Transcript
from standfast.temporal.client.ended_runs import cancelled_end, end_of, find_run
from standfast.temporal.wire import activity_types as types
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AgentEnd, LostReference
from standfast.temporal.wire.limits import INLINE_BYTES, check_json
from standfast.temporal.wire.results import LOST, OTHER, receipted
from standfast.temporal.wire.snapshots import BegunState
from standfast.time_limits import time_limit


class RunActivities:
    """Writes and ends the runs of a worker's agents, and waits for the agents that they call."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.start, self.commit, self.finish, self.attach]

    async def _transcript(self, reference: types.RunReference) -> Transcript:
        return await Transcript.load(self._host, await self._host.located(reference))

    @json_activity(names.START)
    async def start(self, reference: types.RunReference) -> BegunState | None:
        """Call `on_start`; return the agent's state if that changed it."""
        with Guard(self._host):
            transcript = await self._transcript(reference)
            agent = self._host.agent()
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
            reference = await with_last_answer(self._host, await self._host.located(reference), why)
        if reference["status"] == "cancelled" and not reference["seq"]:  # nothing was written
            await end_work(self._host.store, reference)
            return {"seq": 0, "response": ""}
        try:
            turn, transcript = reference["turn"], await self._transcript(reference)
        except StoreBehindError:
            if reference["status"] != "cancelled":
                raise
            await end_work(self._host.store, await self._host.located(reference))
            return {"seq": reference["seq"], "response": ""}  # nothing can be appended to a missing session
        questions = reference.get("questions", ())
        await transcript.commit(turn=turn, questions=questions)
        if not questions and any(one.is_held for one in transcript.session.questions or ()):
            await transcript.ask_nothing(turn=turn)  # a held answer cannot be decided on any more
        state = None
        if name := reference.get("hook"):
            agent = self._host.agent()
            if (hook := getattr(agent, name)) is not None:
                context = await transcript.context(agent)
                state = await self._state_after(agent, hook, context)
        messages = [] if reference["status"] == "cancelled" else await transcript.said()
        if messages or (state is not None and state != transcript.session.state):
            end = transcript.take(
                messages,
                key=f"{turn}.{reference.get('part', 0)}/end",
                turn=turn,
                state=state,
                questions=tuple(Question(**question) for question in questions),
            )
            await transcript.write(end)
        if reference["status"] != "cancelled":
            await transcript.end(reference["status"])
        await end_work(self._host.store, transcript.reference)
        # The last answer, regardless of later messages.
        answers = (message.content for message in reversed(transcript.messages) if message.role == "assistant")
        response = next(answers, "")
        return {"seq": transcript.seq, "response": cut(response, INLINE_BYTES)}

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
                return await lost_agent(self._host, await self._host.located(reference))
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
    record = await host.load_record(reference["run"], reference["turn"])
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
