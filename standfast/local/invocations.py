"""Runs an agent that another agent's tool invokes with `ctx.agents.invoke`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from standfast.agent_loop import agent_outcome, said_by_agent
from standfast.agents import Agent, AgentContext
from standfast.errors import SessionNotFoundError
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

if TYPE_CHECKING:
    from standfast.local.runs import Run


@dataclass(frozen=True, slots=True)
class NestedRuns:
    """Makes the runs of the agents that a run's tools invoke. They get the options of that run.

    Args:
        make: the class of runs.
        home: the store in which toolsets keep their data.
        depth: the number of agents above the run.
        note: notes what the agents use, in case that this process dies; None if that is not stored.
    """

    make: "type[Run]"
    llm: LLM | None
    tools: Handlers
    who: AgentContext
    store: AgentStore | None
    home: AgentStore | None
    depth: int
    note: Callable[[Usage], Awaitable[None]] | None = None

    def run(
        self,
        agent: Agent,
        key: str,
        instance_id: str | None = None,
        user_id: str | Identity | None = Identity.INHERITED,
        tenant_id: str | Identity | None = Identity.INHERITED,
        *,
        session_id: str | None = None,
        context: object = None,
        create_session: bool = False,
        max_answer_tokens: int | None = None,
    ) -> "Run":
        """Return the run of an agent. The keys of its calls begin with `key`."""
        return self.make(
            agent,
            context=context,
            llm=self.llm,
            tools=self.tools,
            instance_id=instance_id,
            user_id=Identity.of(user_id, self.who.user_id),
            tenant_id=Identity.of(tenant_id, self.who.tenant_id),
            invoked_by=key,
            depth=self.depth + 1,
            store=None if session_id is None else self.store,
            session_id=session_id,
            create_session=create_session,
            home=self.home,
            max_answer_tokens=max_answer_tokens,
            note=self.note if session_id is None else None,  # a session has its usage
        )

    @property
    def is_durable(self) -> bool:
        return self.store is not None and self.store.durable

    def lost(self, session_id: str, key: str, call_id: str, agent: Agent) -> "Run":
        """Return the run that continues an agent started on Temporal by a lost call of a session."""
        return self.run(agent, key, session_id=session_of_call(session_id, call_id, key.removesuffix(f"/{call_id}")))

    async def kept(self, session_id: str | None) -> Session | None:
        """Return the session of an agent that answered before its run was cut off."""
        if self.store is None or session_id is None:
            return None
        return await self.store.load_session(session_key_of(self.who.tenant_id, session_id))


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
        check_depth(agent, self._runs.depth)
        # None stands for every missing value: call keys are derived from this, and must not change.
        who = [None if isinstance(one, Identity) else () if one is None else one for one in (user_id, tenant_id)]
        with_context = () if (written := agent.write_context(context)) is None else (written,)
        name, number, _ = self._asked.name(agent.name, message, instance_id, *who, *with_context)
        key = f"{self._key}.{name}.{number}"
        run = self._runs.run(agent, key, instance_id, user_id, tenant_id, context=context)
        return await self._answer(agent, run, message)

    async def find(self, agent: Agent) -> str | None:
        """Continue the agent of this call that a Temporal run has left; see `AgentFinder`."""
        check_depth(agent, self._runs.depth)
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
        check_depth(agent, self._runs.depth)
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

    async def _answer(self, agent: Agent, run: "Run", message: str | None) -> dict[str, str]:
        try:
            result = await run.go(message=message)
        finally:
            if run.usage is not None:
                self._spent(self._call_id, run.usage)
        said = said_by_agent(result.status, result.response, result.error)
        unknown = any(one.unknown is not None for one in result.checkpoint.questions or ())
        return answer_of(agent_outcome(agent.name, result.status, said, result.question, unknown=unknown))
