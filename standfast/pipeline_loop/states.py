"""Decides what happens next in a pipeline, without I/O, from its plan and the results of its steps.

Every step has a permanent path: its name, below the name of its stage, with the number of the item or round in between.
Stages form a sequence and are visited one after the other. When people reject at a gate, the walk can go back, and a
stage that it visits again has another path.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from standfast.errors import InputError
from standfast.pipeline_loop.plans import REJECTED, Action, Done, Ended, Evaluate, Planned, RunStep, Todo
from standfast.pipelines.pipeline import name_of, visited

_GOES_BACK = "changes-requested"  # the reason why a stage has not passed, until its sequence goes back


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that the functions of a step see.

    Args:
        pipeline: the path of its nested pipeline, with a slash; "" for the outermost.
        prev: the earlier outputs, by name.
        over, index: in a map, its path and the index of the item.
        iteration: in a loop.
        feedback: the paths of the gates whose rejections have led back to it or to an earlier stage.
    """

    pipeline: str
    prev: dict[str, Any]
    over: str | None = None
    index: int | None = None
    iteration: int | None = None
    feedback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Visit:
    """One visit of a stage; `feedback` as in `Scope`."""

    stage: Planned
    path: str
    feedback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The progress of a pipeline.

    Args:
        stages: its plan.
        done: results by key.
    """

    stages: tuple[Planned, ...]
    done: Mapping[str, Done] = field(default_factory=dict)

    def ended(self, key: str, done: Done) -> "PipelineState":
        """Return the state after a result."""
        return PipelineState(self.stages, {**self.done, key: done})

    def next_actions(self, running: Collection[str] = ()) -> Todo | Ended:
        """Return the actions that may run, or how the pipeline ended.

        Args:
            running: keys of running steps: a failed stage ends when all of its steps have stopped.
        """
        return self._sequence(self.stages, "", running)

    def _sequence(self, stages: tuple[Planned, ...], above: str, running: Collection[str]) -> Todo | Ended:
        found: Todo | Ended = Ended()
        for visit in self._walk(stages, above):
            found = self._visit(visit.stage, visit.path, running)
            if isinstance(found, Todo) or found.reason not in (None, _GOES_BACK):
                return found
        if isinstance(found, Ended) and found.reason == _GOES_BACK:
            return replace(found, reason="approval-rejected")  # too often to go back again
        return found

    def _walk(self, stages: tuple[Planned, ...], above: str) -> Iterator[_Visit]:
        """Yield the visits of the stages in a sequence; the caller takes the next one only when the last has ended.

        A rejection goes back to the stage that its gate names, unless the gate has done so too often: the walk ends.
        """
        times, rejections, names = Counter[str](), Counter[str](), [stage.name for stage in stages]
        feedback: tuple[str, ...] = ()
        at, last = 0, -1  # the index of the stage, and of the stage whose gate was rejected
        while at < len(stages):
            stage = stages[at]
            times[stage.name] += 1
            path = f"{above}{visited(stage.name, times[stage.name])}"
            yield _Visit(stage, path, feedback if at <= last else ())
            rejected = self._rejected(stage, path)
            if not rejected:
                at += 1
                continue
            rejections.update({action.step.name for action in rejected})
            if any(rejections[action.step.name] > action.step.max_rejections for action in rejected):
                return
            feedback, last = tuple(action.path for action in rejected), max(at, last)
            at = min(names.index(action.step.on_reject) for action in rejected)

    def _rejected(self, step: Planned, path: str) -> list[RunStep]:
        """Return the gates of a stage whose rejections go back; a nested pipeline's rejections go back within it."""
        match step.kind:
            case "approval":
                done = self.done.get(path)
                is_rejected = step.goes_back and done is not None and done.value == REJECTED
                return [RunStep(path, step)] if is_rejected else []
            case "parallel":
                below = [(child, f"{path}/{child.name}") for child in step.steps]
            case "branch":
                child = chosen_step(step, self.done[f"{path}?on"].value)
                below = [] if child is None else [(child, f"{path}/{child.name}")]
            case "map":
                below = [(step.steps[0], f"{path}/{index}") for index in range(self.done[f"{path}?over"].value)]
            case "loop":
                below = [(step.steps[0], f"{path}/{number}") for number in range(step.max)]
            case _:
                below = []
        return [action for child, at in below for action in self._rejected(child, at)]

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
            case "approval" if (done := self.done.get(path)) and done.value == REJECTED and step.goes_back:
                return Ended(path, _GOES_BACK, done.error or f"gate {path} was rejected")
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
        """Run steps side by side; the first failed one, in order, fails the stage.

        When a gate goes back, the others are still asked: the comments of all of them go back together.
        """
        found = [self._visit(child, path, running) for child, path in children]
        ended = [one for one in found if isinstance(one, Ended) and one.reason is not None]
        failed = next((one for one in ended if one.reason != _GOES_BACK), None)
        waiting = [one for one in found if isinstance(one, Todo)]
        actions = tuple(action for one in waiting[:at_once] for action in one.actions)
        if failed is None:
            return Todo(actions) if waiting else next(iter(ended), Ended())
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
        """Return the outputs of the finished stages, by name; see `output`."""
        return {name: self.output(self.planned(path), path, load) for name, path in self.done_stages().items()}

    def done_stages(self) -> dict[str, str]:
        """Return the paths of the last visits of the stages that are done and did not fail, by name."""
        found = {}
        for visit in self._walk(self.stages, ""):
            ended = self._visit(visit.stage, visit.path, ())
            if isinstance(ended, Todo) or ended.reason not in (None, _GOES_BACK):
                break
            if ended.reason is None:
                found[visit.stage.name] = visit.path
        return found

    def result_of(self, path: str, load: Callable[[str], Any]) -> Any:
        """Return the output of a nested pipeline's last finished stage."""
        *_, last = self._walk(self.planned(path).steps, f"{path}/")
        return self.output(last.stage, last.path, load)

    def planned(self, path: str) -> Planned:
        """Return the plan at the path of a step or stage."""
        return _planned_at(self.stages, path.split("/"))

    def output(self, stage: Planned, path: str, load: Callable[[str], Any]) -> Any:
        """Return the output of a finished stage.

        Args:
            load: returns the output of a step by its path; of a nested pipeline by that and "?output", of a gate with
                an editable value by "?value". A rejected gate does not have such a value.
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
            case "approval" if stage.edits:
                done = self.done.get(path)
                return None if done is not None and done.value == REJECTED else load(f"{path}?value")
            case _:
                return load(path)

    def scope(self, path: str, load: Callable[[str], Any], *, what: str = "with") -> Scope:
        """Return the values that the functions of a step see.

        Args:
            path: of the step; for the `until` of a loop, of a round, which it also sees.
            load: returns the output of a step by its path.
            what: the function that is called.
        """
        return self._scope(self.stages, "", path.split("/") + ["?"] * (what == "until"), load)

    def _scope(self, stages: tuple[Planned, ...], above: str, parts: list[str], load: Callable[[str], Any]) -> Scope:
        prev: dict[str, Any] = {}
        for visit in self._walk(stages, above):
            stage, path = visit.stage, visit.path
            if path == f"{above}{parts[0]}":
                return self._within(stage, path, parts[1:], Scope(above, prev, feedback=visit.feedback), load)
            for step in stage.steps:
                prev.pop(step.name, None)  # from an earlier visit, which took another branch
            prev[stage.name] = self.output(stage, path, load)
            if stage.kind == "parallel":
                prev |= prev[stage.name]
            elif stage.kind == "branch" and (chosen := chosen_step(stage, self.done[f"{path}?on"].value)) is not None:
                prev[chosen.name] = prev[stage.name]
        raise InputError(f"Step '{above}{'/'.join(parts)}' is not reached in the run's current state")

    def _within(self, stage: Planned, path: str, parts: list[str], scope: Scope, load: Callable[[str], Any]) -> Scope:
        """Return the scope within a stage, with the results so far."""
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
    stage = next(stage for stage in stages if stage.name == name_of(parts[0]))
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
