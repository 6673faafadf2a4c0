"""Agents: a model, its instructions, its tools and the limits of its loop, declared once and frozen."""

from standfast.agents.agent import LANES, Agent, Lane, OnTerminalToolError
from standfast.agents.contexts import AgentContext, AgentIdentity
from standfast.agents.foreign_agents import ACCEPTED, ForeignAgent, adopted
from standfast.agents.guardrails import Guardrail, OutputValidator
from standfast.agents.limits import STATE_BYTES, ContextCompression, DiminishingReturns, Loop, TokenBudget
from standfast.tools.checks import NAME, check_former_names, check_name

__all__ = [
    "ACCEPTED",
    "LANES",
    "NAME",
    "STATE_BYTES",
    "Agent",
    "AgentContext",
    "AgentIdentity",
    "ContextCompression",
    "DiminishingReturns",
    "ForeignAgent",
    "Guardrail",
    "Lane",
    "Loop",
    "OnTerminalToolError",
    "OutputValidator",
    "TokenBudget",
    "adopted",
    "check_former_names",
    "check_name",
]
