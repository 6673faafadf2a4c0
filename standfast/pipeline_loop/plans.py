"""Describes a pipeline as a plan, and the actions that carry it out.

A plan is names and numbers: no function, no schema, so that it can be recorded when a run starts.
"""

from dataclasses import dataclass
from typing import Any, Literal

from standfast.pipelines import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step

What = Literal["input", "output", "on", "over", "until"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A step, or a stage of steps.

    Args:
        kind: "agent", "tool", "approval", "pipeline", "parallel", "branch", "map" or "loop".
        runs: the agent or tool.
        steps: of a stage; those of a pipeline are its stages.
        keys: of a branch, by step; None for its default.
        concurrency: of a map.
        max, on_limit: of a loop.
    """

    kind: str
    name: str
    runs: str | None = None
    steps: "tuple[Planned, ...]" = ()
    keys: tuple[str | None, ...] = ()
    concurrency: int = 1
    max: int = 1
    on_limit: str = "fail"


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step, or of a function of a stage.

    Args:
        value: for a function: the key of a branch, the number of items of a map, whether a loop ends.
        reason: why it failed.
        error: the same in words.
    """

    value: Any = None
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Call a function of a stage: what to choose, what to go over, whether it is enough; or a nested pipeline's input
    and output. It is done under `key`.
    """

    path: str
    what: What

    @property
    def key(self) -> str:
        return f"{self.path}?{self.what}"

    def done(self, kept: Any) -> Done:
        """Return what is done by the value that is kept of it."""
        return Done(len(kept) if self.what == "over" else kept if self.what in ("on", "until") else None)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a step: ask its agent or its people, call its tool. It is done under `key`, its path."""

    path: str
    step: Planned

    @property
    def key(self) -> str:
        return self.path

    def done(self, kept: Any) -> Done:
        """Return what is done by the output that is kept of it."""
        return Done()


Action = Evaluate | RunStep


@dataclass(frozen=True, slots=True)
class Todo:
    """The steps that may run now, in the order of their declaration, including those that already run."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The pipeline has ended: complete, or at a step that failed."""

    failed_step: str | None = None
    reason: str | None = None
    error: str | None = None


def plan(pipeline: Pipeline) -> tuple[Planned, ...]:
    """Return the plan of a pipeline."""
    return tuple(_planned(stage) for stage in pipeline.stages)


def _planned(stage: Stage) -> Planned:
    steps = () if isinstance(stage, Step) else tuple(_planned(step) for step in stage.steps)
    match stage:
        case Step(kind="pipeline", pipeline=nested) if nested is not None:
            return Planned("pipeline", stage.name, steps=plan(nested))
        case Step(agent=agent, run=run):
            runs = agent or run
            return Planned(stage.kind, stage.name, runs=None if runs is None else runs.name)
        case Parallel():
            return Planned(stage.kind, stage.name, steps=steps)
        case Branch(cases=cases, default=default):
            keys = (*cases, *((None,) if default is not None else ()))
            return Planned(stage.kind, stage.name, steps=steps, keys=keys)
        case Map(concurrency=concurrency):
            return Planned(stage.kind, stage.name, steps=steps, concurrency=concurrency)
        case Repeat():
            return Planned(stage.kind, stage.name, steps=steps, max=stage.max, on_limit=stage.on_limit)
