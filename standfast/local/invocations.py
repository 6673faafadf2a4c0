"""Runs an agent on behalf of another agent's tool: `ctx.agents.invoke`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from standfast.agent_loop import agent_outcome, said_by_agent
from standfast.agents import Agent, AgentContext
from standfast.errors import SessionNotFoundError
from standfast.llm import LLM
from standfast.messages import Usage
from standfast.runtime.child_agents import AskedAgents, answer_of, check_depth, session_of_call
from standfast.runtime.inputs import Handlers
from standfast.stores.protocol import AgentStore
from standfast.tools import Identity

if TYPE_CHECKING:
    from standfast.local.runs import Run


@dataclass(frozen=True, slots=True)
class NestedRuns:
    """Makes the runs of agents that a run's tools invoke, with what that run was given.

    Args:
        make: the class of runs.
        home: the store in which toolsets keep what they need.
        depth: the number of agents above the run.
    """

    make: "type[Run]"
    llm: LLM | None
    tools: Handlers
    who: AgentContext
    store: AgentStore | None
    home: AgentStore | None
    depth: int

    def run(
        self,
        agent: Agent,
        key: str,
        instance_id: str | None,
        user_id: str | Identity | None,
        tenant_id: str | Identity | None,
        session_id: str | None = None,
        context: object = None,
    ) -> "Run":
        """Return the run of an agent; its calls have keys that begin with `key`."""
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
            create_session=False,
            home=self.home,
        )

    def lost(self, session_id: str, key: str, call_id: str, agent: Agent) -> "Run":
        """Return the run that continues an agent which a lost call of a session has run on Temporal."""
        child, own = session_of_call(session_id, call_id, key.removesuffix(f"/{call_id}")), Identity.INHERITED
        return self.run(agent, key, None, own, own, child)


class Invocations:
    """The agents that one tool call runs. They keep no session of their own.

    Args:
        make: makes the run of an agent: (agent, key, instance_id, user_id, tenant_id, context=).
        lost: makes the run that continues an agent which was lost on Temporal; None if there can be none.
        key: the idempotency key of the call; the keys of the agents' own calls begin with it.
        depth: the number of agents above this one.
        spent: is called with what each agent used, also with that of one that failed.
    """

    def __init__(
        self,
        make: "Callable[..., Run]",
        lost: "Callable[[Agent], Run] | None",
        key: str,
        depth: int,
        spent: Callable[[Usage], None],
    ) -> None:
        self._make = make
        self._lost = lost
        self._key = key
        self._depth = depth
        self._spent = spent
        self._asked = AskedAgents()

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
        # None stands for what is not given, as ever: the keys of calls follow from this, and must not change.
        who = [None if isinstance(one, Identity) else () if one is None else one for one in (user_id, tenant_id)]
        with_context = () if (written := agent.write_context(context)) is None else (written,)
        name, number, _ = self._asked.name(agent.name, message, instance_id, *who, *with_context)
        run = self._make(agent, f"{self._key}.{name}.{number}", instance_id, user_id, tenant_id, context=context)
        return await self._answer(agent, run, message)

    async def find(self, agent: Agent) -> str | None:
        """Continue the agent of this call, which a Temporal run has left; see `AgentFinder`."""
        check_depth(agent, self._depth)
        try:
            return None if self._lost is None else (await self._answer(agent, self._lost(agent), None))["response"]
        except SessionNotFoundError:
            return None

    async def _answer(self, agent: Agent, run: "Run", message: str | None) -> dict[str, str]:
        try:
            result = await run.go(message=message)
        finally:
            if run.usage is not None:
                self._spent(run.usage)
        said = said_by_agent(result.status, result.response, result.error)
        return answer_of(agent_outcome(agent.name, result.status, said, result.question))
