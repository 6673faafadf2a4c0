"""Finds the gate that a decision names: a step of a pipeline, or a call of the agent of a step."""

from typing import Any

from standfast.errors import InputError
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find


def agent_at(pipeline: Pipeline, gate: str) -> tuple[str, Step[Any]] | None:
    """Return the path and the step of the agent whose call waits at a gate; None if the gate is itself a step."""
    path, _, call = gate.rpartition("/")
    try:
        step = find(pipeline, path) if path and call else None
    except InputError:
        return None
    return (path, step) if isinstance(step, Step) and step.agent is not None else None


def check_gate(pipeline: Pipeline, gate: str) -> None:
    """Refuse a name that cannot be a gate's: it names neither an approval nor a call of an agent.

    Raises:
        InputError: saying what it names.
    """
    if agent_at(pipeline, gate) is not None:
        return
    try:
        step = find(pipeline, gate)
    except InputError as error:
        raise InputError(f"{error} A gate is named by the path of its step, or by <step>/<id of a call>") from error
    if not isinstance(step, Step) or step.approval is None:
        text = f"Step '{gate}' of pipeline '{pipeline.name}' is not a gate: it has no approval"
        if isinstance(step, Step) and step.agent is not None:
            text = f"{text}; the gate of a call of its agent is {gate}/<id of the call>"
        raise InputError(text)
