"""Reads the JSON results of runs as the types that in-process runs return."""

import json
from collections.abc import Mapping
from typing import Any

from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, PipelineResult, RunResult, StepResult, T
from standfast.errors import InputError
from standfast.messages import Tripped, Usage
from standfast.pipeline_loop import typed_output
from standfast.pipelines import Branch, Pipeline, Stage


def run_result(agent: Agent[T], ended: Mapping[str, Any]) -> RunResult[T]:
    """Return the result of an agent's run. Its transcript is in the store.

    Raises:
        InputError: its answer does not fit the agent's `output`, or is too large to be in the result.
    """
    usage = None if ended["usage"] is None else Usage.model_validate(ended["usage"])
    output: Any = None
    if ended["status"] == "complete" and agent.output is not None:
        if "output" not in ended:
            why = f"its {ended['size']:,} bytes are" if "size" in ended else "it is"
            raise InputError(f"Session {ended['session_id']}: no output is in the result, {why} only in the store")
        try:
            output = agent.read_output(json.dumps(ended["output"]))
        except ValueError as error:
            raise InputError(f"Session {ended['session_id']}: the output does not match: {error}") from error
    place = Checkpoint(session_id=ended["session_id"], iterations=ended["iterations"], usage=usage or Usage())
    return RunResult(
        status=ended["status"],
        response=ended["response"],
        messages=(),
        iterations=ended["iterations"],
        checkpoint=place,
        session_id=ended["session_id"],
        usage=usage,
        output=output,
        error=ended.get("error"),
        tripped=None if "tripped" not in ended else Tripped(**ended["tripped"]),
    )


def pipeline_result(pipeline: Pipeline, ended: Mapping[str, Any]) -> PipelineResult:
    """Return the result of a pipeline's run.

    Raises:
        InputError: an output does not fit its present type, or they are together too large to be in the result.
    """
    if "left_out" in ended:
        raise InputError(ended["left_out"])
    stages = {stage.name: stage for stage in pipeline.stages}
    steps = {path: StepResult.model_validate(result) for path, result in ended["step_results"].items()}
    outputs = {
        name: typed_output(_chosen(stages[name], steps), value) if name in stages else value
        for name, value in ended["outputs"].items()
    }
    names = ("failed_step", "error_reason", "error", "run_key", "journal_key")
    more: dict[str, Any] = {name: ended.get(name) for name in names}
    return PipelineResult(status=ended["status"], step_results=steps, outputs=outputs, **more)


def _chosen(stage: Stage, steps: Mapping[str, StepResult]) -> Stage:
    """Return the step that a branch took, or any other stage itself."""
    if not isinstance(stage, Branch):
        return stage
    return next((step for step in stage.steps if f"{stage.name}/{step.name}" in steps), stage)
