"""Calls the functions that users declare with steps, and reads their results, wherever the driver may do so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import Decision, unknown_key
from standfast.checkpoints import StepResult
from standfast.errors import InputError, ToolDurabilityError
from standfast.messages import JSONObject, cut, error_text, read_json, unfenced
from standfast.pipeline_loop.plans import Done, Evaluate
from standfast.pipeline_loop.states import PipelineState, Scope, chosen_step
from standfast.pipelines import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step, StepContext
from standfast.pipelines.paths import find, nested_pipeline, owner_of
from standfast.pipelines.pipeline import name_of
from standfast.tools import (
    SHOWN_MOST,
    Asked,
    Cancelled,
    Editable,
    Failed,
    Markdown,
    Outcome,
    Returned,
    Terminated,
    Unknown,
    shown_in_part,
    shown_values,
)

MAX_ITEMS = 1_000  # of a map
Load = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The functions of one run of a pipeline.

    Args:
        load: returns the stored value of a key, as plain JSON data: the output of a step by its path, the items of a
            map under `<path>?over`, a pipeline's input under `<path>?input` (`?input` for the outermost).
    """

    pipeline: Pipeline
    state: PipelineState
    load: Load
    user_id: str | None = None
    tenant_id: str | None = None
    run_key: str | None = None

    def dependencies(self, path: str) -> Callable[[object], object] | None:
        """Return the function that makes the dependencies of a tool's step; None if its pipeline declares none."""
        owner, input_key = owner_of(self.pipeline, path)
        deps = owner.deps
        if deps is None:
            return None

        def make(_: object) -> object:
            given = owner.read_input(self.load(input_key))
            return deps(StepContext(given, user_id=self.user_id, tenant_id=self.tenant_id, run_key=self.run_key))

        return make

    def context(self, path: str, what: str = "with") -> StepContext:
        """Return the argument of a step's functions, with private copies."""
        scope = self.state.scope(path, self.load, what=what)
        owner = nested_pipeline(self.pipeline, scope.pipeline)
        known = {step.name: step for stage in owner.stages for step in (stage, *_within(stage))}
        prev = {name: typed_output(known[name], value) for name, value in scope.prev.items() if name in known}
        for stage in owner.stages:
            if isinstance(stage, Branch) and stage.name in prev:
                prev[stage.name] = next((prev[step.name] for step in stage.steps if step.name in prev), None)
        return StepContext(
            input=owner.read_input(self.load(f"{scope.pipeline.rstrip('/')}?input")),
            prev=prev,
            item=None if scope.over is None else read_json(to_json(self._item(scope)).decode()),
            index=scope.index,
            iteration=scope.iteration,
            feedback=None if not scope.feedback else self._comments(scope.feedback),
            user_id=self.user_id,
            tenant_id=self.tenant_id,
            run_key=self.run_key,
        )

    def _comments(self, gates: Sequence[str]) -> str:
        """Return the comments of people who rejected at gates, in the gates' order."""
        return "\n".join(said for gate in gates if (said := self.load(gate)["comment"]))

    def evaluate(self, action: Evaluate) -> tuple[Done, Any]:
        """Return the value of a function, for the plan and in full.

        Raises:
            InputError: its value is invalid, or its step no longer exists. Errors of the function are also raised.
        """
        stage = find(self.pipeline, action.path)
        match action.what, stage:
            case "on", Branch():
                key = stage.on(self.context(action.path))
                if not isinstance(key, str):
                    raise InputError(f"Step '{action.path}': on must give a key of its cases, got {key!r:.80}")
                return Done(key), key
            case "over", Map():
                return self._items(action.path, stage)
            case "until", Step():
                enough = self._loop(action.path).until(self.context(action.path, "until"))
                if not isinstance(enough, bool):
                    raise InputError(f"Step '{action.path}': until must give True or False, got {enough!r:.80}")
                return Done(enough), enough
            case "input", Step(pipeline=nested) if nested is not None:
                given = stage.make_input(self.context(action.path))
                return Done(), nested.write_input(nested.read_input(given))
            case "output", Step(pipeline=nested) if nested is not None:
                return self._output(action.path, stage)
        raise InputError(f'Step "{action.path}" of workflow "{self.pipeline.name}" is now a different kind of step.')

    def _item(self, scope: Scope) -> Any:
        """Return the item of a map that a scope is about."""
        assert scope.index is not None
        return self.load(f"{scope.over}?over")[scope.index]

    def before(self, path: str) -> dict[str, Any]:
        """Return the contents of a gate without `show`: the outputs since the last gate.

        Without such outputs, people see the contents of the last gate; before the first step, the input.
        """
        scope = self.state.scope(path, self.load)
        found: dict[str, Any] = {}
        for stage in reversed(nested_pipeline(self.pipeline, scope.pipeline).stages):
            if isinstance(stage, Step) and stage.approval is not None:
                if stage.approval.edit is not None and not found and scope.prev.get(stage.name) is not None:
                    found = {stage.name: scope.prev[stage.name]}
                if found and stage.name in scope.prev:
                    break
            elif stage.name in scope.prev:
                found = {stage.name: _shown(scope.prev[stage.name]), **found}
        if scope.over is not None:
            found["item"] = self._item(scope)
        return found or {"input": self.load(f"{scope.pipeline.rstrip('/')}?input")}

    def shown_at(self, path: str, step: Step[Any]) -> tuple[list[JSONObject], Any]:
        """Return the contents of a gate beside its message, and its editable value, if it has one.

        Raises:
            InputError: they cannot be shown, or the value does not have the type that the gate declares.
        """
        approval = step.approval
        if approval is None or approval.edit is None:
            if approval is not None and approval.show is not None:
                return approval.values(self.context(path)), None
            return shown_in_part(self.before(path)), None
        given = self.before(path) if approval.show is None else approval.given(self.context(path))
        labelled: dict[Any, Any] = dict(given if isinstance(given, Mapping) else {"": given})
        found = [label for label, value in labelled.items() if isinstance(value, approval.edit)]
        if len(found) > 1:
            raise InputError(f"Step '{step.name}': show gives {len(found)} values to edit, instead of one")
        label, value = (found[0], labelled[found[0]]) if found else self._to_edit(path)
        labelled.pop(label, None)
        value = step.write_output(step.read_output(step.write_output(value)) if found else step.read_output(value))
        rest = shown_in_part(labelled) if approval.show is None else shown_values(labelled)
        return [*shown_values({label: Editable(value, step.schema)}), *rest], value

    def _to_edit(self, path: str) -> tuple[str, Any]:
        """Return the name and the output of the step before a gate; otherwise the item of its map, or the input."""
        scope = self.state.scope(path, self.load)
        at = name_of(path.removeprefix(scope.pipeline).split("/")[0])
        stages = nested_pipeline(self.pipeline, scope.pipeline).stages
        names = [stage.name for stage in stages]
        before = [
            stage.name
            for stage in stages[: names.index(at)]
            if stage.name in scope.prev and not (isinstance(stage, Step) and stage.approval and not stage.approval.edit)
        ]
        if scope.over is not None:
            return "item", self._item(scope)
        if before:
            return before[-1], scope.prev[before[-1]]
        return "input", self.load(f"{scope.pipeline.rstrip('/')}?input")

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the finished stages, by name, in their types."""
        known = {stage.name: stage for stage in self.pipeline.stages}
        return {name: self._output_of(known[name], path) for name, path in self.state.done_stages().items()}

    def _output_of(self, stage: Stage, path: str) -> Any:
        planned = self.state.planned(path)
        value = self.state.output(planned, path, self.load)
        if not isinstance(stage, Branch):
            return typed_output(stage, value)
        chosen = chosen_step(planned, self.state.done[f"{path}?on"].value)
        step = next((step for step in stage.steps if chosen is not None and step.name == chosen.name), None)
        return value if step is None else typed_output(step, value)

    def needs(self, action: Evaluate) -> list[str]:
        """Return the keys of the values that a step's function needs."""
        needed: list[str] = []
        scope = self.state.scope(action.path, needed.append, what=action.what)
        if action.what == "output":
            self.state.result_of(action.path, needed.append)
        needed += scope.feedback
        return [*needed, f"{scope.pipeline.rstrip('/')}?input", *([f"{scope.over}?over"] if scope.over else [])]

    def _items(self, path: str, stage: Map) -> tuple[Done, Any]:
        given = stage.over(self.context(path))
        try:
            items = read_json(to_json(given).decode())
        except ValueError as error:
            raise InputError(f"Step '{path}': over gives no JSON: {error_text(error)}") from error
        if not isinstance(items, list):
            raise InputError(f"Step '{path}': over must give a list, got {given!r:.80}")
        if len(items) > MAX_ITEMS:
            raise InputError(f"Step '{path}': {len(items):,} items, more than {MAX_ITEMS:,}; go over pages of them")
        return Done(len(items)), items

    def _loop(self, path: str) -> Repeat:
        stage = find(self.pipeline, path.rpartition("/")[0])
        if not isinstance(stage, Repeat):
            raise InputError(f'Step "{path}" of workflow "{self.pipeline.name}" is no longer in a loop.')
        return stage

    def _output(self, path: str, step: Step[Any]) -> tuple[Done, Any]:
        return read_value(step, self.state.result_of(path, self.load))


