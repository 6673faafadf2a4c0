"""Tools: what a model may call, declared once, and what one call comes to."""

from holdfast.tools.attempts import (
    AgentInvoker,
    Asked,
    Cancelled,
    Duration,
    Failed,
    Happened,
    NotHappened,
    Outcome,
    RetryPolicy,
    Returned,
    Terminated,
    ToolContext,
    Unknown,
    Verdict,
    seconds,
)
from holdfast.tools.declarations import TOOL_NAME, InThread, Tool, tool
from holdfast.tools.signatures import json_schema, schema_type

__all__ = [
    "TOOL_NAME",
    "AgentInvoker",
    "Asked",
    "Cancelled",
    "Duration",
    "Failed",
    "Happened",
    "InThread",
    "NotHappened",
    "Outcome",
    "RetryPolicy",
    "Returned",
    "Terminated",
    "Tool",
    "ToolContext",
    "Unknown",
    "Verdict",
    "json_schema",
    "schema_type",
    "seconds",
    "tool",
]
