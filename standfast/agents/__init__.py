"""Agents: a model, its instructions, its tools and the limits of its loop, declared once and frozen."""

from standfast.agents.agent import Agent
from standfast.agents.agent_names import NAME, check_former_names, check_name
from standfast.agents.agent_options import OnTerminalToolError
from standfast.agents.contexts import AgentContext, AgentIdentity
from standfast.agents.foreign_agents import ACCEPTED, ForeignAgent, adopted
from standfast.agents.guardrails import Guardrail
from standfast.agents.limits import STATE_BYTES, ContextCompression, DiminishingReturns, Loop, TokenBudget
from standfast.agents.output_validators import OutputValidator

__all__ = [
    "ACCEPTED",
    "NAME",
    "STATE_BYTES",
    "Agent",
    "AgentContext",
    "AgentIdentity",
    "ContextCompression",
    "DiminishingReturns",
    "ForeignAgent",
    "Guardrail",
    "Loop",
    "OnTerminalToolError",
    "OutputValidator",
    "TokenBudget",
    "adopted",
    "check_former_names",
    "check_name",
]
