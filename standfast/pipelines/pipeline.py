"""Pipelines: steps in order, declared once and frozen. Nothing here runs anything."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypedDict, Unpack, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypeVar

from standfast.agents import Agent, ForeignAgent, adopted, check_former_names, check_name
from standfast.errors import DefinitionError, InputError
from standfast.messages import JSONObject, clean_text, error_text, explain, json_problem, read_json, with_article
from standfast.tools import Approval, Tool, json_schema, schema_type
from standfast.tools.checks import AccessRules, check_access, check_deps, check_function, suggesting
from standfast.tools.signatures import wanted_deps

T = TypeVar("T", default=Any)
StepKind = Literal["agent", "approval", "tool", "pipeline"]
MAX_STEPS = 1_000  # in one pipeline, counting nested ones wherever they are used

_VISITED = re.compile(r"([a-z][a-z0-9_-]*)_[1-9][0-9]*")


def check_step_name(name: object) -> None:
    """Refuse an invalid step name, and one that equals the path part of another stage's second visit."""
    check_name(name, "Step")
    if _VISITED.fullmatch(str(name)):
        number = str(name).rpartition("_")[2]
        raise DefinitionError(
            f"Step name must not end in _{number}, which marks the {number}. visit of a stage, got {name!r}; "
            f"name it {name_of(str(name))}-{number}"
        )


def visited(name: str, times: int) -> str:
    """Return a stage's part of a path for its first visit, its second, and so on."""
    return name if times == 1 else f"{name}_{times}"


def name_of(part: str) -> str:
    """Return the name of a stage, from its part of a path."""
    found = _VISITED.fullmatch(part)
    return part if found is None else found[1]


class _Unknown:
    """A type that no output has: every checker accepts only a `Step[Any]` for a step of it."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The argument of a step's functions, with private copies of the values.

    Args:
        input: the pipeline's input, in its `input` type.
        prev: the outputs of the earlier steps, by name; `ctx[step]` gives one with its type.
        item, index: in a `map`, the current item and its index.
        iteration: in a `loop`, the number of rounds before.
        feedback: the comments of the people who rejected, if a rejection has gone back to this step or an earlier one;
            "" if they gave none, and None without a rejection.
        user_id, tenant_id: the user who started the pipeline.
        run_key: the key by which that user finds the run again; None without a store. A nested pipeline has the
            outermost's.
    """

    input: Any
    prev: Mapping[str, Any] = field(default_factory=dict)
    item: Any = None
    index: int | None = None
    iteration: int | None = None
    feedback: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    run_key: str | None = None

    @overload
    def __getitem__(self, step: "Step[_Unknown]") -> Any: ...
    @overload
    def __getitem__(self, step: "Step[None]") -> dict[str, str]: ...
    @overload
    def __getitem__(self, step: "Step[T]") -> T: ...
    def __getitem__(self, step: "Step[Any]") -> Any:
        """Return the output of a step that has run.

        Raises:
            InputError: it has not run.
        """
        if isinstance(step, str):
            raise InputError(f"ctx[…] takes a Step; by its name it is ctx.prev[{step!r}]")
        if step.name not in self.prev:
            raise InputError(f"Step '{step.name}' has no output yet; there are {', '.join(self.prev) or 'none'}")
        return self.prev[step.name]


StepInput = Callable[[StepContext], Any]


class _Options(TypedDict, total=False):
    """The arguments of a `Step` besides its name, its output and the thing that it runs."""

    input: StepInput | None
    context: StepInput | None
    accept_partial: bool


class _Runs(_Options, total=False):
    """The same, and the thing that it runs, if that is not an agent."""

    run: Tool[..., Any] | None
    approval: Approval[Any] | None
    pipeline: "Pipeline | None"


class _RunsAny(_Runs, total=False):
    """The same, and the thing that it runs."""

    agent: Agent | ForeignAgent | None


