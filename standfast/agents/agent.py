"""Agents: a model, its instructions, its tools and the limits of its loop, declared once and frozen."""

import copy
import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Required, TypedDict, Unpack, cast, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from standfast.agents.contexts import AgentContext, ChangedValueError, DepsT, read_context, write_context, write_kept
from standfast.agents.foreign_agents import ACCEPTED, adopted
from standfast.agents.guardrails import (
    GUARDRAILS,
    Check,
    Guardrail,
    OutputValidator,
    read_guardrails,
    read_output_validators,
)
from standfast.agents.handoffs import check_handoffs, speakers
from standfast.agents.limits import Loop
from standfast.checkpoints import T_co
from standfast.errors import DefinitionError, InputError
from standfast.messages import JSONObject, explain, read_json, unfenced
from standfast.tools import (
    AccessRules,
    DepsT_co,
    Happened,
    HostedTool,
    Tool,
    ToolContext,
    Toolset,
    check_access,
    check_choice,
    json_schema,
    schema_type,
    tool,
)
from standfast.tools.calls import AgentFinder
from standfast.tools.checks import check_deps, check_former_names, check_name, suggesting

if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from standfast.agents.foreign_agents import ForeignAgent

    NoClass = UnionType | _SpecialForm  # such as `Cart | None`, whose type checkers cannot read yet

OnTerminalToolError = Literal["message", "stop", "fail"]
Lane = Literal["each", "fast"]
LANES: tuple[Lane, ...] = ("each", "fast")
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
    lane: Lane | None
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


