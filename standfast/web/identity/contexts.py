"""Determines the context of a run that a person starts from outside: the given context is untrusted."""

from collections.abc import Callable
from functools import partial
from typing import Any

from temporalio.client import Client

from standfast.agents import Agent
from standfast.errors import InputError
from standfast.runtime.users_functions import begin_in_thread, call_users
from standfast.stores.protocol import AgentStore, session_key_of
from standfast.temporal.client.runs.descriptions import described
from standfast.temporal.wire.names import workflow_id
from standfast.time_limits import time_limit
from standfast.web.identity.people import Person

FILL_SECONDS = 30.0  # for the application's function, which may query a database
FillContext = Callable[[Person, Agent, Any], Any]
"""Returns the context of an agent's run, from the person's value or None; plain or async."""


class Contexts:
    """The contexts of runs that people start.

    Args:
        fill: the application's decision on them; if it is None, a given context is used unchanged.
    """

    def __init__(self, client: Client, store: AgentStore | None, fill: FillContext | None) -> None:
        self._client, self._store, self._fill = client, store, fill

    async def of(
        self, person: Person, agent: Agent, given: Any, *, session_id: str | None, tenant_id: str | None
    ) -> Any:
        """Return the context for starting a run; None lets the session continue with its own.

        Args:
            session_id: None for a new session.

        Raises:
            InputError: it does not fit the agent's type, or the application refuses it, or it is missing and the agent
                needs one. The error names the invalid fields.
            Exception: any error of `fill_context`; or it has not ended in time.
        """
        context = given
        if self._fill is not None and agent.context is not None:
            context = await self._filled(partial(self._fill, person, agent, given))
        if context is not None or (agent.needs_context and await self._is_new(agent, session_id, tenant_id)):
            agent.write_context(context)
        return context

    async def _filled(self, fill: Callable[[], Any]) -> Any:
        """Return the application's context; a plain function runs outside the event loop, which serves all clients."""
        try:
            async with time_limit(FILL_SECONDS):
                found = await call_users(begin_in_thread, fill)
                return await call_users(lambda: found)
        except TimeoutError as error:
            raise RuntimeError(f"fill_context took more than {FILL_SECONDS:g} s, so nothing was started") from error

    async def _is_new(self, agent: Agent, session_id: str | None, tenant_id: str | None) -> bool:
        """Whether a session has no context yet, as far as is known: the run itself also looks for one."""
        if session_id is None:
            return True
        key = session_key_of(tenant_id, session_id)
        if self._store is None or await self._store.load_session(key) is not None:
            return False
        try:
            return (await described(self._client, workflow_id(agent.name, key))).close_time is not None
        except InputError:
            return True