@suggesting
@dataclass(frozen=True, eq=False)
class Step(Generic[T]):
    """One step, run by an agent, a tool, people, or another pipeline. `ctx[step]` is its output, a `T`.

    It is a `Step[None]` if neither it nor its agent declares an output; `ctx[step]` is then `{"response": text}`.

    Args:
        name: `^[a-z][a-z0-9_-]*$`, without a number after a final underscore.
        agent: answers the message that `input` makes; it may come from another framework.
        run: a tool, called with the arguments that `input` makes, without a model.
        approval: people decide; the output is `{"decision", "by", "comment", "edit"}`, or the value that they may edit.
        pipeline: run with the input that `input` makes; its last step's output is this one's.
        input: a function of `StepContext`. For an agent it returns the message, or `{"message": …}`; by default that is
            `Execute step "<name>"`, with the comments of a rejection. For a tool it returns the arguments, for a
            pipeline the input; by default `{}`.
        context: a function of `StepContext` that returns the context of its agent's run, if the agent declares one.
        output: the type that the output must match; an agent's answer is then read as JSON. By default the agent's own
            `output` applies; the output of an agent without one is `{"response": text}`.
        accept_partial: whether the step counts as done if its agent stopped at a limit with a text.

    Raises:
        DefinitionError: naming the step, the field and the rule.
    """

    name: str
    _: KW_ONLY
    agent: Agent | None = None
    run: Tool[..., Any] | None = None
    approval: Approval[Any] | None = None
    pipeline: "Pipeline | None" = None
    input: StepInput | None = None
    context: StepInput | None = None
    output: type[T] | None = None
    accept_partial: bool = False
    kind: StepKind = field(init=False)

    if TYPE_CHECKING:  # the type of a step's output follows from the thing that it runs

        @overload
        def __init__(self, name: str, *, output: type[T], **options: Unpack[_RunsAny]) -> None: ...
        @overload
        def __init__(self, name: str, *, agent: Agent[T], **options: Unpack[_Options]) -> None: ...
        @overload
        def __init__(self: "Step[JSONObject]", name: str, *, approval: Approval[None]) -> None: ...
        @overload
        def __init__(self, name: str, *, approval: Approval[T]) -> None: ...
        @overload
        def __init__(self: "Step[Any]", name: str, *, output: Any, **options: Unpack[_RunsAny]) -> None: ...
        @overload  # mypy considers an agent with unknown deps ambiguous if two overloads fit it
        def __init__(self: "Step[Any]", name: str, *, agent: ForeignAgent, **options: Unpack[_Options]) -> None: ...
        @overload
        def __init__(self: "Step[Any]", name: str, **options: Unpack[_Runs]) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        check_step_name(self.name)
        object.__setattr__(self, "agent", adopted(self.agent))
        kinds: dict[StepKind, Any] = {
            "agent": self.agent,
            "tool": self.run,
            "approval": self.approval,
            "pipeline": self.pipeline,
        }
        types = {"agent": Agent, "tool": Tool, "approval": Approval, "pipeline": Pipeline}
        given = [kind for kind, value in kinds.items() if value is not None]
        if len(given) > 1:
            raise self._fault(f"it is of one kind, not {' and '.join(given)}")
        for kind in given:
            if not isinstance(kinds[kind], types[kind]):
                name, wanted = "run" if kind == "tool" else kind, with_article(types[kind].__name__)
                raise self._fault(f"{name} must be {wanted}, got {kinds[kind]!r:.80}")
        if self.approval is not None and self.approval.edit is not None and self.output not in (None, self.shape):
            raise self._fault(f"its output is the {self.shape.__name__} that people may change; leave output= out")
        if self.run is not None and self.run.approval is not None:
            raise self._fault(f"tool '{self.run.name}' has an approval; put an approval step before it")
        if self.approval is not None and any(one.remember for one in self.approval.chain):
            raise self._fault("approval.remember is for a tool's calls, not for a pipeline's gate")
        object.__setattr__(self, "kind", given[0] if given else "agent")
        if self.input is not None:
            check_function(f"Step '{self.name}': input", self.input)
        self._check_context()
        if not isinstance(self.accept_partial, bool):
            raise self._fault(f"accept_partial must be True or False, got {self.accept_partial!r}")
        _ = self._output_type
        if self.approval is not None and self.approval.edit is not None:
            _ = self.schema

    def _check_context(self) -> None:
        if self.context is not None:
            check_function(f"Step '{self.name}': context", self.context)
        if self.context is not None and (self.agent is None or self.agent.context is None):
            raise self._fault("context= is for an agent that declares the type of its context: Agent(context=…)")
        if self.context is None and self.agent is not None and self.agent.needs_context:
            raise self._fault(f"agent '{self.agent.name}' needs a context: give context=lambda ctx: …")

    def _fault(self, text: str) -> DefinitionError:
        return DefinitionError(f"Step '{self.name}': {text}")

    @property
    def shape(self) -> Any:
        """The type of the output: its own, its agent's, or that of its gate's editable value."""
        if self.approval is not None and self.approval.edit is not None:
            return self.approval.edit
        return self.agent.output if self.output is None and self.agent is not None else self.output

    @functools.cached_property
    def _output_type(self) -> TypeAdapter[Any] | None:
        return None if self.shape is None else schema_type(self.shape, f"Step '{self.name}'", "output")

    @functools.cached_property
    def schema(self) -> JSONObject:
        """The schema of the output."""
        return {} if self._output_type is None else json_schema(self._output_type, f"Step '{self.name}'", "output")

    @functools.cached_property
    def type_digest(self) -> str:
        """A digest that changes with the type of the output; "" without a type."""
        return digest_of(self._output_type, self.shape)

    def read_output(self, value: Any) -> Any:
        """Read an output from plain JSON data, in the type `output`.

        Raises:
            InputError: it does not match.
        """
        if self._output_type is None:
            return value
        try:
            return self._output_type.validate_json(to_json(value))
        except ValidationError as error:
            raise InputError(f"Step '{self.name}': its output does not match: {explain(error)}") from error
        except Exception as error:  # whatever a user's validator raises
            raise InputError(f"Step '{self.name}': its output does not match: {error_text(error)}") from error

    def write_output(self, value: Any) -> Any:
        """Return a typed output as plain JSON data."""
        return plain_value(self._output_type, value, f"Step '{self.name}'")

    def make_input(self, context: StepContext) -> Any:
        """Return the input that the step is called with: a message, arguments, or a pipeline's input.

        Raises:
            InputError: `input` returned another kind of value.
        """
        given = None if self.input is None else self.input(context)
        if self.kind == "agent":
            return self._message(given, context.feedback)
        if self.kind == "tool":
            if given is not None and not isinstance(given, Mapping):
                raise InputError(f"Step '{self.name}': input must give the tool's arguments, got {given!r:.80}")
            if problem := json_problem(given):
                raise InputError(f"Step '{self.name}': input gives arguments that are not JSON: {problem}")
            return {} if given is None else dict(given)
        return {} if given is None else given

    def make_context(self, context: StepContext) -> Any:
        """Return the context of its agent's run as JSON data; None if the step gives none.

        Raises:
            InputError: it does not fit the agent's type.
        """
        if self.context is None or self.agent is None:
            return None
        written = self.agent.write_context(self.context(context))
        return None if written is None else read_json(written)

    def _message(self, given: Any, feedback: str | None) -> str:
        if self.input is None:
            return f'Execute step "{self.name}"' + (f" again; it was rejected: {feedback}" if feedback else "")
        message = given.get("message") if isinstance(given, Mapping) else given
        if not isinstance(message, str):
            raise InputError(f"Step '{self.name}': input must give a text or {{'message': text}}, got {given!r:.80}")
        return clean_text(message)


