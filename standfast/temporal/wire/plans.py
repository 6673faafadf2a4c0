"""A pipeline's plan as JSON, with its gates and tools: recorded once at its start, so that no deploy changes them."""

import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import GateRule
from standfast.messages import JSONObject
from standfast.pipeline_loop import Planned, plan
from standfast.pipelines import Pipeline, Stage, Step
from standfast.temporal.wire.snapshots import tool_facts, write_tool_facts


def pipeline_facts(pipeline: Pipeline) -> JSONObject:
    """Return the facts that steer a pipeline's workflow: its plan, and its gates and tools by their place in it."""
    gates: JSONObject = {}
    tools: JSONObject = {}
    for place, step in _steps(pipeline, ""):
        if step.approval is not None:
            gates[place] = GateRule.of(step.approval).plain()
        if step.run is not None:
            tools[step.run.name] = write_tool_facts(tool_facts(step.run))
    return {
        "pipeline": pipeline.name,
        "plan": [_plain(planned) for planned in plan(pipeline)],
        "gates": gates,
        "tools": tools,
    }


def version_of(pipeline: Pipeline, build: str) -> str:
    """Return a text that distinguishes a version of a pipeline from others, whichever worker declares it.

    Args:
        build: the build id of the code around it, which its functions and types may use.
    """
    facts = to_json([build, pipeline_facts(pipeline), [str(one) for one in _declared(pipeline)]])
    return hashlib.blake2b(facts, digest_size=8).hexdigest()


def _declared(pipeline: Pipeline) -> Iterator[object]:
    """Return the functions and types that a pipeline declares."""
    yield pipeline.type_digest
    for stage in pipeline.stages:
        for name in ("on", "over", "until"):
            yield from _written(getattr(stage, name, None))
        for step in (stage,) if isinstance(stage, Step) else stage.steps:
            yield step.type_digest
            asked = step.approval.chain if step.approval else ()
            for given in (step.input, *(one.message for one in asked), *(one.show for one in asked[:1])):
                yield from _written(given)
            if step.pipeline is not None:
                yield from _declared(step.pipeline)


def _written(function: object) -> Iterator[object]:
    """Return the parts of a function that are the same in every process: its code, and plain values."""
    if not callable(function):
        return
    code = getattr(function, "__code__", None)
    yield getattr(function, "__qualname__", type(function).__qualname__)
    yield from () if code is None else _code(code)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
        if isinstance(value, str | int | float | None):
            yield value


def _code(code: CodeType) -> Iterator[object]:
    yield from (code.co_code, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif not isinstance(constant, frozenset):  # its order differs from process to process
            yield constant


def _steps(pipeline: Pipeline, above: str) -> Any:
    for stage in pipeline.stages:
        yield from _within(stage, f"{above}{stage.name}")


def _within(stage: Stage, place: str) -> Any:
    if not isinstance(stage, Step):
        for step in stage.steps:
            # The step of a map or loop has a number instead of a name in its path.
            yield from _within(step, place if stage.kind in ("map", "loop") else f"{place}/{step.name}")
    elif stage.pipeline is not None:
        yield from _steps(stage.pipeline, f"{place}/")
    else:
        yield place, stage


def _plain(planned: Planned) -> JSONObject:
    usual = Planned("", "")
    data = {name: getattr(planned, name) for name in planned.__dataclass_fields__ if name != "steps"}
    found = {name: value for name, value in data.items() if value != getattr(usual, name)}
    if planned.keys:
        found["keys"] = list(planned.keys)
    if planned.steps:
        found["steps"] = [_plain(step) for step in planned.steps]
    return found


def read_plan(data: Any) -> tuple[Planned, ...]:
    """Read the plan that `pipeline_facts` returned."""
    return tuple(
        Planned(**{**item, "keys": tuple(item.get("keys", ())), "steps": read_plan(item.get("steps", ()))})
        for item in data
    )


def read_gates(data: Mapping[str, Any]) -> dict[str, GateRule]:
    return {place: GateRule.read(rule) for place, rule in data.items()}
