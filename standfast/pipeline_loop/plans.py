"""Describes a pipeline as a plan, and the actions that execute it.

A plan consists of names and numbers: no function, no schema, so that it can be recorded when a run starts.
"""

from dataclasses import dataclass
from typing import Any, Literal

from standfast.agent_loop import Gate
from standfast.agent_loop.gates import rejection
from standfast.pipelines import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step
from standfast.tools import Approval

REJECTED = "rejected"
_REJECTIONS = 3
What = Literal["input", "output", "on", "over", "until"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A step, or a stage of steps.

    Args:
        kind: "agent", "tool", "approval", "pipeline", "parallel", "branch", "map" or "loop".
        runs: the agent or tool.
        steps: of a stage; a pipeline's steps are its stages.
        keys: of a branch, by step; None for its default.
        concurrency: of a map.
        max, on_limit: of a loop.
        on_reject, max_rejections, edits: of an approval; whether its output is an editable value.
    """

    kind: str
    name: str
    runs: str | None = None
    steps: "tuple[Planned, ...]" = ()
    keys: tuple[str | None, ...] = ()
    concurrency: int = 1
    max: int = 1
    on_limit: str = "fail"
    on_reject: str = "end"
    max_rejections: int = _REJECTIONS
    edits: bool = False

    @property
    def goes_back(self) -> bool:
        """Whether a rejection goes back to an earlier stage."""
        return self.on_reject not in ("end", "continue")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step, or of a function of a stage.

    Args:
        value: for a function: the key of a branch, the number of items of a map, whether a loop ends. For a gate:
            `REJECTED`, if a rejection does not end the pipeline at once.
        reason: why it failed.
        error: the reason as text.
    """

    value: Any = None
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Call a stage's function (choice, items, whether to stop), or make a nested pipeline's input or output.

    The result is stored under `key`.
    """

    path: str
    what: What

    @property
    def key(self) -> str:
        return f"{self.path}?{self.what}"

    def done(self, kept: Any) -> Done:
        """Return the result for its stored value."""
        return Done(len(kept) if self.what == "over" else kept if self.what in ("on", "until") else None)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a step: ask its agent or its people, call its tool. It is done under `key`, its path."""

    path: str
    step: Planned

    @property
    def key(self) -> str:
        return self.path

    @property
    def what(self) -> str:
        """The data that must be made for it before it can run."""
        return "gate" if self.step.kind == "approval" else "with"

    def done(self, kept: Any) -> Done:
        """Return the result for its stored output."""
        match kept:
            case {"decision": "reject", "by": by, "comment": comment} if self.step.kind == "approval":
                return Done(REJECTED, error=rejection(self.path, ", ".join(by), comment))
        return Done()

    def decided(self, gate: Gate) -> Done:
        """Return a closed gate's effect on the pipeline; its output is stored unless the gate ends the pipeline."""
        failure = gate.failure
        by_people = gate.last is not None  # people whose deadline has passed have not asked for changes
        if gate.status == "rejected" and (self.step.on_reject == "continue" or (self.step.goes_back and by_people)):
            return self.done(gate.output)
        return Done() if failure is None else Done(None, *failure)


Action = Evaluate | RunStep


@dataclass(frozen=True, slots=True)
class Todo:
    """The steps that may run now, in the order of declaration, including running ones."""

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
        case Step(approval=Approval() as asked):
            most = _REJECTIONS if asked.max_rejections is None else asked.max_rejections
            edits = asked.edit is not None
            return Planned(stage.kind, stage.name, on_reject=asked.on_reject, max_rejections=most, edits=edits)
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
