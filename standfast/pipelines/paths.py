"""The paths of steps in a pipeline: `<stage>/<step>`, in a map or loop with the number of the item or round.

A stage to which a rejection has gone back is visited again, and so are the stages after it. Its part of the path is
then `<stage>_2`, which is never the name of a stage.
"""

from typing import NamedTuple

from standfast.errors import InputError
from standfast.pipelines.pipeline import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step, name_of


def place_of(path: str) -> str:
    """Return the place of a path in its pipeline: the path without the numbers of items, rounds and visits."""
    return "/".join(name_of(part) for part in path.split("/") if not part.isdecimal())


def find(pipeline: Pipeline, path: str) -> Stage:
    """Return the stage or step at a path.

    Raises:
        InputError: there is none, in this version of the pipeline.
    """
    found = _find(pipeline, path.split("/"))
    if found is None:
        raise _not_found(pipeline, path)
    return found


def stage_index(pipeline: Pipeline, name: str) -> int:
    """Return the index of the stage of a name.

    Raises:
        InputError: there is none.
    """
    for index, stage in enumerate(pipeline.stages):
        if stage.name == name_of(name):
            return index
    raise _not_found(pipeline, name)


def _not_found(pipeline: Pipeline, path: str) -> InputError:
    return InputError(f'Step "{path}" not found in workflow "{pipeline.name}".')


def _find(pipeline: Pipeline, parts: list[str]) -> Stage | None:
    stage: Stage | None = next((stage for stage in pipeline.stages if stage.name == name_of(parts[0])), None)
    for at, part in enumerate(parts[1:], 1):
        match stage:
            case Parallel() | Branch():
                stage = next((step for step in stage.steps if step.name == part), None)
            case Map() | Repeat() if part.isdecimal():
                stage = stage.step
            case Step(pipeline=nested) if nested is not None:
                return _find(nested, parts[at:])
            case _:
                return None
    return stage


class Owner(NamedTuple):
    """The pipeline of a step, and the key under which that pipeline's input is stored."""

    pipeline: Pipeline
    input_key: str


def owner_of(pipeline: Pipeline, path: str) -> Owner:
    """Return the innermost pipeline of a step, even of a step that this version of the pipeline does not have."""
    owner, parts = Owner(pipeline, "?input"), path.split("/")
    for at in range(1, len(parts)):
        match _find(pipeline, parts[:at]):
            case Step(pipeline=nested) if nested is not None:
                owner = Owner(nested, f"{'/'.join(parts[:at])}?input")
    return owner


def nested_pipeline(pipeline: Pipeline, above: str) -> Pipeline:
    """Return the pipeline of the steps below a path; the outermost for ""."""
    if not above:
        return pipeline
    step = find(pipeline, above.rstrip("/"))
    if not isinstance(step, Step) or step.pipeline is None:
        raise InputError(f'Step "{above.rstrip("/")}" of workflow "{pipeline.name}" is no longer a pipeline.')
    return step.pipeline