def read_answer(step: Step[Any], status: str, response: str) -> tuple[Done, Any]:
    """Return the meaning of an agent's answer for its step, and its output as plain JSON data."""
    partial = step.accept_partial and response and status not in ("error", "cancelled")
    if status != "complete" and not partial:
        return Done(reason="agent-failed", error=f"Step '{step.name}': its agent ended with {status}: {response}"), None
    if step.shape is None:
        return Done(), {"response": response}
    try:
        value = read_json(unfenced(response))
    except ValueError as error:
        return Done(reason="invalid-json", error=f"Step '{step.name}': its answer is not JSON: {error}"), None
    return read_value(step, value)


def read_value(step: Step[Any], value: Any) -> tuple[Done, Any]:
    """Return the meaning of a value for its step, and the output that it is, as plain JSON data."""
    try:
        return Done(), step.write_output(step.read_output(value))
    except InputError as error:
        return Done(reason="schema-mismatch", error=str(error)), None


def edit_problem_at(step: Step[Any], decision: Decision) -> str | None:
    """Return why an edit cannot be the output of a gate, or None if it can."""
    if decision.edit is None or decision.decision == "reject" or step.approval is None or step.approval.edit is None:
        return None
    if (size := len(to_json(decision.edit))) > SHOWN_MOST:
        return f"gate {decision.gate}: edit: {size:,} bytes, more than {SHOWN_MOST:,}, which a gate can show"
    try:
        unknown = unknown_key(decision.edit, step.write_output(step.read_output(decision.edit)))
    except InputError as error:
        return f"gate {decision.gate}: edit: {cut(error_text(error), 4_096)}"
    return None if unknown is None else f"gate {decision.gate}: edit: {step.shape.__name__} has no {unknown!r}"


