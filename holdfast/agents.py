"""Agents: a model, its instructions, its tools and the limits of its loop, declared once and frozen."""

import copy
import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from holdfast.errors import DefinitionError
from holdfast.messages import Message, explain
from holdfast.tools import Tool, ToolContext, tool

NAME = re.compile(r"[a-z][a-z0-9-]*")

OnStuck = Literal["stop", "retry", "escalate"]
OnTerminalToolError = Literal["message", "stop", "fail"]


def check_name(name: object, what: str) -> None:
    """Refuse a name that is no `[a-z][a-z0-9-]*`; the whole of it must match, a final newline included."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(f"{what} name must match ^{NAME.pattern}$, got {name!r}")


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens a run may use, counted after every model call.

    Args:
        max: input and output tokens of the run, nested agents included.
        stop_threshold: share of `max` at which the run ends with "token-budget-exhausted".
        warning_threshold: share at which the model is told, once.
        warning_message: the text, or a function of (percent, used, max) that returns it.
    """

    max: int
    _: KW_ONLY
    stop_threshold: float = 0.9
    warning_threshold: float = 0.8
    warning_message: str | Callable[[int, int, int], str] | None = None

    def __post_init__(self) -> None:
        _check_count("token_budget.max", self.max, 1)
        for name in ("stop_threshold", "warning_threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise DefinitionError(f"token_budget.{name} must be a share above 0, got {value!r}")

    def warning(self, used: int) -> str:
        percent = round(used / self.max * 100)
        if callable(self.warning_message):
            return self.warning_message(percent, used, self.max)
        return self.warning_message or (
            f"Warning: You have used {percent}% of your token budget ({used}/{self.max} tokens). "
            "Please wrap up your current task."
        )


@dataclass(frozen=True, slots=True)
class DiminishingReturns:
    """End a run whose model calls have become short: `calls` in a row below `min_tokens` tokens each."""

    calls: int = 3
    min_tokens: int = 500

    def __post_init__(self) -> None:
        _check_count("diminishing_returns.calls", self.calls, 1)
        _check_count("diminishing_returns.min_tokens", self.min_tokens, 1)


@dataclass(frozen=True, slots=True)
class ContextCompression:
    """Shorten what the model sees; what is stored stays whole.

    Args:
        compress: gets the messages without the leading system prompt, returns those to go on with.
        max_messages, max_token_estimate: compress above either (a token is estimated as four characters).
    """

    compress: Callable[[Sequence[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
    _: KW_ONLY
    max_messages: int | None = None
    max_token_estimate: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.compress):
            raise DefinitionError(f"context_compression.compress must be callable, got {self.compress!r}")
        if self.max_messages is None and self.max_token_estimate is None:
            raise DefinitionError("context_compression needs max_messages or max_token_estimate")
        for name in ("max_messages", "max_token_estimate"):
            if getattr(self, name) is not None:
                _check_count(f"context_compression.{name}", getattr(self, name), 1)

    def applies_to(self, messages: Sequence[Message]) -> bool:
        if self.max_messages is not None and len(messages) > self.max_messages:
            return True
        limit = self.max_token_estimate
        return limit is not None and sum(len(message.content) for message in messages) / 4 > limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The limits of a run.

    Args:
        max_iterations: model calls per run.
        on_stuck: when `stuck_threshold` iterations in a row had no successful tool call: "stop" ends the run,
            "retry" nudges the model `stuck_retries` times first, "escalate" asks a person.
        stuck_threshold: 0 turns stuck detection off.
        checkpoint_interval: `run_streaming` yields a checkpoint every so many iterations.
        max_tool_concurrency: parallel tool calls at once.
        max_tool_calls: per turn; the rest are refused to the model.
        max_message_bytes: of one message: a longer answer of the model is cut, a longer tool result is lost with
            an error, a longer user message is refused.
        token_budget: a `TokenBudget`, or its `max`.
    """

    max_iterations: int = 20
    on_stuck: OnStuck = "stop"
    stuck_threshold: int = 3
    stuck_retries: int = 1
    checkpoint_interval: int = 5
    max_tool_concurrency: int = 5
    max_tool_calls: int = 64
    max_message_bytes: int = 10 * 1024 * 1024
    token_budget: TokenBudget | int | None = None
    diminishing_returns: DiminishingReturns | None = None
    context_compression: ContextCompression | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("max_iterations", 1),
            ("stuck_threshold", 0),
            ("stuck_retries", 0),
            ("checkpoint_interval", 1),
            ("max_tool_concurrency", 1),
            ("max_tool_calls", 1),
            ("max_message_bytes", 1_024),
        ):
            _check_count(f"loop.{name}", getattr(self, name), least)
        _check_choice("loop.on_stuck", self.on_stuck, ("stop", "retry", "escalate"))
        if isinstance(self.token_budget, int):
            object.__setattr__(self, "token_budget", TokenBudget(self.token_budget))
        for name, kind in (
            ("token_budget", TokenBudget),
            ("diminishing_returns", DiminishingReturns),
            ("context_compression", ContextCompression),
        ):
            if not isinstance(getattr(self, name), kind | None):
                raise DefinitionError(f"loop.{name} must be a {kind.__name__}, got {getattr(self, name)!r}")

    @property
    def budget(self) -> TokenBudget | None:
        return cast("TokenBudget | None", self.token_budget)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DefinitionError(f"{name} must be >= {least}, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DefinitionError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


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


Hook = Callable[[AgentContext], object]
Instructions = str | Callable[[AgentContext], str | Awaitable[str]]


@dataclass(frozen=True, eq=False)
class Agent:
    """A model with instructions and tools.

    Args:
        name: `^[a-z][a-z0-9-]*$`; on Temporal the workflow type.
        model: "provider:name", or None if `llm=` is always given.
        instructions: the system prompt: a text, a function of `AgentContext`, or several, joined by a newline.
        tools: `Tool`s, and agents, which then are tools with the argument `message`.
        description: what a model reads when the agent is a tool.
        state, initial_state: the type of `ctx.state` and the value each run starts with a copy of.
        output: the type that the final answer, read as JSON, must match; else the run ends with "error".
        settings: further keyword arguments for the adapter's `chat`, such as max_tokens.
        access: kept as given.
        on_start, on_complete, on_stuck: functions of `AgentContext`, plain or async, around the loop. `on_stuck`
            is called when the run stopped early; neither is on "error".
        on_terminal_tool_error: "message" lets the model read it, "stop" ends the run with "error" after the turn's
            calls, "fail" raises it from `run` and starts no further call.

    Raises:
        DefinitionError: naming the agent, the field and the rule.
    """

    name: str
    _: KW_ONLY
    model: str | None = None
    instructions: Instructions | Sequence[Instructions] | None = None
    tools: "Sequence[Tool[..., Any] | Agent]" = ()
    description: str | None = None
    state: Any = None
    initial_state: Any = None
    output: Any = None
    loop: Loop = field(default_factory=Loop)
    settings: Mapping[str, Any] = field(default_factory=dict)
    access: Mapping[str, Any] = field(default_factory=dict)
    on_start: Hook | None = None
    on_complete: Hook | None = None
    on_stuck: Hook | None = None
    on_terminal_tool_error: OnTerminalToolError = "message"

    def __post_init__(self) -> None:
        check_name(self.name, "Agent")
        if self.model is not None and not isinstance(self.model, str):
            raise self._fault(f"model must be text like 'anthropic:claude-sonnet-4-6', got {self.model!r}")
        if self.description is not None and (not isinstance(self.description, str) or not self.description.strip()):
            raise self._fault("description must be a non-empty string")
        if not isinstance(self.loop, Loop):
            raise self._fault(f"loop must be a Loop, got {self.loop!r}")
        if not all(isinstance(part, str) or callable(part) for part in self._instruction_parts):
            raise self._fault("instructions must be texts or functions")
        for name in ("on_start", "on_complete", "on_stuck"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise self._fault(f"{name} must be callable, got {getattr(self, name)!r}")
        _check_choice(f"Agent '{self.name}': on_terminal_tool_error", self.on_terminal_tool_error,
                      ("message", "stop", "fail"))  # fmt: skip
        for name in ("settings", "access"):
            if not isinstance(getattr(self, name), Mapping):
                raise self._fault(f"{name} must be a mapping, got {getattr(self, name)!r}")
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        self._check_tools()
        object.__setattr__(self, "initial_state", copy.deepcopy(self.initial_state))
        # Broken types are found now, not by the first run.
        _ = self.new_state(), self._output_type, self.tool_map

    def _fault(self, text: str) -> DefinitionError:
        return DefinitionError(f"Agent '{self.name}': {text}")

    def _check_tools(self) -> None:
        if isinstance(self.tools, str | Mapping):
            raise self._fault("tools must be a list of tools")
        try:
            object.__setattr__(self, "tools", tuple(self.tools))
        except TypeError as error:
            raise self._fault(f"tools must be a list of tools, got {self.tools!r}") from error
        seen = set()
        for item in self.tools:
            if not isinstance(item, Tool | Agent):
                name = getattr(item, "__name__", repr(item))
                raise self._fault(f"tools: {name} is no Tool; decorate the function with @tool")
            if item.name in seen:
                raise self._fault(f"tools: two are named {item.name!r}")
            seen.add(item.name)

    @functools.cached_property
    def tool_map(self) -> Mapping[str, Tool[..., Any]]:
        """The tools by name; agents among them have become tools."""
        return MappingProxyType({item.name: _as_tool(item) if isinstance(item, Agent) else item for item in self.tools})

    @functools.cached_property
    def parallel_tools(self) -> frozenset[str]:
        return frozenset(name for name, item in self.tool_map.items() if item.parallel)

    # --- instructions, state, output ---

    @property
    def _instruction_parts(self) -> tuple[Instructions, ...]:
        if self.instructions is None:
            return ()
        if isinstance(self.instructions, str) or callable(self.instructions):
            return (self.instructions,)
        return tuple(self.instructions)

    async def system_prompt(self, context: AgentContext) -> str:
        """Return the instructions, callables resolved and joined by newlines."""
        texts = []
        for part in self._instruction_parts:
            text = part if isinstance(part, str) else part(context)
            text = await text if isinstance(text, Awaitable) else text
            if not isinstance(text, str):
                raise self._fault(f"instructions must give text, got {text!r}")
            texts.append(text)
        return "\n".join(texts) or (
            f'You are an AI agent named "{self.name}". Use the available tools to accomplish the user\'s request.'
        )

    @functools.cached_property
    def _state_type(self) -> TypeAdapter[Any]:
        return self._adapter("state", dict[str, Any] if self.state is None else self.state)

    @functools.cached_property
    def _output_type(self) -> TypeAdapter[Any] | None:
        return None if self.output is None else self._adapter("output", self.output)

    def _adapter(self, what: str, annotation: Any) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(annotation)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
            raise self._fault(f"{what} {annotation!r} cannot become a schema: {str(error).splitlines()[0]}") from error

    def new_state(self) -> Any:
        """Return a copy of the initial state for one run."""
        try:
            initial = {} if self.initial_state is None else copy.deepcopy(self.initial_state)
            return self._state_type.validate_python(initial)
        except ValidationError as error:
            raise self._fault(f"initial_state does not fit its type: {explain(error)}") from error

    def read_state(self, stored: str) -> Any:
        """Read a stored state; the initial one if it is no JSON or no longer fits the type."""
        try:
            return self._state_type.validate_json(stored)
        except ValidationError:
            return self.new_state()

    def write_state(self, state: Any) -> str:
        """Write a run's state as JSON.

        Raises:
            DefinitionError: a hook put something into it that JSON cannot carry.
        """
        try:
            return "{}" if state == {} else self._state_type.dump_json(state, warnings=False).decode()
        except (PydanticSerializationError, ValueError) as error:
            raise self._fault(f"its state is no JSON: {error}") from error

    def read_output(self, response: str) -> Any:
        """Read a final answer by `output`.

        Raises:
            ValueError: naming what does not fit.
        """
        if self._output_type is None:
            return None
        try:
            return self._output_type.validate_json(response)
        except ValidationError as error:
            raise ValueError(explain(error)) from error

    @functools.cached_property
    def output_schema(self) -> dict[str, Any] | None:
        return None if self._output_type is None else self._output_type.json_schema()


def _as_tool(agent: Agent) -> Tool[..., Any]:
    @tool(name=agent.name, description=agent.description or f"Ask the agent {agent.name}.")
    async def ask(message: str, ctx: ToolContext) -> str:
        return (await ctx.agents.invoke(agent, message=message))["response"]

    return ask


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