@dataclass(frozen=True, eq=False, slots=True)
class Parallel:
    """Concurrent steps; the output is their outputs, by name. If one fails, the stage fails once all have ended."""

    kind: ClassVar[str] = "parallel"
    name: str
    steps: tuple[Step[Any], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """One of several steps, chosen by a function; the output is that step's."""

    kind: ClassVar[str] = "branch"
    name: str
    on: Callable[[StepContext], str]
    cases: Mapping[str, Step[Any]]
    default: Step[Any] | None = None

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        return (*self.cases.values(), *((self.default,) if self.default is not None else ()))


@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """A step for each item of a list, a few at a time; the output is the list of their outputs, in order."""

    kind: ClassVar[str] = "map"
    name: str
    over: Callable[[StepContext], Any]
    step: Step[Any]
    concurrency: int = 5

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        return (self.step,)


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """A step that is repeated until a function returns true; the output is the last one."""

    kind: ClassVar[str] = "loop"
    name: str
    step: Step[Any]
    until: Callable[[StepContext], bool]
    max: int = 10
    on_limit: Literal["fail", "continue"] = "fail"

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        return (self.step,)


Stage = Step[Any] | Parallel | Branch | Map | Repeat


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Steps in order. `pipeline(…)` makes one."""

    name: str
    stages: tuple[Stage, ...]
    input: Any = None
    access: AccessRules = field(default_factory=dict)
    formerly: Sequence[str] = ()
    deps: Callable[[StepContext], object] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "Pipeline")
        whose = f"Pipeline '{self.name}'"
        object.__setattr__(self, "formerly", check_former_names(self.name, self.formerly, whose))
        if not self.stages:
            raise DefinitionError(f"Pipeline '{self.name}': at least one step is required")
        seen = set()
        for stage in self.stages:
            for name in _names_of(stage):
                if name in seen:
                    raise DefinitionError(f"Pipeline '{self.name}': two steps are named {name!r}")
                seen.add(name)
        self._check_rejections()
        self._check_deps()
        if (count := self.size) > MAX_STEPS:
            raise DefinitionError(f"Pipeline '{self.name}': {count:,} steps, more than {MAX_STEPS:,}")
        object.__setattr__(self, "access", check_access(whose, self.access))
        _ = self._input_type

    def _check_deps(self) -> None:
        check_deps(f"Pipeline '{self.name}'", self.deps)
        for step in self.all_steps():
            wanted = None if step.run is None else wanted_deps(step.run.handler)
            if wanted is not None and self.deps is None:
                raise DefinitionError(
                    f"Pipeline '{self.name}', step '{step.name}': its tool needs a ToolContext[{wanted}]: give "
                    "pipeline(…, deps=…), a function of StepContext that makes what it depends on"
                )

    def _check_rejections(self) -> None:
        before: list[str] = []
        for stage in self.stages:
            for step in (stage,) if isinstance(stage, Step) else stage.steps:
                asked = step.approval
                if asked is not None and asked.goes_back and asked.on_reject not in before:
                    known = ", ".join(before) or "none"
                    raise DefinitionError(
                        f"Pipeline '{self.name}', step '{step.name}': on_reject={asked.on_reject!r} must be \"end\", "
                        f'"continue" or the name of a stage before it; there are {known}'
                    )
            before.append(stage.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its former names."""
        return (self.name, *self.formerly)

    @property
    def size(self) -> int:
        """The number of steps, including those of nested pipelines."""
        return sum(1 for _ in self.every_step())

    def every_step(self) -> Iterator[Step[Any]]:
        """Return all steps; a nested pipeline's steps replace its step."""
        for step in self.all_steps():
            if step.pipeline is None:
                yield step
            else:
                yield from step.pipeline.every_step()

    def all_steps(self) -> Iterator[Step[Any]]:
        """Return the steps of all stages."""
        for stage in self.stages:
            yield from (stage,) if isinstance(stage, Step) else stage.steps

    @functools.cached_property
    def _input_type(self) -> TypeAdapter[Any] | None:
        return None if self.input is None else schema_type(self.input, f"Pipeline '{self.name}'", "input")

    @functools.cached_property
    def input_schema(self) -> JSONObject | None:
        return None if self._input_type is None else json_schema(self._input_type, f"Pipeline '{self.name}'", "input")

    @property
    def type_digest(self) -> str:
        """A digest that changes with the type of the input; "" without a type."""
        return digest_of(self._input_type, self.input)

    def read_input(self, data: Any) -> Any:
        """Read the input in its type: defaults filled in, unknown keys dropped.

        Raises:
            InputError: it does not match.
        """
        try:
            if self._input_type is None:
                return read_json(to_json(data).decode())
            return self._input_type.validate_json(data if isinstance(data, bytes) else to_json(data))
        except ValidationError as error:
            raise InputError(f'Workflow "{self.name}" input validation failed: {explain(error)}') from error
        except Exception as error:  # whatever a user's validator raises, or it is not JSON
            raise InputError(f'Workflow "{self.name}" input validation failed: {error_text(error)}') from error

    def write_input(self, value: Any) -> Any:
        """Return a typed input as plain JSON data."""
        return plain_value(self._input_type, value, f"Pipeline '{self.name}'")


def _names_of(stage: Stage) -> list[str]:
    return [stage.name] if isinstance(stage, Step) else [stage.name, *(step.name for step in stage.steps)]


def digest_of(kind: TypeAdapter[Any] | None, shape: Any) -> str:
    """Return a digest that identifies a type: of its schema, or of its source text if only code reads it."""
    if kind is None:
        return ""
    try:
        schema = to_json(kind.json_schema())
    except Exception:  # whatever pydantic, or user code called by it, raises
        schema = repr(shape).encode()
    return hashlib.blake2b(schema, digest_size=8).hexdigest()


def plain_value(kind: TypeAdapter[Any] | None, value: Any, whose: str) -> Any:
    try:
        text = to_json(value) if kind is None else kind.dump_json(value, warnings=False, by_alias=True, round_trip=True)
        return read_json(text.decode())
    except (PydanticSerializationError, ValueError) as error:
        raise InputError(f"{whose}: its value is not JSON: {error}") from error
