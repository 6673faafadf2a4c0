"""The agents and pipelines of this application. On Temporal, each is a workflow type under its own name."""

from workflows.documents import content, editor, researcher, review, reviewer, writer
from workflows.triage import triage

AGENTS = (triage, researcher, writer, editor, reviewer)
PIPELINES = (content, review)

__all__ = ["AGENTS", "PIPELINES"]
