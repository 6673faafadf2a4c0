"""Describes for whom an agent runs, and what its hooks and instructions see."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Which run of which agent a hook belongs to."""

    id: str
    name: str


@dataclass(slots=True)
class AgentContext:
    """What hooks and callable instructions get. `state` is the run's own copy and may be changed."""

    agent: AgentIdentity
    state: Any
    user_id: str | None = None
    tenant_id: str | None = None

    def authenticated(self) -> bool:
        return self.user_id is not None