def _shown(output: Any) -> Any:
    """Return an output as people see it: an agent's answer is a text."""
    match output:
        case {"response": str(text), **rest} if not rest:
            return Markdown(text)
    return output


def _within(stage: Stage) -> tuple[Step[Any], ...]:
    return () if isinstance(stage, Step) else stage.steps


def typed_output(stage: Stage, value: Any) -> Any:
    """Return a stored output in its step's type; each caller gets a private copy."""
    match stage:
        case Step():
            return _read_kept(stage, value)
        case Parallel():
            return {step.name: typed_output(step, value[step.name]) for step in stage.steps if step.name in value}
        case Map():
            return [typed_output(stage.step, item) for item in value]
        case Repeat():
            return typed_output(stage.step, value)
        case Branch():
            return _copy(value)


def _read_kept(step: Step[Any], value: Any) -> Any:
    """Return a stored output in its current type.

    Raises:
        InputError: it was stored under an earlier version of the type; names both.
    """
    if value is None and step.kind == "approval":  # it was rejected, and has gone back
        return None
    try:
        return step.read_output(_copy(value))
    except InputError as error:
        shape = getattr(step.shape, "__name__", str(step.shape))
        raise InputError(f"{error}. It was stored earlier, and does not fit today's {shape}") from error


def _copy(value: Any) -> Any:
    return read_json(to_json(value).decode()) if isinstance(value, dict | list) else value


def tool_result(outcome: Outcome) -> StepResult:
    """Return the meaning of a tool's outcome as the result of its step."""
    match outcome:
        case Returned(content):
            return StepResult(status="complete", response=content)
        case Unknown(reason) | Asked(reason, unknown=True):
            text = f"it may or may not have run to its end{f': {reason}' if reason else ''}"
            return StepResult(status="error", response=f"{ToolDurabilityError.kind}: {text}")
        case Asked(question):
            return StepResult(status="error", response=f"it asks a question, which cannot be answered here: {question}")
        case Terminated(error):
            return StepResult(status="error", response=error_text(error))
        case Failed(text) | Cancelled(text):
            return StepResult(status="error", response=text)


def begins_anew(outcome: Outcome) -> bool:
    """Whether a later run restarts a failed tool step: not if it had its effect, or may have had it."""
    match outcome:
        case Returned() | Unknown() | Asked(unknown=True):
            return False
    return True


def check_assigned(step: Step[Any]) -> None:
    """Refuse to begin a step without anything to run."""
    if step.agent is None and step.run is None:
        raise InputError(f'Step "{step.name}" has no agent assigned.')


def read_result(step: Step[Any], result: StepResult) -> tuple[Done, Any]:
    """Return the meaning of a result for its step, and the output that it is, as plain JSON data."""
    if step.run is None:
        return read_answer(step, result.status, result.response)
    if result.status != "complete":
        return Done(reason="tool-failed", error=f"Step '{step.name}': its tool failed: {result.response}"), None
    return read_value(step, step.run.read_result(result.response))
