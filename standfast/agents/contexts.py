"""Describes the user for whom an agent runs, and the context of its hooks and instructions."""

from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from standfast.tools import DepsT_co

DepsT = TypeVar("DepsT", default=Any)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The agent and the run that a hook belongs to."""

    id: str
    name: str


@dataclass(slots=True)
class AgentContext(Generic[DepsT_co]):
    """The argument of hooks, callable instructions and `deps`.

    Args:
        state: the run's own copy, which may be changed.
        session_id: the session, or None without a store.
        context: the context given to the run, in the agent's type; None if the agent has none.
        deps: the result of the agent's `deps`, or the context itself.
    """

    agent: AgentIdentity
    state: Any
    user_id: str | None = None
    tenant_id: str | None = None
    session_id: str | None = None
    context: Any = None
    deps: DepsT_co = None  # type: ignore[assignment]  # until it is made

    def authenticated(self) -> bool:
        return self.user_id is not None
