"""Runs an agent for a tool's handler, as a separate workflow that the same call finds again."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from standfast.agent_loop import agent_failure
from standfast.agents import Agent
from standfast.errors import StandfastError
from standfast.messages import Usage, read_json
from standfast.runtime.child_agents import AskedAgents, answer_of, check_depth, check_sampler, child_session
from standfast.runtime.noted_usage import UsageNotes, called_agents, cut_answers, noted_usage
from standfast.stores.protocol import DurableStore, session_id_of, session_key_of
from standfast.temporal.client.runs.ended_runs import cancelled_end, end_of
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.outcomes import outcome_of_result, outcome_of_terminal_error, result_usage
from standfast.temporal.wire.turn_records import TurnRecord
from standfast.tools import Identity

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


async def _result(client: Client, agent: str, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    try:
        return await end_of(client, handle.id)
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == names.TERMINAL_ERROR:
            raise outcome_of_terminal_error(error.cause.message, error.cause.details).error from error
        raise StandfastError(agent_failure(agent, str(error.cause))) from error
