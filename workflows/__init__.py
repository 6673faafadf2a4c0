"""The agents and pipelines of this application. On Temporal each is a workflow type under its own name."""

from workflows.triage import triage

AGENTS = (triage,)
PIPELINES = ()

__all__ = ["AGENTS", "PIPELINES"]
