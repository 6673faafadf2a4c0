"""Describes the user an agent runs for, and the context of its hooks and instructions."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The agent and the run that a hook belongs to."""

    id: str
    name: str


@dataclass(slots=True)
class AgentContext:
    """The argument of hooks and callable instructions.

    Args:
        state: the run's own copy, which may be changed.
        session_id: the session, or None without a store.
    """

    agent: AgentIdentity
    state: Any
    user_id: str | None = None
    tenant_id: str | None = None
    session_id: str | None = None

    def authenticated(self) -> bool:
        return self.user_id is not None
