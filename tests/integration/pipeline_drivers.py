"""The two drivers of pipelines behind one face: how far a pipeline came, in the same words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from pydantic_core import to_jsonable_python

from holdfast import InputError, Pipeline, PipelineResult, run_pipeline
from integration.temporal_runs import Temporal


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
            options: user_id, tenant_id, tools.
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
        options |= {"store": self.temporal.store, "run_key": key, "llm": llm}
        went = await run_pipeline(pipeline, input=given, **options)
        for decision in decisions:
            assert went.status == "pending", went
            try:
                went = await run_pipeline(pipeline, decisions=[decision], **options)
            except InputError as error:
                refused.append(str(error))
        return _went(went, refused)


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
    )
