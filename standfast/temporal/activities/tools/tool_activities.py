"""The activity of a tool (claim, run the handler, record, report), and the activity that settles a lost call.

A handler may run an agent, as a separate workflow that the same call finds again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar, cast

from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, WorkflowAlreadyStartedError

from standfast.agent_loop import ToolState, agent_failure, cancelled, cancelled_itself, verify_cut_off, with_edit
from standfast.agents import Agent, AgentContext
from standfast.errors import StandfastError
from standfast.messages import JSONObject, ToolCall, Usage, read_json
from standfast.runtime.call_ledger import (
    CONTRADICTED,
    hash_of,
    last_dispatch,
    read_result,
    record_found,
    state_of,
    with_answer,
    within_row,
)
from standfast.runtime.child_agents import AskedAgents, answer_of, check_depth, check_sampler, child_session
from standfast.runtime.model_answers import UsageNotes, called_agents, cut_answers, noted_usage
from standfast.runtime.session_states import may_run
from standfast.runtime.tasks import retry_write
from standfast.runtime.users_functions import refused_in_time, run_bounded, verified
from standfast.stores.protocol import DurableStore, LedgerEntry, session_id_of, session_key_of
from standfast.temporal.activities.gates.open_gates import arguments_of, load_edit
from standfast.temporal.activities.sessions.session_marks import claim_if_lost, finish_call
from standfast.temporal.activities.sessions.stored_outcomes import state_before, strictest
from standfast.temporal.activities.tools.dependencies import call_with_deps, context_of_turn, with_step_deps
from standfast.temporal.activities.worker.activity_guards import Guard, is_given_up, json_activity, write_in_sight
from standfast.temporal.activities.worker.agent_host import AgentHost, heartbeat_of
from standfast.temporal.activities.worker.dead_workers import become_known
from standfast.temporal.client.runs.ended_runs import cancelled_end, end_of
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import CallReference, LetThrough, SettleReference, Verdict, WrittenOutcome
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.outcomes import (
    outcome_of_result,
    outcome_of_terminal_error,
    previewed,
    read_outcome,
    reported,
    result_usage,
    write_outcome,
)
from standfast.temporal.wire.snapshots import GRACE, TIMEOUT, ToolFacts
from standfast.temporal.wire.turn_records import TurnRecord, gate_of
from standfast.tools import Failed, Identity, Outcome, Tool, ToolContext, Unknown
from standfast.tools.calls import call_key, idempotency_key
from standfast.tools.tool import NOT_FOUND_YET

_Finder = Literal["ledger", "verify", "person"]  # of the outcome of a lost call

T = TypeVar("T")


@dataclass(slots=True)
class Invocations:
    """The agents that one tool call runs; used from the handlers' loop, while the client belongs to the worker's loop.

    Args:
        sampler: answers for the model of the agent that makes the call; None if none of its tools may ask.
        context: of the run, as JSON.
        left: the tokens that the run could use when the call was dispatched; None without a limit.
    """

    _loop: asyncio.AbstractEventLoop
    _client: Client
    _store: DurableStore
    _info: activity.Info
    _call_id: str
    _record: TurnRecord
    _depth: int
    _sampler: Agent | None
    _context: str | None
    _left: int | None
    _asked: AskedAgents = field(default_factory=AskedAgents)
    _notes: UsageNotes = field(init=False)
    spent: Usage | None = None

    def __post_init__(self) -> None:
        self._notes = UsageNotes(self._store, called_agents(self._record.key, self._call_id))

    async def invoke(
        self,
        agent: Agent,
        *,
        message: str,
        instance_id: str | None = None,
        user_id: str | Identity | None = Identity.INHERITED,
        tenant_id: str | Identity | None = Identity.INHERITED,
        context: Any = None,
    ) -> dict[str, str]:
        """Run an agent to its end and return `{"response": text}`; see `AgentInvoker`."""
        check_depth(agent, self._depth)
        written = agent.write_context(context)
        given = AgentInput(
            message=message,
            context=None if written is None else read_json(written),
            user_id=Identity.of(user_id, self._record.user_id),
            tenant_id=Identity.of(tenant_id, self._record.tenant_id),
            instance_id=instance_id,
            depth=self._depth + 1,
            asks_caller=True,
        )
        return await self._run(agent, given, *(() if written is None else (written,)))

    async def ask_model(self, message: str, *, max_tokens: int) -> dict[str, str]:
        """Get an answer from the model of the call's agent; see `ModelAsker`."""
        left = None if self._left is None else self._left - (0 if self.spent is None else self.spent.total_tokens)
        agent = check_sampler(self._sampler, left)
        check_depth(agent, self._depth)
        given = AgentInput(
            message=message,
            context=None if self._context is None else read_json(self._context),
            user_id=self._record.user_id,
            tenant_id=self._record.tenant_id,
            depth=self._depth + 1,
            max_answer_tokens=max_tokens,
            asks_caller=True,
        )
        return {**await self._run(agent, given, max_tokens), "model": agent.model or agent.name}

    async def _run(self, agent: Agent, given: AgentInput, *more: object) -> dict[str, str]:
        asked, number, is_first = self._asked.name(self._record.key, self._call_id, agent.name, given, *more)
        # The first agent of a call has the call's own name. Other agents, and a retry, get a digest of their question
        # in their names.
        name = self._call_id if is_first else f"{self._call_id}.{asked}.{number}"
        handle, session = await self._there(self._start(agent.name, name, asked, given))
        try:
            result = await self._there(_result(self._client, agent.name, handle))
        except asyncio.CancelledError:
            await self._there(cancelled_end(self._client, handle.id))  # it ends before this call does
            self._count(await self._there(self._usage_of(session, handle)))
            raise
        except StandfastError:
            self._count(await self._there(self._usage_of(session, handle)))
            raise
        self._count(result_usage(result))
        return answer_of(outcome_of_result(agent.name, result))

    def _count(self, spent: Usage | None) -> None:
        self.spent = self.spent if spent is None else spent + self.spent

    async def _usage_of(self, session: str, handle: WorkflowHandle[Any, Any]) -> Usage | None:
        """Return the usage of an agent without a result."""
        kept = await self._store.load_session(session)
        if kept is not None:
            return kept.usage
        # Its first answer may have been cut off.
        return await noted_usage(self._store, cut_answers((await handle.describe()).run_id, 1))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Await on the worker's loop, to which the client belongs."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _start(
        self, agent: str, name: str, asked: str, given: AgentInput
    ) -> tuple[WorkflowHandle[Any, Any], str]:
        """Return the run of an agent, and the key of its session."""
        session_id = child_session(session_id_of(self._record.session), f"{name}.{asked}")
        plain = {**given.plain(), "session_id": session_id}
        workflow_id = names.child_id(self._info.workflow_id or "", name)
        # A run of the session under another workflow id may have called this agent before; the agent's session tells.
        there = await self._store.load_session(session := session_key_of(given.tenant_id, session_id))
        # Its usage counts even if the call is lost.
        await self._notes.session(session)
        if there is not None and there.workflow_id not in (None, workflow_id):
            return self._client.get_workflow_handle(str(there.workflow_id)), session
        try:
            handle: WorkflowHandle[Any, Any] = await self._client.start_workflow(
                agent,
                plain,
                id=workflow_id,
                task_queue=self._info.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={names.AGENT_MEMO: agent, names.ASKED_MEMO: asked},
            )
            return handle, session
        except WorkflowAlreadyStartedError:
            handle = self._client.get_workflow_handle(workflow_id)
            if await (await handle.describe()).memo_value(names.ASKED_MEMO, default=None) == asked:
                return handle, session
            # An earlier attempt began with another question: this is a different agent, with a different name.
            return await self._start(agent, f"{self._call_id}.{asked}.0", asked, given)


