"""The two drivers of pipelines behind one interface: a pipeline's progress, in the same form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from pydantic_core import to_jsonable_python
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from standfast import InputError, Pipeline, PipelineResult, run_pipeline
from standfast.runtime.pipeline_results import Kept
from standfast.temporal import start_pipeline
from support.temporal_runs import Run, Temporal, check_healthy, failure, result, status, until


@dataclass(frozen=True)
class Went:
    """How far a pipeline came.

    Args:
        refused: why decisions did not count, in order.
    """

    status: str
    step_results: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    failed_step: str | None = None
    error_reason: str | None = None
    error: str | None = None
    pending_step: str | None = None
    approval_message: str | None = None
    refused: tuple[str, ...] = ()
    run_key: str | None = field(default=None, compare=False)


class PipelineDriver(Protocol):
    """Runs a pipeline as far as it comes with some decisions."""

    temporal: Temporal

    async def run(
        self,
        pipeline: Pipeline,
        llm: Any,
        given: Any = None,
        *,
        decisions: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Went:
        """Run a pipeline.

        Args:
            decisions: one after the other, each when something waits.
            options: user_id, tenant_id, tools, restart_of, restart_from; run_key, else a new one.
        """  # fmt: skip
        ...


class InProcess:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self, pipeline: Pipeline, llm: Any, given: Any = None, *, decisions: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Went:  # fmt: skip
        key, refused = self.temporal.session(uuid4().hex[:8]), []
        options = {"run_key": key, **options, "store": self.temporal.store, "llm": llm}
        went = await run_pipeline(pipeline, input=given, **options)
        for decision in decisions:
            assert went.status == "pending", went
            try:
                went = await run_pipeline(pipeline, decisions=[decision], **options)
            except InputError as error:
                refused.append(str(error))
        assert went.run_key == options["run_key"]
        return _went(went, refused)


class OnTemporal:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self, pipeline: Pipeline, llm: Any, given: Any = None, *, decisions: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Went:  # fmt: skip
        temporal = self.temporal
        agents = {step.agent.name: step.agent for step in pipeline.every_step() if step.agent is not None}
        async with temporal.worker(*agents.values(), pipelines=[pipeline], llm=llm, tools=options.pop("tools", None)):
            run = await start_pipeline(
                temporal.client, pipeline.name, input=given, task_queue=temporal.name,
                **{"run_key": temporal.session(uuid4().hex[:8]), **options},
            )  # fmt: skip
            refused = []
            for decision in decisions:
                assert await until(partial(_waits, run)), await failure(run)
                try:
                    await temporal.people.decide(run.id, **decision)
                except InputError as error:
                    refused.append(str(error))
            waits = await until(partial(_waits_or_has_ended, run))
            await check_healthy(run)
            if isinstance(waits, list) and waits[0]["kind"] == "pause":
                await temporal.people.resume(run.id, "abort")  # the function is not fixed
            elif isinstance(waits, list):
                return await self._pending(run, waits, refused)
            try:
                ended = await result(run)
            except WorkflowFailureError as error:
                cause = error.cause
                assert isinstance(cause, ApplicationError)
                raise (InputError if cause.type == "InputError" else RuntimeError)(cause.message) from error
        ended.pop("journal_key")
        return Went(**ended, refused=tuple(refused))

    async def _pending(self, run: Run, waits: list[dict[str, Any]], refused: Sequence[str]) -> Went:
        shown = await status(run)
        kept = Kept(shown["journal_key"], self.temporal.store)
        results = {path: kept[f"{path}?result"] for path in shown["done"] if await kept.find(f"{path}?result")}
        outputs = {path: kept[path] for path in shown["done"] if await kept.find(path)}
        return Went("pending", results, outputs, pending_step=waits[0]["name"], approval_message=waits[0]["message"],
                    refused=tuple(refused), run_key=shown["run_key"])  # fmt: skip


async def _waits_or_has_ended(run: Run) -> Any:
    waits = await _waits(run)
    return waits or ((await run.describe()).close_time is not None)


async def _waits(run: Run) -> Any:
    """Return what waits for a decision, once nothing else runs, or is paused; False after the end."""
    shown = await status(run)
    waits: list[dict[str, Any]] = shown["waiting"]
    if pauses := [item for item in waits if item["kind"] == "pause"]:
        return pauses
    return waits if waits and set(shown["running"]) == {item["name"] for item in waits} else False


def _went(result: PipelineResult, refused: Sequence[str]) -> Went:
    return Went(
        result.status,
        {path: step.model_dump(mode="json") for path, step in result.step_results.items()},
        to_jsonable_python(result.outputs),
        result.failed_step,
        result.error_reason,
        result.error,
        result.pending_step,
        result.approval_message,
        tuple(refused),
        result.run_key,
    )
