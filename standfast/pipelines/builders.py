"""Builds pipelines stage by stage; each method returns another builder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, overload

from standfast.agents import Agent, ForeignAgent, check_name
from standfast.errors import DefinitionError
from standfast.pipelines.pipeline import (
    Branch,
    Map,
    Parallel,
    Pipeline,
    Repeat,
    Stage,
    Step,
    StepContext,
    StepInput,
    check_step_name,
)
from standfast.tools import Approval, Tool
from standfast.tools.checks import AccessRules, check_choice, check_count, check_function


@dataclass(frozen=True, eq=False)
class PipelineBuilder:
    """A pipeline that is being declared; each method returns another builder."""

    name: str
    input: Any = None
    access: AccessRules = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    formerly: Sequence[str] = ()
    deps: Callable[[StepContext], object] | None = None

    def _with(self, stage: Stage) -> "PipelineBuilder":
        return replace(self, stages=(*self.stages, stage))

    @overload
    def step(self, step: Step[Any], /) -> "PipelineBuilder": ...
    @overload
    def step(
        self,
        step: str,
        /,
        *,
        agent: Agent | ForeignAgent | None = None,
        run: Tool[..., Any] | None = None,
        approval: Approval[Any] | None = None,
        pipeline: "Pipeline | None" = None,
        input: StepInput | None = None,
        output: Any = None,
        accept_partial: bool = False,
    ) -> "PipelineBuilder": ...
    def step(self, step: str | Step[Any], /, **options: Any) -> "PipelineBuilder":
        """Add a step: a `Step`, or its name and options."""
        if isinstance(step, Step):
            if options:
                raise DefinitionError(f"Step '{step.name}': its options are declared with it; got {', '.join(options)}")
            return self._with(step)
        return self._with(Step(step, **options))

    def parallel(self, name: str, /, *steps: Step[Any]) -> "PipelineBuilder":
        """Add concurrent steps; see `Parallel`."""
        check_step_name(name)
        _check_steps(name, steps, least=1)
        return self._with(Parallel(name, steps))

    def branch(
        self,
        name: str,
        /,
        *,
        on: Callable[[StepContext], str],
        cases: Mapping[str, Step[Any]],
        default: Step[Any] | None = None,
    ) -> "PipelineBuilder":
        """Add a choice between steps: `on` returns a key of `cases`; see `Branch`."""
        check_step_name(name)
        check_function(f"Step '{name}': on", on)
        if not isinstance(cases, Mapping) or not all(isinstance(key, str) for key in cases):
            raise DefinitionError(f"Step '{name}': cases must map texts to steps, got {cases!r:.80}")
        stage = Branch(name, on, MappingProxyType(dict(cases)), default)
        _check_steps(name, stage.steps, least=1)
        return self._with(stage)

    def map(
        self, name: str, step: Step[Any], /, *, over: Callable[[StepContext], Any], concurrency: int = 5
    ) -> "PipelineBuilder":
        """Add a step for each item that `over` returns; see `Map`. The step's functions get it as `ctx.item`."""
        check_step_name(name)
        _check_steps(name, (step,), least=1)
        check_function(f"Step '{name}': over", over)
        check_count(f"Step '{name}': concurrency", concurrency, 1)
        return self._with(Map(name, over, step, concurrency))

    def loop(
        self,
        name: str,
        step: Step[Any],
        /,
        *,
        until: Callable[[StepContext], bool],
        max: int = 10,  # noqa: A002
        on_limit: Literal["fail", "continue"] = "fail",
    ) -> "PipelineBuilder":
        """Add a step that runs until `until` is true, at most `max` times; see `Repeat`.

        Args:
            on_limit: after `max` rounds "fail" ends the pipeline with "loop-limit", "continue" takes the last output.
        """
        check_step_name(name)
        _check_steps(name, (step,), least=1)
        check_function(f"Step '{name}': until", until)
        check_count(f"Step '{name}': max", max, 1)
        check_choice(f"Step '{name}': on_limit", on_limit, ("fail", "continue"))
        return self._with(Repeat(name, step, until, max, on_limit))

    def build(self) -> Pipeline:
        """Return the pipeline.

        Raises:
            DefinitionError: it has no step, or two of the same name; or a tool's dependencies are not provided.
        """
        return Pipeline(self.name, self.stages, self.input, self.access, self.formerly, self.deps)


def pipeline(
    name: str,
    *,
    input: Any = None,  # noqa: A002
    access: AccessRules | None = None,
    formerly: Sequence[str] = (),
    deps: Callable[[StepContext], object] | None = None,
) -> PipelineBuilder:
    """Begin a pipeline.

    Args:
        name: `^[a-z][a-z0-9_-]*$`; on Temporal the workflow type.
        input: the type of its input; anything that JSON can carry if None.
        access: `{"start": f, "approve": f}`, functions of a user id (or None) that return whether that user may do
            that.
        formerly: earlier names; their runs in flight and run keys belong to this pipeline.
        deps: a function of `StepContext`, plain or async, that returns what tools that are steps read as `ctx.deps`. It
            is called for each of them, in the process that runs it, with the pipeline's input and the user, and without
            outputs. If it returns an async context manager, the manager is entered, and closed again.

    Raises:
        DefinitionError: naming the fault.
    """
    check_name(name, "Pipeline")
    return PipelineBuilder(name, input, {} if access is None else access, formerly=formerly, deps=deps)


def _check_steps(name: str, steps: tuple[Any, ...], *, least: int) -> None:
    if len(steps) < least:
        raise DefinitionError(f"Step '{name}': at least one step is required")
    for step in steps:
        if not isinstance(step, Step):
            raise DefinitionError(f"Step '{name}': {step!r:.80} is not a Step; wrap it in Step(name, agent=…)")
