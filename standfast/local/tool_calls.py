"""Carries out tool calls in this process, with retries and timeouts, and through a cancel; and runs called agents."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from standfast.agent_loop import (
    CallTools,
    Gate,
    LoopState,
    Settled,
    ToolState,
    agent_outcome,
    cancelled,
    cancelled_itself,
    failed_for_good,
    not_found,
    not_started,
    result_message,
    said_by_agent,
    with_edit,
)
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import CheckpointKey, RunResult
from standfast.errors import SessionNotFoundError
from standfast.events import Event, QuestionAsked, ToolEnded, ToolOutcome, ToolStarted
from standfast.llm import LLM
from standfast.messages import ToolCall, Usage
from standfast.runtime.call_ledger import Fence, within_row
from standfast.runtime.child_agents import (
    AskedAgents,
    answer_of,
    call_digest,
    check_depth,
    check_sampler,
    child_session,
    session_of_call,
)
from standfast.runtime.inputs import Handlers
from standfast.runtime.model_answers import UsageNotes
from standfast.runtime.tasks import Cancellation
from standfast.runtime.users_functions import refused_in_time, run_bounded, verified
from standfast.stores.protocol import AgentStore, Session, session_key_of
from standfast.tools import Asked, Failed, Identity, Outcome, Tool, ToolContext, Unknown


class ToolCalls:
    """The calls of one turn, and the action that decides what to do with them.

    Args:
        context: makes the context of an attempt.
        fence: crossed before a call runs that may have run before.
        emit: called at every start and end; None without listeners.
        store: stores the results.
        agent_state: changed by the calls, and never stored before their results.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool[..., Any]],
        state: LoopState,
        action: CallTools,
        context: Callable[[ToolCall, int], ToolContext],
        fence: Fence,
        emit: Callable[[Event], None] | None,
        store: AgentStore | None,
        agent_state: ToolState,
    ) -> None:
        self.agent_state = agent_state
        self._tools = tools
        self._store = store
        self._state = state
        self._action = action
        self._context = context
        self._fence = fence
        self._emit = emit
        self._outcomes: dict[str, Outcome] = {call.id: outcome for call, outcome in action.settled}
        self.begun: set[str] = set()  # ids of calls that may have run
        self._stopped_by: str | None = None

    def outcomes(self) -> list[Settled]:
        """Return the outcome of every call of the turn, in call order, including calls that were not started."""
        recovering, why = self._action.recovering, self._stopped_by
        outcomes = {
            call.id: not_started(self._tools.get(call.name), recovering=recovering, why=why)
            for call in self._state.open_calls
        } | self._outcomes
        return [(call, outcomes[call.id]) for call in self._state.open_calls]

    async def run(self) -> None:
        """Carry out the action. Even if this is cancelled, `outcomes()` returns the outcome of each call."""
        recovering = self._action.recovering
        for batch in self._action.batches:
            if self._stopped_by is not None:
                return
            if len(batch) == 1:
                await self._call(batch[0], recovering)
            else:
                await self._together(batch, recovering)

    async def _together(self, batch: tuple[ToolCall, ...], recovering: bool) -> None:
        slots = asyncio.Semaphore(self._state.loop.max_tool_concurrency)

        async def one(call: ToolCall) -> None:
            async with slots:
                if self._stopped_by is None:
                    await self._call(call, recovering)

        tasks = {asyncio.create_task(one(call)) for call in batch}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Each is cancelled once, then awaited: a plain function among them ends in its own time.
            unfinished = {task for task in tasks if not task.done()}
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        for task in tasks:
            task.result()

    async def _call(self, call: ToolCall, recovering: bool) -> None:
        cancellation = Cancellation()
        tool = self._tools.get(call.name)
        gate = self._state.verdict(call)
        if gate is not None:
            call = ToolCall(id=call.id, name=call.name, arguments=gate.arguments if gate.edit is None else gate.edit)
        if self._emit is not None:
            edited = (
                {} if gate is None or gate.edit is None else {"edited_by": gate.editor or "", "before": gate.arguments}
            )
            self._emit(ToolStarted(call, **edited))
        self._outcomes[call.id] = cancelled(tool)  # the outcome until more is known, whatever interrupts this
        try:
            if tool is None:
                outcome: Outcome = not_found(call.name, self._tools)
            else:
                outcome = await self._settle(tool, call, gate, recovering, cancellation)
        except asyncio.CancelledError:
            if cancellation.requested():
                raise
            outcome = cancelled_itself(tool)
        outcome = within_row(outcome, call.name, self._store)
        self._outcomes[call.id] = outcome
        self.agent_state = self.agent_state.after(outcome)
        if self._state.stops_at(outcome):
            self._stopped_by = failed_for_good(call)
        if self._emit is not None:
            self._tell(self._emit, call, outcome)
        if cancellation.requested():  # a plain function that could not be stopped has ended: raise the cancel now
            raise asyncio.CancelledError

    def _tell(self, emit: Callable[[Event], None], call: ToolCall, outcome: Outcome) -> None:
        result, kind = result_message(call, outcome, self._state.loop.max_message_bytes), type(outcome).__name__.lower()
        if isinstance(outcome, Asked):
            emit(ToolEnded(call, None, "asked", outcome.question))
            emit(QuestionAsked(outcome.question, call))
        else:
            emit(ToolEnded(call, result, cast(ToolOutcome, kind), "" if result is None else result.content))

    async def _settle(
        self, tool: Tool[..., Any], call: ToolCall, gate: Gate | None, recovering: bool, cancellation: Cancellation
    ) -> Outcome:
        is_orphan = recovering and not tool.safe_to_retry
        outcome = None
        if is_orphan:
            last = await self._fence.last(call.id)
            outcome = await self._bounded(tool, call, 1, tool.ask_whether_it_happened)
            if outcome is not None and not isinstance(outcome, Unknown):
                outcome = await self._fence.record(call, last, outcome)
        if outcome is None:
            # Without an approval, the schema that the call was made with is not recorded.
            may_be_another = recovering if gate is None else gate.schema_digest != tool.schema_digest
            if may_be_another:
                refused = await refused_in_time(tool, call.arguments, approved=gate is not None)
                if refused is not None:
                    return refused
            if is_orphan:
                await self._fence.cross(call.id, last)
            self.begun.add(call.id)
            outcome = await self._attempts(tool, call, gate, cancellation)
        if gate is not None and gate.edit is not None and isinstance(call.arguments, dict):
            return with_edit(outcome, gate.editor, call.arguments, self._state.loop.max_message_bytes)
        return outcome

    async def _attempts(
        self, tool: Tool[..., Any], call: ToolCall, gate: Gate | None, cancellation: Cancellation
    ) -> Outcome:
        run, attempt = partial(tool.attempt, approved=None if gate is None else gate.fingerprint), 1
        while True:
            outcome = await self._bounded(tool, call, attempt, run)
            assert outcome is not None
            outcome = await verified(
                tool, outcome, partial(self._bounded, tool, call, attempt, tool.ask_whether_it_happened)
            )
            delay = tool.next_delay(outcome, attempt) if isinstance(outcome, Failed) else None
            if delay is None or cancellation.requested():
                return outcome
            await asyncio.sleep(delay)
            attempt += 1

    async def _bounded(
        self,
        tool: Tool[..., Any],
        call: ToolCall,
        attempt: int,
        ask: Callable[..., Coroutine[Any, Any, Outcome | None]],
    ) -> Outcome | None:
        return await run_bounded(
            ask,
            tool,
            tool,
            call.arguments,
            self._context(call, attempt),
            state=self.agent_state,
            limit=self._state.loop.max_message_bytes,
            seconds=tool.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run as it was requested.

    Args:
        store: None for a run that no store keeps.
        create_session: whether `session_id` may be new.
        max_stored_messages: of the session, after the run.
        tools: handlers that replace those of tools of the same name.
        instance_id: of the agent; None for a new one.
        emit: called with each event.
        invoked_by: the key of the call that invoked the agent; the keys of its own calls begin with it.
        depth: the number of agents above this one.
        home: the store in which toolsets keep their data, if it is another one than `store`.
        max_answer_tokens: of each answer of the model.
        note: notes what the run uses, in case that this process dies; None if that is not stored.
    """

    agent: Agent
    llm: LLM | None = None
    store: AgentStore | None = None
    session_id: str | None = None
    create_session: bool = True
    max_stored_messages: int = 200
    user_id: str | None = None
    tenant_id: str | None = None
    tools: Handlers | None = None
    instance_id: str | None = None
    checkpoint_key: CheckpointKey | None = None
    context: object = None
    emit: Callable[[Event], None] | None = None
    invoked_by: str | None = None
    depth: int = 0
    home: AgentStore | None = None
    max_answer_tokens: int | None = None
    note: Callable[[Usage], Awaitable[None]] | None = None

    @property
    def handlers(self) -> dict[str, Any]:
        return dict(self.tools or {})


class InvokedRun(Protocol):
    """A run of an invoked agent."""

    @property
    def usage(self) -> Usage | None: ...

    async def go(self, *, message: str | None = None) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class NestedRuns:
    """Makes the runs of the agents that a run's tools invoke. They get the options of that run.

    Args:
        make: returns the run of a request.
        parent: the request of the run whose tools invoke the agents; `who` is its context.
    """

    make: Callable[[RunRequest], InvokedRun]
    parent: RunRequest
    who: AgentContext

    def run(
        self,
        agent: Agent,
        key: str,
        instance_id: str | None = None,
        user_id: str | Identity | None = Identity.INHERITED,
        tenant_id: str | Identity | None = Identity.INHERITED,
        **options: Any,
    ) -> InvokedRun:
        """Return the run of an agent. The keys of its calls begin with `key`.

        Args:
            options: of the request. Without a session, no store keeps the run.
        """
        parent = self.parent
        has_session = options.get("session_id") is not None  # which has its usage
        given = {"create_session": False, "store": parent.store if has_session else None, **options}
        return self.make(
            RunRequest(
                agent=agent,
                llm=parent.llm,
                tools=parent.tools,
                instance_id=instance_id,
                user_id=Identity.of(user_id, self.who.user_id),
                tenant_id=Identity.of(tenant_id, self.who.tenant_id),
                invoked_by=key,
                depth=parent.depth + 1,
                home=parent.store if parent.home is None else parent.home,
                note=None if has_session else parent.note,
                **given,
            )
        )

    @property
    def is_durable(self) -> bool:
        return self.parent.store is not None and self.parent.store.durable

    def lost(self, session_id: str, key: str, call_id: str, agent: Agent) -> InvokedRun:
        """Return the run that continues an agent started on Temporal by a lost call of a session."""
        return self.run(agent, key, session_id=session_of_call(session_id, call_id, key.removesuffix(f"/{call_id}")))

    async def kept(self, session_id: str | None) -> Session | None:
        """Return the session of an agent that answered before its run was cut off."""
        if self.parent.store is None or session_id is None:
            return None
        return await self.parent.store.load_session(session_key_of(self.who.tenant_id, session_id))


@dataclass(slots=True)
class Invocations:
    """The agents that one tool call runs. They do not keep sessions, except to answer for a model.

    Args:
        key: the idempotency key of the call; the keys of the agents' own calls begin with it.
        sampler: answers for the model of the agent that makes the call. None if none of its tools may ask the model.
        left: returns the tokens that the run may still use; None if unlimited.
        spent: called with the call's id and each agent's usage, even if the agent failed.
        notes: of the call; None if the session is not stored.
    """

    _runs: NestedRuns
    _key: str
    _call_id: str
    _session_id: str | None
    _sampler: Agent | None
    _left: Callable[[], int | None]
    _spent: Callable[[str, Usage], None]
    _notes: UsageNotes | None
    _asked: AskedAgents = field(default_factory=AskedAgents)

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
        check_depth(agent, self._runs.parent.depth)
        # None stands for every missing value: call keys are derived from this, and must not change.
        who = [None if isinstance(one, Identity) else () if one is None else one for one in (user_id, tenant_id)]
        with_context = () if (written := agent.write_context(context)) is None else (written,)
        name, number, _ = self._asked.name(agent.name, message, instance_id, *who, *with_context)
        key = f"{self._key}.{name}.{number}"
        run = self._runs.run(agent, key, instance_id, user_id, tenant_id, context=context)
        return await self._answer(agent, run, message)

    async def find(self, agent: Agent) -> str | None:
        """Continue the agent of this call that a Temporal run has left; see `AgentFinder`."""
        check_depth(agent, self._runs.parent.depth)
        if not self._runs.is_durable:
            return None
        try:
            run = self._runs.lost(str(self._session_id), self._key, self._call_id, agent)
            return (await self._answer(agent, run, None))["response"]
        except SessionNotFoundError:
            return None

    async def ask_model(self, message: str, *, max_tokens: int) -> dict[str, str]:
        """Let the model of the call's agent answer; see `ModelAsker`. A session keeps the paid answer."""
        agent = check_sampler(self._sampler, self._left())
        check_depth(agent, self._runs.parent.depth)
        name, number, _ = self._asked.name(agent.name, message, max_tokens)
        key, session_id = f"{self._key}.{name}.{number}", None
        if self._runs.is_durable and self._session_id is not None:
            session_id = child_session(self._session_id, f"{self._call_id}.{call_digest(key)}")
        kept, is_known = await self._runs.kept(session_id), False
        if session_id is not None and self._notes is not None:
            is_known = not await self._notes.session(session_key_of(self._runs.who.tenant_id, session_id))
        if kept is not None and kept.usage is not None and not is_known:
            self._spent(self._call_id, kept.usage)
        given: dict[str, Any] = {"context": self._runs.who.context} if kept is None else {}
        run = self._runs.run(
            agent, key, session_id=session_id, create_session=True, max_answer_tokens=max_tokens, **given
        )
        said = await self._answer(agent, run, message if kept is None else None)
        return {**said, "model": agent.model or agent.name}

    async def _answer(self, agent: Agent, run: InvokedRun, message: str | None) -> dict[str, str]:
        try:
            result = await run.go(message=message)
        finally:
            if run.usage is not None:
                self._spent(self._call_id, run.usage)
        said = said_by_agent(result.status, result.response, result.error)
        unknown = any(one.unknown is not None for one in result.checkpoint.questions or ())
        return answer_of(agent_outcome(agent.name, result.status, said, result.question, unknown=unknown))
