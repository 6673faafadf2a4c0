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
    """The argument of hooks and callable instructions. `state` is the run's own copy and may be changed."""

    agent: AgentIdentity
    state: Any
    user_id: str | None = None
    tenant_id: str | None = None

    def authenticated(self) -> bool:
        return self.user_id is not None