@suggesting
@dataclass(frozen=True, eq=False)
class Agent(Generic[T_co, DepsT_co]):
    """A model with instructions and tools: an `Agent[Output, Deps]`.

    `Agent[Invoice]` is an agent with that output, `Agent[None]` one without an output, whatever they depend on.

    Args:
        name: `^[a-z][a-z0-9_-]*$`; on Temporal the workflow type.
        formerly: earlier names; their sessions, and their runs in flight on Temporal, belong to this agent.
        model: "provider:name", or None if `llm=` is always given.
        fallback_models: models to call, in this order, if the first cannot be called. A run that has switched stays
            with the new model; its messages name the model that answered.
        instructions: the system prompt: a text, a function of `AgentContext`, or several, joined by a newline.
        tools: `Tool`s; agents, including other frameworks' agents, which become tools with the argument `message`;
            `Toolset`s, whose tools are found when a run or a worker begins; and `hosted` tools, which the provider of
            each of its models must have.
        handoffs: agents to which it can hand over the conversation, each a tool such as `transfer_to_billing`. From
            then on that agent answers, in the same session and run. A name refers to an agent of the same conversation,
            such as the first, to hand back. Limits, context, deps, state, output, access, guardrails and hooks stay
            those of the first.
        description: the text that a model reads when the agent is a tool, or can be handed over to.
        context: the type of each run's `context=`, which is recorded with the message: a pydantic model, a dataclass or
            any other type with a schema.
        deps: a function of `AgentContext`, plain or async, that returns what tools, hooks and instructions read as
            `ctx.deps`. It reads `ctx.context`, and is called in the process that runs them. If it returns an async
            context manager, the manager is entered, and closed again. Without `deps`, `ctx.deps` is the context.
        state, initial_state: the type of `ctx.state`, and its initial value, which is copied for each session. With a
            type, tools also have the state.
        output: the type that the final answer, read as JSON, must match. If it does not match, the model gets the
            reason and answers again, up to `loop.output_retries` times; then the run ends with "error".
        output_validators: functions of `AgentContext` and of the output, or of the answer's text if the agent has no
            `output`. They may use `ctx.deps`. If one returns a reason why the output is not acceptable, the model gets
            the reason and answers again, as with an output that does not match.
        settings: further keyword arguments for the adapter's `chat`, such as max_tokens.
        access: `{"start": f, "approve": f}`, functions of a user id (or None) that return whether that user may begin a
            run of it, and decide on its calls.
        input_guardrails, output_guardrails, tool_guardrails: functions of `AgentContext` and of the user's `Message`,
            the final answer's `Message`, or a `ToolCall`. A message that they refuse is not read by the model, a
            refused answer is shown to no one, and a refused call does not run. See `Guardrail`.
        on_start, on_complete, on_stuck: functions of `AgentContext`, plain or async, around the loop. `on_stuck` is
            called instead of `on_complete` when the run stopped early; after "error" neither is called.
        on_terminal_tool_error: "message" lets the model read it, "stop" ends the run with "error" after the turn's
            calls, "fail" raises it from `run` and starts no further call.
        lane: on Temporal, "each" makes an activity of each model call and of each tool call, and "fast" one of several
            turns, which is much cheaper for quick steps. By default, the plugin's. In process it changes nothing.
        adapter: an object with `async def chat(messages, tools)` that is called instead of any model or `llm=`.

    Raises:
        DefinitionError: naming the agent, the field and the rule.
    """

    kind: ClassVar[str] = "agent"

    name: str
    _: KW_ONLY
    formerly: Sequence[str] = ()
    model: str | None = None
    fallback_models: Sequence[str] = ()
    instructions: Instructions[DepsT_co] | Sequence[Instructions[DepsT_co]] | None = None
    tools: "Sequence[Tool[..., Any] | Agent | Toolset | HostedTool]" = ()
    handoffs: "Sequence[Agent | str]" = ()
    description: str | None = None
    context: Any = None
    deps: MakesDeps[DepsT_co] | None = None
    state: Any = None
    initial_state: Any = None
    output: type[T_co] | None = None
    loop: Loop = field(default_factory=Loop)
    settings: Mapping[str, Any] = field(default_factory=dict)
    access: AccessRules = field(default_factory=dict)
    input_guardrails: Sequence[Check[DepsT_co] | Guardrail[DepsT_co]] = ()
    output_guardrails: Sequence[Check[DepsT_co] | Guardrail[DepsT_co]] = ()
    tool_guardrails: Sequence[Check[DepsT_co] | Guardrail[DepsT_co]] = ()
    output_validators: Sequence[OutputValidator[DepsT_co]] = ()
    on_start: Hook[DepsT_co] | None = None
    on_complete: Hook[DepsT_co] | None = None
    on_stuck: Hook[DepsT_co] | None = None
    on_terminal_tool_error: OnTerminalToolError = "message"
    lane: Lane | None = None
    adapter: Any = field(default=None, repr=False)

    if TYPE_CHECKING:  # the output, and deps or the context, determine the agent's type

        @overload
        def __init__(
            self: "Agent[None, DepsT]", name: str, *, output: None = None, **options: Unpack[WithDeps[DepsT]]
        ) -> None: ...
        @overload
        def __init__(
            self: "Agent[None, Any]", name: str, *, output: None = None, **options: Unpack[WithNeither]
        ) -> None: ...
        @overload
        def __init__(
            self: "Agent[None, DepsT]", name: str, *, output: None = None, **options: Unpack[WithContext[DepsT]]
        ) -> None: ...
        @overload
        def __init__(self, name: str, *, output: type[T_co], **options: Unpack[WithDeps[DepsT_co]]) -> None: ...
        @overload
        def __init__(self, name: str, *, output: type[T_co], **options: Unpack[WithNeither]) -> None: ...
        @overload
        def __init__(self, name: str, *, output: type[T_co], **options: Unpack[WithContext[DepsT_co]]) -> None: ...
        @overload
        def __init__(self, name: str, *, output: Any, **options: Unpack[WithDeps[DepsT_co]]) -> None: ...
        @overload
        def __init__(self, name: str, *, output: Any, **options: Unpack[WithoutDeps[DepsT_co]]) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        check_name(self.name, "Agent")
        object.__setattr__(self, "formerly", check_former_names(self.name, self.formerly, f"Agent '{self.name}'"))
        object.__setattr__(self, "fallback_models", check_models(self))
        if self.description is not None and (not isinstance(self.description, str) or not self.description.strip()):
            raise self._fault("description must be a non-empty string")
        if not isinstance(self.loop, Loop):
            raise self._fault(f"loop must be a Loop, got {self.loop!r}")
        self._freeze_instructions()
        for name in ("on_start", "on_complete", "on_stuck"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise self._fault(f"{name} must be callable, got {getattr(self, name)!r}")
        check_deps(f"Agent '{self.name}'", self.deps)
        check_choice(
            f"Agent '{self.name}': on_terminal_tool_error", self.on_terminal_tool_error, ("message", "stop", "fail")
        )
        if self.lane is not None:
            check_choice(f"Agent '{self.name}': lane", self.lane, LANES)
        if not isinstance(self.settings, Mapping):
            raise self._fault(f"settings must be a mapping, got {self.settings!r}")
        object.__setattr__(self, "settings", frozen(self.settings))
        object.__setattr__(self, "access", check_access(f"Agent '{self.name}'", self.access))
        if wrong := [key for key in self.settings if not isinstance(key, str) or key in ("messages", "tools")]:
            raise self._fault(f"settings are further keyword arguments for chat(messages, tools); {wrong[0]!r} is none")
        for name in GUARDRAILS:
            object.__setattr__(self, name, read_guardrails(self.name, name, getattr(self, name)))
        object.__setattr__(self, "output_validators", read_output_validators(self.name, self.output_validators))
        object.__setattr__(self, "tools", check_tools(self, Agent))
        try:
            object.__setattr__(self, "initial_state", copy.deepcopy(self.initial_state))
        except TypeError as error:
            raise self._fault(f"initial_state cannot be copied: {error}") from error
        object.__setattr__(self, "handoffs", check_handoffs(self, Agent))
        # Broken types are detected now, not in the first run.
        _ = self.write_state(self.new_state()), self.output_schema, self.tool_map, self.speakers, self.needs_context

    def _fault(self, text: str) -> DefinitionError:
        return DefinitionError(f"Agent '{self.name}': {text}")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its former names."""
        return (self.name, *self.formerly)

    def _freeze_instructions(self) -> None:
        parts = self.instructions
        if isinstance(parts, Iterable) and not isinstance(parts, str | Mapping):
            object.__setattr__(self, "instructions", tuple(parts))
        if not all(isinstance(part, str) or callable(part) for part in self._instruction_parts):
            raise self._fault(f"instructions must be texts or functions, got {self.instructions!r}")

    @functools.cached_property
    def tool_map(self) -> Mapping[str, Tool[..., Any]]:
        """The tools by name; agents among them have become tools. Tools of toolsets are not known yet."""
        known = (item for item in self.tools if not isinstance(item, Toolset | HostedTool))
        return MappingProxyType({item.name: as_tool(item) if isinstance(item, Agent) else item for item in known})

    @functools.cached_property
    def hosted_tools(self) -> tuple[HostedTool, ...]:
        """The tools that the provider of its model runs."""
        return tuple(item for item in self.tools if isinstance(item, HostedTool))

    @functools.cached_property
    def toolsets(self) -> tuple[Toolset, ...]:
        """Its toolsets, and its handoff agents' toolsets."""
        own = [item for item in self.tools if isinstance(item, Toolset)]
        others = [one for target in self.handoffs if isinstance(target, Agent) for one in target.toolsets]
        return tuple(dict.fromkeys([*own, *others]))

    def with_tools(self, found: Mapping[Toolset, Sequence[Tool[..., Any]]]) -> "Agent[T_co, DepsT_co]":
        """Return the agent with the tools of its toolsets. If several share a name, its own tool wins, then the first.

        An adapter with `with_tools`, as foreign agents' adapters have, receives them.
        """
        taken = dict.fromkeys(item.name for item in self.tools if not isinstance(item, Toolset))
        tools: list[Tool[..., Any] | Agent | HostedTool] = []
        for item in self.tools:
            new = [tool for tool in found[item] if tool.name not in taken] if isinstance(item, Toolset) else [item]
            tools += new
            taken |= dict.fromkeys(tool.name for tool in new)
        own = {item: found[item] for item in self.tools if isinstance(item, Toolset)}
        adapter = self.adapter.with_tools(own) if hasattr(self.adapter, "with_tools") else self.adapter
        return replace(self, tools=tools, adapter=adapter)

    @functools.cached_property
    def speakers(self) -> "Mapping[str, Agent[Any]]":
        """The agents of a conversation that this one begins, by name, including itself; none if it never hands over."""
        return speakers(self)

    @functools.cached_property
    def samplers(self) -> "Mapping[str, Agent[Any]]":
        """The agents that answer for the models of the conversation's agents whose tools may ask, by name."""
        made = {one: self._sampler(one) for one in self.speakers.values() or (self,) if may_ask(one.tools)}
        return MappingProxyType({name: sampler for one, sampler in made.items() for name in one.names})

    def _sampler(self, agent: "Agent[Any]") -> "Agent[Any]":
        """Return the agent that answers for the model of an agent, as that one speaks in this agent's conversation."""
        suffix = "-sampling" if agent.name == self.name else f"-sampling-in-{self.name}"
        formerly = [f"{name}{suffix}" for name in agent.formerly]
        changes = sampling(agent.plain_settings(), agent.loop)
        return replace(agent, name=f"{agent.name}{suffix}", formerly=formerly, **changes)

    def speaking(self, name: str = "") -> "Agent[Any]":
        """Return an agent of a conversation that this agent begins, as it speaks there; "" is this agent.

        Raises:
            InputError: it cannot be handed over to.
        """
        if name in self.speakers:
            return self.speakers[name]
        if name and name not in self.names:
            raise InputError(
                f"The conversation is with the agent '{name}', to which agent '{self.name}' no longer hands over"
            )
        return self.speakers.get(self.name, self)

    def plain_settings(self) -> dict[str, Any]:
        """Return the settings as plain data; the caller owns the copy."""
        return {name: thawed(value) for name, value in self.settings.items()}

    # --- instructions, state, output ---

    @property
    def _instruction_parts(self) -> tuple[Instructions, ...]:
        if self.instructions is None:
            return ()
        return self.instructions if isinstance(self.instructions, tuple) else (cast(Instructions, self.instructions),)

    async def system_prompt(self, context: AgentContext) -> str:
        """Return the instructions, callables resolved and joined by newlines."""
        texts = []
        for part in self._instruction_parts:
            text = part if isinstance(part, str) else part(context)
            text = await text if isinstance(text, Awaitable) else text
            if not isinstance(text, str):
                raise self._fault(f"instructions must give text, got {text!r}")
            texts.append(text)
        prompt = "\n".join(texts) or (
            f'You are an AI agent named "{self.name}". Use the available tools to accomplish the user\'s request.'
        )
        if self.output_schema is None:
            return prompt
        return f"{prompt}\n\nAnswer with JSON alone that matches this schema: {json.dumps(self.output_schema)}"

    @functools.cached_property
    def _context_type(self) -> TypeAdapter[Any] | None:
        return None if self.context is None else schema_type(self.context, f"Agent '{self.name}'", "context")

    @functools.cached_property
    def context_schema(self) -> JSONObject | None:
        """The JSON schema of the context of a run; None if the agent has none."""
        kind = self._context_type
        return None if kind is None else json_schema(kind, f"Agent '{self.name}'", "context")

    @functools.cached_property
    def needs_context(self) -> bool:
        """Whether every run needs a context: `{}`, which represents a missing one, does not fit its type."""
        try:
            self.write_context(None)
        except InputError:
            return True
        return False

    def write_context(self, given: Any) -> str | None:
        """Write the context of a run as JSON; None if the agent has none.

        Raises:
            InputError: it does not fit the type, is not JSON, or is too large.
        """
        if self._context_type is not None:
            return write_context(self.name, self._context_type, given)
        if given is not None:
            raise InputError(f"Agent '{self.name}' does not take a context: declare the type with Agent(context=…)")
        return None

    def read_context(self, written: str | None) -> Any:
        """Read the value that `write_context` wrote.

        Raises:
            InputError: it no longer fits the type.
        """
        return None if self._context_type is None else read_context(self.name, self._context_type, written)

    @functools.cached_property
    def state_type(self) -> TypeAdapter[Any]:
        return schema_type(JSONObject if self.state is None else self.state, f"Agent '{self.name}'", "state")

    @functools.cached_property
    def _output_type(self) -> TypeAdapter[Any] | None:
        return None if self.output is None else schema_type(self.output, f"Agent '{self.name}'", "output")

    @functools.cached_property
    def _pristine(self) -> Any:
        """A private copy of the initial state."""
        return copy.deepcopy(self.initial_state)

    def new_state(self) -> Any:
        """Return a copy of the initial state for one run."""
        try:
            initial = {} if self._pristine is None else copy.deepcopy(self._pristine)
            return self.state_type.validate_python(initial)
        except ValidationError as error:
            raise self._fault(f"initial_state does not fit its type: {explain(error)}") from error

    def read_state(self, stored: str) -> Any:
        """Read a stored state; the initial state if it is not JSON or no longer fits the type."""
        try:
            return self.state_type.validate_json(stored)
        except ValidationError:
            return self.new_state()

    def write_state(self, state: Any) -> str:
        """Write a run's state as JSON.

        Raises:
            DefinitionError: a hook put a value into the state that does not fit its type, or that JSON would change.
        """
        if state == {}:
            return "{}"
        try:
            return write_kept(self.state_type, state)
        except ValidationError as error:
            raise self._fault(f"its state does not fit its type: {explain(error)}") from error
        except ChangedValueError as error:
            raise self._fault(f"its state {error}") from error
        except (PydanticSerializationError, ValueError) as error:
            raise self._fault(f"its state is not JSON: {error}") from error

    def read_output(self, response: str) -> Any:
        """Read a final answer as `output`; it may be in a Markdown code fence.

        Raises:
            ValueError: naming the invalid part.
        """
        if self._output_type is None:
            return None
        answer = unfenced(response)
        try:
            output = self._output_type.validate_json(answer)
        except ValidationError as error:
            raise ValueError(explain(error)) from error
        read_json(answer)  # pydantic accepts NaN; JSON does not have it
        return output

    def model_after(self, model: str | None) -> str | None:
        """Return the fallback to call if this model cannot be called; None without one.

        None is the agent's own model; a model that a person chose instead has the same fallbacks.
        """
        models = (None, *self.fallback_models)
        at = models.index(model) + 1 if model in models else 1
        return models[at] if at < len(models) else None

    @functools.cached_property
    def output_schema(self) -> JSONObject | None:
        return None if self._output_type is None else json_schema(self._output_type, f"Agent '{self.name}'", "output")


def thawed(value: Any) -> Any:
    """Return a mutable copy."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value


def frozen(value: Any) -> Any:
    """Return an immutable copy."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value


def check_models(agent: "Agent[Any]") -> tuple[str, ...]:
    """Return an agent's fallback models, after checking that it can have them.

    Raises:
        DefinitionError: naming the agent and the setting.
    """
    said = f"Agent '{agent.name}'"
    if agent.model is not None and not isinstance(agent.model, str):
        raise DefinitionError(
            f"{said}: model must be text like 'anthropic:claude-sonnet-4-6', got {agent.model!r:.80}; "
            "give an adapter as llm= to what runs the agent"
        )
    others: Any = agent.fallback_models
    if isinstance(others, str) or not isinstance(others, Iterable) or not all(isinstance(one, str) for one in others):
        raise DefinitionError(f"{said}: fallback_models must be a list of texts, got {others!r}")
    if agent.adapter is not None and not callable(getattr(agent.adapter, "chat", None)):
        raise DefinitionError(f"{said}: adapter must have `async def chat(messages, tools)`, got {agent.adapter!r:.80}")
    if agent.adapter is not None and tuple(others):
        raise DefinitionError(f"{said}: it has its own adapter, which a fallback model cannot replace")
    return tuple(others)


_FOR_EVER = "3650d"  # its own limits end an agent


def check_tools(agent: "Agent", kind: type[Any]) -> "tuple[Tool[..., Any] | Agent | Toolset | HostedTool, ...]":
    """Return an agent's `tools`, after checking that they are tools, agents and toolsets.

    Raises:
        DefinitionError: naming the agent and the rule.
    """
    said, given = f"Agent '{agent.name}': tools", agent.tools
    if isinstance(given, str | Mapping):
        raise DefinitionError(f"{said} must be a list of tools")
    try:
        tools = tuple(adopted(item) for item in given)
    except TypeError as error:
        raise DefinitionError(f"{said} must be a list of tools, got {given!r}") from error
    seen = set()
    for item in tools:
        if not isinstance(item, Tool | kind | Toolset | HostedTool):
            name = getattr(item, "__name__", repr(item))
            raise DefinitionError(f"{said}: {name} is not a Tool; decorate the function with @tool, or give {ACCEPTED}")
        if isinstance(item, Toolset):
            continue
        if item.name in seen:
            raise DefinitionError(f"{said}: two are named {item.name!r}")
        if isinstance(item, kind) and item.needs_context:
            raise DefinitionError(
                f"{said}: agent '{item.name}' needs a context, which a model does not give: write a tool that calls "
                f"ctx.agents.invoke({item.name}, message=…, context=…)"
            )
        seen.add(item.name)
    return tools


def as_tool(agent: "Agent") -> Tool[..., Any]:
    """Return a tool that asks the agent."""

    async def find(message: str, ctx: ToolContext) -> Happened | None:
        answer = await ctx.agents.find(agent) if isinstance(ctx.agents, AgentFinder) else None
        return None if answer is None else Happened(answer)

    description = agent.description or f"Ask the agent {agent.name}."

    @tool(name=agent.name, description=description, timeout=_FOR_EVER, verify=find)
    async def ask(message: str, ctx: ToolContext) -> str:
        return (await ctx.agents.invoke(agent, message=message))["response"]

    return ask


# Other settings may add tools, texts or conversations that a provider keeps, even ones unknown to us.
_SETTINGS = frozenset(
    [
        "max_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_sequences",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "thinking",
        "reasoning",
        "reasoning_effort",
        "verbosity",
        "service_tier",
        "timeout",
        "extra_headers",
    ]
)
_FOR_ANOTHER = "Another party's program asks for an answer to the following. Answer with text. You have no tools."


def may_ask(tools: Iterable[Any]) -> bool:
    """Whether tools may ask the model of their agent."""
    return any(isinstance(item, Tool | Toolset) and item.asks_model for item in tools)


def sampling(settings: Mapping[str, Any], loop: Loop) -> dict[str, Any]:
    """Return the options of the agent that answers for another agent's model, except its names.

    Args:
        settings, loop: of that other agent, whose other options stay.
    """
    return {
        "instructions": _FOR_ANOTHER,
        "settings": _harmless(settings),
        "tools": (),
        "handoffs": (),
        "description": None,
        "output": None,
        "tool_guardrails": (),
        "output_validators": (),
        "on_start": None,
        "on_complete": None,
        "on_stuck": None,
        "loop": Loop(
            max_iterations=1,
            answer_timeout=loop.answer_timeout,
            max_message_bytes=loop.max_message_bytes,
            model_retry=loop.model_retry,
            on_model_outage=loop.on_model_outage,
        ),
    }


def _harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that only affect how a model answers, even for one provider or in an `extra_body`."""
    kept = {name: value for name, value in settings.items() if name in _SETTINGS}
    within = {name: _harmless(value) for name, value in settings.items() if isinstance(value, Mapping)}
    return {name: value for name, value in within.items() if value} | kept
