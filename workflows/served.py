"""The application for `standfast worker workflows.served` and `standfast web --app workflows.served`."""

from workflows import AGENTS, PIPELINES
from workflows.models import named_model

llm = named_model()

__all__ = ["AGENTS", "PIPELINES", "llm"]