async def _result(client: Client, agent: str, handle: WorkflowHandle[Any, Any]) -> JSONObject:
    try:
        return await end_of(client, handle.id)
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == names.TERMINAL_ERROR:
            raise outcome_of_terminal_error(error.cause.message, error.cause.details).error from error
        raise StandfastError(agent_failure(agent, str(error.cause))) from error


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a call in the ledger, and its part of the turn's record."""

    reference: SettleReference
    record: TurnRecord
    call: ToolCall

    @property
    def scope(self) -> str:
        return self.record.key

    @property
    def position(self) -> int:
        return int(self.reference.get("position", 0))

    @property
    def dispatch(self) -> int:
        """The last dispatch that the run knows of."""
        return int(self.reference.get("dispatch", 1))

    def key(self, dispatch: int) -> str:
        return call_key(self.position, self.call.id, dispatch)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a call.

    Args:
        who, written: the inputs of the agent's `deps`: its context without the run's, which is still JSON.
        state: the agent's state, as the call finds it.
        approved: who has approved it, as in `Turn.approved`; None if no one was asked.
        facts: the tool's facts, which decide how it runs; see `strictest`.
        is_swapped: whether the tool's input type has changed since it was called.
    """

    agent: Agent
    tool: Tool[..., Any]
    call: ToolCall
    context: ToolContext
    who: AgentContext
    written: str | None
    place: Place
    invocations: Invocations
    approved: LetThrough | None
    facts: ToolFacts
    is_swapped: bool
    state: ToolState

    async def refused(self) -> Failed | None:
        """Return the outcome of a call whose arguments, for an earlier version of the tool, do not fit this one."""
        approved, seconds = self.approved is not None, self.facts.timeout - GRACE
        return await refused_in_time(self.tool, self.call.arguments, approved=approved, seconds=seconds)

    @property
    def approved_as(self) -> str | None:
        """The fingerprint of the tool that people have approved, as `Tool.attempt` expects it."""
        if self.approved is None:
            return None
        gate = gate_of(self.place.record, self.call.id) or {}
        return str(gate.get("fingerprint", ""))

    def run_in_time(
        self, ask: Callable[..., Coroutine[Any, Any, Outcome | None]], *, has_begun: bool = False
    ) -> Coroutine[Any, Any, Outcome | None]:
        """Return a coroutine that runs the tool's `attempt`, or its `verify`, within its time limit."""

        seconds = self.facts.timeout - GRACE

        async def call(context: ToolContext, left: float) -> Outcome | None:
            return await run_bounded(
                ask,
                self.tool,
                self.facts,
                self.call.arguments,
                context,
                state=self.state,
                limit=self.agent.loop.max_message_bytes,
                seconds=seconds,
                left=left,
            )

        who, written, facts = self.who, self.written, self.facts
        return call_with_deps(self.agent, who, written, call, self.context, facts, seconds=seconds, has_begun=has_begun)

    def with_note_of_edit(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a note to the model if people have edited the call's arguments."""
        if self.approved is None or "edit" not in self.approved or isinstance(self.call.arguments, str):
            return outcome
        editor = self.approved.get("editor", " and ".join(self.approved["by"]))  # an earlier version kept only these
        return with_edit(outcome, editor, self.call.arguments, self.agent.loop.max_message_bytes)


class ToolActivities:
    """Runs the tools of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.settle, *(self.activity(name) for name in self._host.catalogue.tools)]

    def activity(self, name: str) -> Any:
        async def run_tool(reference: CallReference) -> WrittenOutcome:
            with Guard(self._host):
                return await self.run(reference, activity.info().attempt)

        return json_activity(name)(run_tool)

    async def _place(self, reference: SettleReference) -> Place:
        reference = await self._host.records.located(reference)
        run = reference["run"]
        record = await self._host.records.record_of(reference)
        call = record.calls[reference.get("position", 0)]
        approved = reference.get("approved")
        if approved is not None:
            arguments = arguments_of(record, call.id)
            if "edit" in approved:
                arguments = await load_edit(self._host, run, approved["edit"])
            if arguments is not None:
                call = ToolCall(id=call.id, name=call.name, arguments=arguments)
        return Place(reference, record, call)

    async def _attempt(self, place: Place, number: int | None = None) -> Attempt:
        """Return the attempt that runs a call, or verifies it, if the agent and the tool are here."""
        record, call, reference = place.record, place.call, place.reference
        agent, tool = self._host.catalogue.caller(record.message.agent), self._host.catalogue.tool(call.name)
        agent = await with_step_deps(self._host, agent, reference, record)
        loop, info = asyncio.get_running_loop(), activity.info()
        first = self._host.catalogue.agents.get(info.workflow_type or "")  # a pipeline is not there
        written = await self._host.records.load_context(agent, reference["run"], reference.get("turn"))
        invocations = Invocations(
            loop,
            activity.client(),
            self._host.store,
            info,
            call.id,
            record,
            reference.get("depth", 0),
            None if first is None else first.samplers.get(agent.name),
            written,
            reference.get("tokens_left"),
        )
        context = ToolContext(
            agent_name=agent.name,
            agent_id=record.agent_id,
            session_id=session_id_of(record.session),
            tool_call_id=call.id,
            idempotency_key=idempotency_key(place.scope, place.position, call.id),
            user_id=record.user_id,
            tenant_id=record.tenant_id,
            attempt=info.attempt if number is None else number,
            agents=invocations,
            heartbeat=heartbeat_of(loop),
        )
        who = context_of_turn(agent, record)
        then = record.tools.get(call.name)
        is_swapped = then is not None and then.schema_digest != tool.schema_digest
        facts = strictest(then, self._host.catalogue.facts[tool.name])
        approved = reference.get("approved")
        state = ToolState(agent, await state_before(self._host, agent, reference, record))
        return Attempt(agent, tool, call, context, who, written, place, invocations, approved, facts, is_swapped, state)

    # --- running ---

    async def run(self, reference: CallReference, number: int) -> WrittenOutcome:
        """Run a call, and return the report on it.

        Args:
            number: of the attempt.
        """
        place = await self._place(cast(SettleReference, reference))
        attempt, store, owner = await self._attempt(place, number), self._host.store, self._host.identity.owner()
        key = place.key(place.dispatch)
        await become_known(self._host)
        claim = partial(
            store.claim,
            place.scope,
            key,
            owner=owner,
            arguments_hash=hash_of(attempt.call),
            running=self._host.identity.running(owner),
        )
        entry = await retry_write(claim, tries=1)
        if entry.owner != owner:
            known = await self._known(attempt, entry, owner)
            if known is not None:
                return reported(known, key)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The cancelled run, or one that dispatches the call again, finds that it has not started.
            await retry_write(partial(store.abandon, place.scope, key, owner=owner), tries=3)
            raise _not_ours(place, "was given up before it started")
        refused = await self._host.thread.run(attempt.refused()) if attempt.is_swapped else None
        outcome = await self._handle(attempt) if refused is None else refused
        if isinstance(outcome, Failed) and number < attempt.facts.attempts:
            delay = attempt.tool.next_delay(outcome, number)
            if delay is not None:
                await store.end_call(owner)
                raise ApplicationError(
                    outcome.error,
                    type=names.RETRYABLE,
                    next_retry_delay=timedelta(seconds=delay),
                    category=ApplicationErrorCategory.BENIGN,  # expected: the run's log has a line, without a traceback
                )
        write = partial(write_in_sight, reference=reference, patience=self._host.store_patience)
        written = await self._finish(place, key, owner, outcome, attempt.invocations.spent, write=write)
        if written is None:
            raise _not_ours(place, "was settled while it ran")
        return reported(written, key)

    async def _known(self, attempt: Attempt, entry: LedgerEntry, owner: str) -> WrittenOutcome | None:
        """Return the outcome of another attempt; None if this attempt may run, and then owns the call."""
        store, place = self._host.store, attempt.place
        entry = await with_answer(store, place.scope, place.key(place.dispatch), entry)
        if entry.result is not None:
            await store.end_call(owner)
            return read_result(entry)
        if entry.state == "claimed" and attempt.facts.safe_to_retry:
            entry = await store.take_over(place.scope, place.key(place.dispatch), owner=owner)
            if entry.owner == owner:
                return None
        await store.end_call(owner)
        if entry.result is not None:
            return read_result(entry)
        raise _not_ours(place, f"is {entry.state} by another attempt; it is not run")

    async def _handle(self, attempt: Attempt) -> Outcome:
        is_safe = attempt.facts.safe_to_retry
        try:
            outcome = await self._host.thread.run(
                attempt.run_in_time(partial(attempt.tool.attempt, approved=attempt.approved_as, safe_to_retry=is_safe)),
                seconds=attempt.facts.timeout,
            )
            assert outcome is not None
        except TimeoutError:  # it may run for ever: this is settled as if its worker had died
            why = f"its handler has not ended within {attempt.facts.timeout:g} s, and ignores cancellation"
            raise ApplicationError(why, type=names.TIMED_OUT) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            cancels = 0 if task is None else task.cancelling()
            if not cancels:
                outcome = cancelled_itself(attempt.facts)
            elif is_given_up():
                return cancelled(attempt.facts)
            elif is_safe:
                raise
            else:  # a second cancel abandons a plain function
                outcome = Unknown("its worker was cut off while it ran", cut_off=True, still_runs=cancels > 1)
        return attempt.with_note_of_edit(await verified(attempt.tool, outcome, partial(self._verify_now, attempt)))

    async def _verify_now(self, attempt: Attempt) -> Outcome | None:
        try:
            return await self._ask_verify(attempt)
        except asyncio.CancelledError:
            return Unknown("verify was cancelled")

    async def _ask_verify(self, attempt: Attempt) -> Outcome | None:
        ask = attempt.run_in_time(attempt.tool.ask_whether_it_happened, has_begun=True)
        try:
            return await self._host.thread.run(ask, seconds=attempt.facts.timeout)
        except TimeoutError:
            return verify_cut_off(attempt.facts.timeout, still_runs=True)

    async def _finish(
        self,
        place: Place,
        key: str,
        owner: str,
        outcome: Outcome,
        spent: Usage | None = None,
        *,
        write: Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]],
    ) -> WrittenOutcome | None:
        """Record the outcome of a call, and return it; None if this attempt no longer owns the call."""
        written = write_outcome(within_row(outcome, place.call.name, self._host.store))
        if spent is not None:
            written["spent"] = spent.plain()
        text, state = to_json(written).decode(), state_of(written)
        store, scope, digest = self._host.store, place.scope, hash_of(place.call)
        finish = partial(finish_call, store, scope, key, owner=owner, arguments_hash=digest, state=state, result=text)
        if not await write(finish):
            return None
        self._host.records.cache.keep_result(place.scope, key, written, len(text))
        return written

    # --- settling ---

    @json_activity(names.SETTLE)
    async def settle(self, reference: SettleReference) -> Verdict:
        """Return the verdict on a call: its outcome, `{"claimed": true}`, or neither if the call must be run.

        The verdict includes the number of the call's last dispatch, possibly another run's; the next dispatch has the
        next number. Any worker can read the ledger; only a `verify` needs a worker with the tool.
        """
        with Guard(self._host):
            return await self.look_up(reference)

    async def look_up(self, reference: SettleReference) -> Verdict:
        """Return the same as `settle`."""
        place = await self._place(reference)
        while (found := await self._settled(place)) is None:
            pass
        return found

    async def _settled(self, place: Place) -> Verdict | None:
        """Return the verdict; None if the entry was changed in the meantime."""
        store, reference = self._host.store, place.reference
        last = await last_dispatch(store, place.scope, place.position, place.call.id)
        if last < place.dispatch:
            await claim_if_lost(self._host, place.record, place.position, place.dispatch)
            last = await last_dispatch(store, place.scope, place.position, place.call.id)
        dispatch = max(last, place.dispatch)
        entry = await store.settle(place.scope, key := place.key(dispatch))
        entry = await with_answer(store, place.scope, key, entry)
        if "given" in reference:
            # A handler that still runs is then too late.
            spent = await noted_usage(store, called_agents(place.scope, place.call.id))
            return await self._record(place, dispatch, entry, read_outcome(reference["given"]), spent, by="person")
        if "not_happened" in reference:
            return await self._give_up(place, dispatch, entry)
        asks = self._asks_verify(place)
        if asks or any(reference.get(name) for name in ("wait", "recovering")):
            entry = await self._wait(place, dispatch, entry)
        if entry.state == "abandoned":
            return {"dispatch": dispatch}
        if entry.result is not None:
            return _verdict(read_result(entry), dispatch, "ledger")
        return await self._verified(place, dispatch, entry, asks=asks)

    async def _give_up(self, place: Place, dispatch: int, entry: LedgerEntry) -> Verdict | None:
        """Record a person's statement that a call has not happened: any later run may dispatch it.

        An existing result stays.
        """
        if entry.result is not None:
            known = read_result(entry)
            if not isinstance(read_outcome(known), Unknown):
                return _verdict(known, dispatch, "ledger")
            dispatch += 1
            entry = await self._host.store.settle(place.scope, place.key(dispatch))
        elif entry.state == "claimed":
            entry = await self._host.store.abandon(place.scope, place.key(dispatch), owner=str(entry.owner))
        return {"dispatch": dispatch} if entry.state == "abandoned" else None

    async def _wait(self, place: Place, dispatch: int, entry: LedgerEntry) -> LedgerEntry:
        """Wait for an attempt that may still run: until its worker is known to be dead, or its time has passed."""
        store, facts = self._host.store, self._host.catalogue.facts.get(place.call.name)
        longest = TIMEOUT if facts is None else facts.timeout
        begun = datetime.now(UTC)
        while entry.state == "claimed":
            age = (datetime.now(UTC) - (entry.claimed_at or begun)).total_seconds()
            if age > longest or not await may_run(store, entry.owner, self._host.identity.scope):
                break
            await asyncio.sleep(0.2)
            entry = await store.settle(place.scope, place.key(dispatch))
        return entry

    def _asks_verify(self, place: Place) -> bool:
        """Whether a lost call is verified by its tool, which may have had no `verify` yet when the run began."""
        today = self._host.catalogue.tools.get(place.call.name)
        has_caller = activity.info().workflow_type in (*self._host.catalogue.agents, *self._host.catalogue.pipelines)
        return bool(place.reference.get("verify")) or (today is not None and today.verify is not None and has_caller)

    async def _verified(self, place: Place, dispatch: int, entry: LedgerEntry, *, asks: bool) -> Verdict | None:
        today = self._host.catalogue.tools.get(place.call.name)
        unknown: Verdict = {"claimed": True, "dispatch": dispatch}
        spent = await noted_usage(self._host.store, called_agents(place.scope, place.call.id))
        if spent is not None:
            unknown["spent"] = spent.plain()
        if today is not None and not today.safe_to_retry:
            unknown["at_most_once"] = True
        if not asks:
            return unknown
        attempt = await self._attempt(place)
        if attempt.tool.verify is None or attempt.facts.safe_to_retry:
            return unknown
        outcome = await self._ask_verify(attempt)
        if outcome is None and place.reference.get("timed_out"):
            return {**unknown, "reason": f"its timeout passed while it ran; {NOT_FOUND_YET}"}
        if isinstance(outcome, Unknown):
            return {**unknown, "reason": outcome.reason}
        if outcome is not None:
            return await self._record(place, dispatch, entry, attempt.with_note_of_edit(outcome), spent, by="verify")
        # The entry is released before the call runs again: its owner then records nothing, and only one finder runs it.
        key = place.key(dispatch)
        now = await self._host.store.abandon(place.scope, key, owner=str(entry.owner))
        if now.state == "claimed":  # by another check, which found that it had happened, and has not recorded it yet
            return {**unknown, "reason": CONTRADICTED}
        return {"dispatch": dispatch} if now.state == "abandoned" else None

    async def _record(
        self, place: Place, dispatch: int, entry: LedgerEntry, outcome: Outcome, spent: Usage | None, *, by: _Finder
    ) -> Verdict:
        """Record an outcome of a call that is not from its handler, unless it has one; return the one that counts.

        Args:
            spent: by agents that the call has run.
        """
        store, owner = self._host.store, self._host.identity.owner()
        written = write_outcome(within_row(outcome, place.call.name, store))
        if spent is not None:
            written["spent"] = spent.plain()
        known, running = (dispatch, entry), self._host.identity.running(owner)
        record = partial(record_found, store, place.scope, place.position, place.call, known, written)
        dispatch, now = await retry_write(partial(record, owner=owner, running=running), tries=3)
        if now.result is None:
            now = await self._wait(place, dispatch, now)
        if now.result is None:
            return {"claimed": True, "dispatch": dispatch, "reason": CONTRADICTED}
        is_ours = entry.result is None and read_result(now) == written
        return _verdict(read_result(now), dispatch, by if is_ours else "ledger")


def _verdict(written: WrittenOutcome, dispatch: int, by: _Finder) -> Verdict:
    return cast(Verdict, {**previewed(written), "dispatch": dispatch, "found_by": by})


def _not_ours(place: Place, why: str) -> ApplicationError:
    text = f"Call {place.key(place.dispatch)} of {place.scope} {why}"
    return ApplicationError(text, type=names.CALL_NOT_OURS, non_retryable=True)
