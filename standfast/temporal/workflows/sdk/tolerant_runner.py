"""Runs standfast's workflows so that no payload can wedge one, and users' workflows so that no failure can.

Otherwise malformed JSON fails the workflow task again and again if it is in the input or in a failure's details. In a
signal, malformed JSON is dropped silently (all measured).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import FailureConverter, PayloadConverter
from temporalio.worker import (
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowOutboundInterceptor,
    WorkflowRunner,
)

from standfast.temporal.wire import names
from standfast.temporal.workflows.run.activity_results import undecodable
from standfast.temporal.workflows.run.agent_workflows import AgentRun
from standfast.temporal.workflows.run.handlers import RunHandlers
from standfast.temporal.workflows.run.workflow_types import Unknown, base_of, workflow_type
from standfast.temporal.workflows.sdk.unseen_events import create_told


class AgentWorkflowRunner(WorkflowRunner):
    """Wraps a runner; workflows of agents get a converter that never fails."""

    def __init__(self, runner: WorkflowRunner | None, workflows: Sequence[type]) -> None:
        self._runner = runner or UnsandboxedWorkflowRunner()
        self._has_agents_alone = all(issubclass(known, AgentRun | Unknown) for known in workflows)

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        if det.defn.cls is Unknown:
            base = base_of(det.info, self._has_agents_alone)
            if base is None:
                # This fails only the task, so Temporal keeps offering it to workers.
                raise RuntimeError(f"This worker has no agent and no workflow type '{det.info.workflow_type}'")
            known = workflow._Definition.must_from_class(workflow_type(cast(Any, base), det.info.workflow_type))
            det = replace(det, defn=known, disable_eager_activity_execution=True)  # other workers have its activities
        det = replace(det, failure_converter_class=_tolerant(det.failure_converter_class))
        if issubclass(det.defn.cls, RunHandlers):
            factory = det.payload_converter_factory
            det = replace(
                det,
                payload_converter_factory=lambda: _TolerantConverter(factory()),
                interceptor_classes=[*det.interceptor_classes, _Elsewhere],
            )
            return create_told(self._runner.create_instance, det)
        return self._runner.create_instance(det)


def _tolerant(kind: type[FailureConverter]) -> type[FailureConverter]:
    """Return a failure converter that never fails: an operator may fail an activity with any details.

    Users' workflows also need it: the error of a standfast activity is read before any of their code runs.
    """

    class Tolerant(kind):  # type: ignore[misc, valid-type]
        def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
            try:
                return cast(BaseException, super().from_failure(failure, payload_converter))
            except Exception:
                return cast(BaseException, super().from_failure(failure, _TolerantConverter(payload_converter)))

    return Tolerant


class _Elsewhere(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_NotHereFirst(outbound))


class _NotHereFirst(WorkflowOutboundInterceptor):
    """Keeps the server from offering this worker first an activity that is meant for another worker."""

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        reference = input.args[0] if input.args else None
        again = isinstance(reference, dict) and reference.get("dispatch", 1) > 1
        elsewhere = again or input.activity in (names.OPEN, names.OPEN_PIPELINE)
        return super().start_activity(replace(input, disable_eager_execution=True) if elsewhere else input)


class _TolerantConverter(PayloadConverter):
    def __init__(self, converter: PayloadConverter) -> None:
        self._converter = converter

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        return self._converter.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        try:
            return self._converter.from_payloads(payloads, type_hints)
        except Exception:
            return [self._read(payload) for payload in payloads]

    def _read(self, payload: Payload) -> Any:
        try:
            return self._converter.from_payloads([payload])[0]
        except Exception as error:
            return undecodable(error)
