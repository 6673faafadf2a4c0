"""Makes tools from functions: `@tool`."""

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from standfast.durations import Duration
from standfast.errors import DefinitionError
from standfast.messages import ToolCall
from standfast.tools.approvals import Approval
from standfast.tools.attempts import RetryPolicy
from standfast.tools.open_errors import ErrorTypes
from standfast.tools.signatures import read_signature, read_summary
from standfast.tools.tool import Tool

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    safe_to_retry: bool = False,
    parallel: bool = False,
    timeout: Duration | None = None,
    retry: RetryPolicy | None = None,
    approval: Approval | Callable[[ToolCall], Approval | None] | None = None,
    verify: Callable[..., Any] | None = None,
    unknown: ErrorTypes = (),
    not_run: ErrorTypes = (),
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None, **options: Any
) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(safe_to_retry=True)` with any option of `Tool`.

    The schema comes from the signature (defaults, optional, unions, nested models, `Annotated[…, Field(…)]`). The
    docstring describes the tool, before its sections, and the parameters, in its sections (Google, NumPy, Sphinx). The
    result is checked against the return annotation. A parameter annotated `ToolContext` is passed in and hidden from
    the model. By default a tool has effects and runs at most once.

    Raises:
        DefinitionError: naming the tool, the parameter and the rule.
    """
    # Types declared inside a function are found in pydantic's way: through the caller's names.
    caller = sys._getframe(1).f_locals

    def declare(function: Callable[..., Any]) -> Tool[..., Any]:
        if not callable(function) or isinstance(function, Tool | type):
            raise DefinitionError(f"@tool needs a function, got {function!r}")
        own_name, summary = read_summary(function)
        tool_name = own_name if name is None else name
        arguments, output = read_signature(tool_name, function, caller)
        return Tool(
            tool_name,
            description=(summary or tool_name) if description is None else description,
            input=arguments,
            output=output,
            handler=function,
            by_keyword=True,
            **options,
        )

    return declare if fn is None else declare(fn)
