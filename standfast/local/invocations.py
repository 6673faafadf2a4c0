"""Runs an agent that another agent's tool invokes with `ctx.agents.invoke`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from standfast.agent_loop import agent_outcome, said_by_agent
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import CheckpointKey, RunResult
from standfast.errors import SessionNotFoundError
from standfast.events import Event
from standfast.llm import LLM
from standfast.messages import Usage
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
from standfast.runtime.noted_usage import UsageNotes
from standfast.stores.protocol import AgentStore, Session, session_key_of
from standfast.tools import Identity


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
