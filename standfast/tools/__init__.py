"""Tools: declared once, called by a model, with typed outcomes of a call."""

from standfast.durations import Duration
from standfast.tools.approvals import SCOPES, Approval, Scope, is_wider
from standfast.tools.attempts import (
    AgentInvoker,
    Asked,
    Cancelled,
    DepsT,
    Failed,
    Happened,
    Identity,
    InThread,
    NotHappened,
    Outcome,
    RetryPolicy,
    Returned,
    Terminated,
    ToolContext,
    Unknown,
    Verdict,
)
from standfast.tools.checks import AccessRules, check_access, check_choice, check_count, check_function, seconds
from standfast.tools.functions import tool
from standfast.tools.shown_values import (
    SHOWN_MOST,
    Diff,
    Editable,
    Markdown,
    Table,
    read_shown,
    shown_in_part,
    shown_values,
    shown_with_edit,
)
from standfast.tools.signatures import json_schema, schema_type
from standfast.tools.tool import TOOL_NAME, Tool
from standfast.tools.toolsets import Toolset

__all__ = [
    "SCOPES",
    "SHOWN_MOST",
    "TOOL_NAME",
    "AccessRules",
    "AgentInvoker",
    "Approval",
    "Asked",
    "Cancelled",
    "DepsT",
    "Diff",
    "Duration",
    "Editable",
    "Failed",
    "Happened",
    "Identity",
    "InThread",
    "Markdown",
    "NotHappened",
    "Outcome",
    "RetryPolicy",
    "Returned",
    "Scope",
    "Table",
    "Terminated",
    "Tool",
    "ToolContext",
    "Toolset",
    "Unknown",
    "Verdict",
    "check_access",
    "check_choice",
    "check_count",
    "check_function",
    "is_wider",
    "json_schema",
    "read_shown",
    "schema_type",
    "seconds",
    "shown_in_part",
    "shown_values",
    "shown_with_edit",
    "tool",
]
