"""The types of an agent's arguments: functions of `AgentContext[Deps]`, and how type checkers infer `Deps`.

`Deps` is the result of `deps`, or the value that it gives when awaited or entered; without `deps` it is the type of
`context`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, Required, TypedDict

from standfast.agents.contexts import AgentContext, DepsT
from standfast.agents.guardrails import Check, Guardrail
from standfast.agents.limits import Loop
from standfast.agents.output_validators import OutputValidator
from standfast.tools import AccessRules, HostedTool, Tool, Toolset

if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from standfast.agents.agent import Agent
    from standfast.agents.foreign_agents import ForeignAgent

    NoClass = UnionType | _SpecialForm  # such as `Cart | None`, whose type checkers cannot read yet

OnTerminalToolError = Literal["message", "stop", "fail"]
Hook = Callable[[AgentContext[DepsT]], object]
Instructions = str | Callable[[AgentContext[DepsT]], str | Awaitable[str]]
Manager = AbstractAsyncContextManager[DepsT, Any]
MakesDeps = Callable[[AgentContext[None]], Manager[DepsT] | Awaitable[Manager[DepsT]] | Awaitable[DepsT] | DepsT]


class Options(TypedDict, Generic[DepsT], total=False):
    """The arguments of an `Agent` besides its name, output, context and deps."""

    formerly: Sequence[str]
    model: str | None
    fallback_models: Sequence[str]
    instructions: Instructions[DepsT] | Sequence[Instructions[DepsT]] | None
    tools: "Sequence[Tool[..., Any] | Agent | ForeignAgent | Toolset | HostedTool]"
    handoffs: "Sequence[Agent | str]"
    description: str | None
    state: Any
    initial_state: Any
    loop: Loop
    settings: Mapping[str, Any]
    access: AccessRules
    input_guardrails: Sequence[Check[DepsT] | Guardrail[DepsT]]
    output_guardrails: Sequence[Check[DepsT] | Guardrail[DepsT]]
    tool_guardrails: Sequence[Check[DepsT] | Guardrail[DepsT]]
    output_validators: Sequence[OutputValidator[DepsT]]
    on_start: Hook[DepsT] | None
    on_complete: Hook[DepsT] | None
    on_stuck: Hook[DepsT] | None
    on_terminal_tool_error: OnTerminalToolError
    adapter: Any


class WithDeps(Options[DepsT], Generic[DepsT], total=False):
    """The same for an agent whose dependencies come from `deps`."""

    deps: Required[MakesDeps[DepsT]]
    context: Any


class WithContext(Options[DepsT], Generic[DepsT], total=False):
    """The same for an agent without `deps`, whose dependency is the context itself."""

    context: "Required[type[DepsT] | UnionType]"
    deps: None


class WithNeither(Options[Any], total=False):
    """The same for an agent without its own dependencies: in a conversation it has those of the first agent."""

    context: "NoClass | None"
    deps: None


class WithoutDeps(Options[DepsT], Generic[DepsT], total=False):
    """The same for both kinds of agents without `deps`."""

    context: "type[DepsT] | NoClass | None"
    deps: None
