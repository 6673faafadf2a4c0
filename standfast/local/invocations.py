"""Runs an agent on behalf of another agent's tool: `ctx.agents.invoke`."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from standfast.agents import Agent
from standfast.errors import InterruptError, SessionNotFoundError, StandfastError
from standfast.messages import Usage
from standfast.runtime.child_sessions import check_depth

if TYPE_CHECKING:
    from standfast.local.runs import Run


class Invocations:
    """The agents that one tool call runs. They keep no session of their own.

    Args:
        make: makes the run of an agent: (agent, key, instance_id, user_id, tenant_id).
        lost: makes the run that continues an agent that was lost on Temporal; None if there can be none.
        key: the idempotency key of the call; those of the agents' calls begin with it.
        depth: how many agents are above.
        spent: hears what each agent used, also of one that failed.
    """

    def __init__(
        self,
        make: "Callable[[Agent, str, str | None, str | None, str | None], Run]",
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
        self._counts: dict[str, int] = {}

    async def invoke(
        self,
        agent: Agent,
        *,
        message: str,
        instance_id: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
    ) -> dict[str, str]:
        """Run an agent to its end and return `{"response": text}`; see `AgentInvoker`."""
        check_depth(agent, self._depth)
        # By the message, not by order: agents that run at once must have the same keys after a crash.
        asked = repr((agent.name, message, instance_id, user_id, tenant_id)).encode(errors="replace")
        name = hashlib.blake2b(asked, digest_size=6).hexdigest()
        self._counts[name] = self._counts.get(name, 0) + 1
        run = self._make(agent, f"{self._key}.{name}.{self._counts[name]}", instance_id, user_id, tenant_id)
        return {"response": await self._response(agent, run, message)}

    async def find(self, agent: Agent) -> str | None:
        """Continue the agent of this call, which a Temporal run has left; see `AgentFinder`."""
        check_depth(agent, self._depth)
        try:
            return None if self._lost is None else await self._response(agent, self._lost(agent), None)
        except SessionNotFoundError:
            return None

    async def _response(self, agent: Agent, run: "Run", message: str | None) -> str:
        try:
            result = await run.go(message=message)
        finally:
            if run.usage is not None:
                self._spent(run.usage)
        if result.interrupted:
            raise InterruptError(result.question)
        if result.status != "complete":
            raise StandfastError(f"Agent '{agent.name}' ended with {result.status}: {result.error or result.response}")
        return result.response
