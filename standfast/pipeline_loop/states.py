"""Decides what happens next in a pipeline, without I/O, from its plan and the results of its steps.

Every step has a path that is its own for good: its name, below that of the stage it is in, with the number of the item
or round in between.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from standfast.pipeline_loop.plans import Action, Done, Ended, Evaluate, Planned, RunStep, Todo


@dataclass(frozen=True, slots=True)
class Scope:
    """What the functions of a step see.

    Args:
        pipeline: the path of the nested pipeline that it is in, with a slash; "" for the outermost.
        prev: the outputs before it, by name.
        over, index: in a map, its path and which item it is.
        iteration: in a loop.
    """

    pipeline: str
    prev: dict[str, Any]
    over: str | None = None
    index: int | None = None
    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineState:
    """How far a pipeline is.

    Args:
        stages: its plan.
        done: by key.
    """

    stages: tuple[Planned, ...]
    done: Mapping[str, Done] = field(default_factory=dict)

    def ended(self, key: str, done: Done) -> "PipelineState":
        """Return the state after something is done."""
        return PipelineState(self.stages, {**self.done, key: done})

    def next_actions(self, running: Collection[str] = ()) -> Todo | Ended:
        """Return what may run, or how the pipeline ended.

        Args:
            running: keys of running steps: a stage that failed ends when none of its steps runs any more.
        """
        return self._sequence(self.stages, "", running)

    def _sequence(self, stages: tuple[Planned, ...], above: str, running: Collection[str]) -> Todo | Ended:
        for stage in stages:
            found = self._visit(stage, f"{above}{stage.name}", running)
            if isinstance(found, Todo) or found.reason is not None:
                return found
        return Ended()

    def _visit(self, step: Planned, path: str, running: Collection[str]) -> Todo | Ended:
        match step.kind:
            case "parallel":
                return self._together([(child, f"{path}/{child.name}") for child in step.steps], running)
            case "branch":
                return self._branch(step, path, running)
            case "map":
                return self._map(step, path, running)
            case "loop":
                return self._loop(step, path, running)
            case "pipeline":
                return self._nested(step, path, running)
            case _:
                return self._of(RunStep(path, step))

    def _of(self, action: Action) -> Todo | Ended:
        done = self.done.get(action.key)
        if done is None:
            return Todo((action,))
        return Ended() if done.reason is None else Ended(action.path, done.reason, done.error)

    def _nested(self, step: Planned, path: str, running: Collection[str]) -> Todo | Ended:
        made = self._of(Evaluate(path, "input"))
        if isinstance(made, Todo) or made.reason is not None:
            return made
        found = self._sequence(step.steps, f"{path}/", running)
        if isinstance(found, Todo) or found.reason is not None:
            return found
        return self._of(Evaluate(path, "output"))

    def _together(
        self, children: list[tuple[Planned, str]], running: Collection[str], at_once: int | None = None
    ) -> Todo | Ended:
        """Run steps side by side; the first that failed, in their order, is the one that fails the stage."""
        found = [self._visit(child, path, running) for child, path in children]
        failed = next((one for one in found if isinstance(one, Ended) and one.reason is not None), None)
        waiting = [one for one in found if isinstance(one, Todo)]
        actions = tuple(action for one in waiting[:at_once] for action in one.actions)
        if failed is None:
            return Todo(actions) if waiting else Ended()
        left = tuple(action for one in waiting for action in one.actions if action.key in running)
        return Todo(left) if left else failed

    def _branch(self, step: Planned, path: str, running: Collection[str]) -> Todo | Ended:
        chosen = self._of(on := Evaluate(path, "on"))
        if isinstance(chosen, Todo):
            return chosen
        key = self.done[on.key].value
        child = chosen_step(step, key)
        if child is None:
            known = ", ".join(repr(known) for known in step.keys)
            return Ended(path, "no-branch", f"Step '{path}' has no branch {key!r} and no default; it has {known}")
        return self._visit(child, f"{path}/{child.name}", running)

    def _map(self, step: Planned, path: str, running: Collection[str]) -> Todo | Ended:
        counted = self._of(over := Evaluate(path, "over"))
        if isinstance(counted, Todo):
            return counted
        children = [(step.steps[0], f"{path}/{index}") for index in range(self.done[over.key].value)]
        return self._together(children, running, step.concurrency)

    def _loop(self, step: Planned, path: str, running: Collection[str]) -> Todo | Ended:
        for number in range(step.max):
            found = self._visit(step.steps[0], f"{path}/{number}", running)
            if isinstance(found, Todo) or found.reason is not None:
                return found
            checked = self._of(until := Evaluate(f"{path}/{number}", "until"))
            if isinstance(checked, Todo) or self.done[until.key].value:
                return checked
        if step.on_limit == "continue":
            return Ended()
        return Ended(path, "loop-limit", f"Step '{path}' was not done after {step.max} rounds")

    # --- outputs ---

    def outputs(self, load: Callable[[str], Any]) -> dict[str, Any]:
        """Return the outputs of the stages that are done, by name; see `output`."""
        found = {}
        for stage in self.stages:
            if not self.is_done(stage.name):
                break
            found[stage.name] = self.output(stage, stage.name, load)
        return found

    def is_done(self, name: str) -> bool:
        """Whether a stage is done, and did not fail."""
        found = self._visit(self.planned(name), name, ())
        return isinstance(found, Ended) and found.reason is None

    def planned(self, path: str) -> Planned:
        """Return what is planned at the path of a step or stage."""
        return _planned_at(self.stages, path.split("/"))

    def output(self, stage: Planned, path: str, load: Callable[[str], Any]) -> Any:
        """Return the output of a stage that is done.

        Args:
            load: returns the output of a step by its path; of a nested pipeline by that and "?output".
        """
        match stage.kind:
            case "parallel":
                return {step.name: self.output(step, f"{path}/{step.name}", load) for step in stage.steps}
            case "branch":
                chosen = chosen_step(stage, self.done[f"{path}?on"].value)
                return None if chosen is None else self.output(chosen, f"{path}/{chosen.name}", load)
            case "map":
                count = self.done[f"{path}?over"].value
                return [self.output(stage.steps[0], f"{path}/{index}", load) for index in range(count)]
            case "loop":
                return self.output(stage.steps[0], f"{path}/{self._rounds(stage, path) - 1}", load)
            case "pipeline":
                return load(f"{path}?output")
            case _:
                return load(path)

    def scope(self, path: str, load: Callable[[str], Any], *, what: str = "with") -> Scope:
        """Return what the functions of a step see.

        Args:
            path: of the step; of a round of a loop for its `until`, which sees that round, too.
            load: returns the output of a step by its path.
            what: the function that is called.
        """
        return self._scope(self.stages, "", path.split("/") + ["?"] * (what == "until"), load)

    def _scope(self, stages: tuple[Planned, ...], above: str, parts: list[str], load: Callable[[str], Any]) -> Scope:
        prev: dict[str, Any] = {}
        stage = stages[0]
        for stage in stages:
            path = f"{above}{stage.name}"
            if stage.name == parts[0]:
                break
            prev[stage.name] = self.output(stage, path, load)
            if stage.kind == "parallel":
                prev |= prev[stage.name]
            elif stage.kind == "branch" and (chosen := chosen_step(stage, self.done[f"{path}?on"].value)) is not None:
                prev[chosen.name] = prev[stage.name]
        return self._within(stage, f"{above}{stage.name}", parts[1:], Scope(above, prev), load)

    def _within(self, stage: Planned, path: str, parts: list[str], scope: Scope, load: Callable[[str], Any]) -> Scope:
        """Return the scope within a stage, with what has run so far."""
        if not parts:
            return scope
        match stage.kind:
            case "parallel" | "branch":
                child = next(step for step in stage.steps if step.name == parts[0])
                return self._within(child, f"{path}/{child.name}", parts[1:], scope, load)
            case "map":
                here = replace(scope, over=path, index=int(parts[0]))
                return self._within(stage.steps[0], f"{path}/{parts[0]}", parts[1:], here, load)
            case "loop":
                number, body = int(parts[0]), stage.steps[0]
                last = number if parts[1:] == ["?"] else number - 1
                seen = {} if last < 0 else {body.name: self.output(body, f"{path}/{last}", load)}
                here = replace(scope, prev={**scope.prev, **seen}, iteration=number)
                return self._within(body, f"{path}/{parts[0]}", [part for part in parts[1:] if part != "?"], here, load)
            case _:
                return self._scope(stage.steps, f"{path}/", parts, load)

    def _rounds(self, stage: Planned, path: str) -> int:
        return sum(f"{path}/{number}?until" in self.done for number in range(stage.max))


def _planned_at(stages: tuple[Planned, ...], parts: list[str]) -> Planned:
    stage = next(stage for stage in stages if stage.name == parts[0])
    if len(parts) == 1:
        return stage
    if stage.kind in ("map", "loop"):
        body = stage.steps[0]
        return body if len(parts) == 2 else _planned_at(body.steps, parts[2:])
    return _planned_at(stage.steps, parts[1:])


def chosen_step(branch: Planned, key: object) -> Planned | None:
    """Return the step of a branch for a key, or its default, or None."""
    for wanted in (key, None):
        if wanted in branch.keys:
            return branch.steps[branch.keys.index(wanted)]
    return None
