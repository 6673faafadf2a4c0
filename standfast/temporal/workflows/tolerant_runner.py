"""Runs our workflows so that nothing that anybody sends can wedge one: neither what does not decode, nor a query.

Otherwise an input of malformed JSON fails the workflow task again and again, a signal of it is dropped silently, and a
query that waited for a worker has what waits with it taken in apart from its workflow task (all measured).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import PayloadConverter
from temporalio.worker import (
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowOutboundInterceptor,
    WorkflowRunner,
)

from standfast.messages import cut, error_text
from standfast.temporal.wire import names
from standfast.temporal.workflows.agent_workflows import AgentRun
from standfast.temporal.workflows.handlers import RunHandlers
from standfast.temporal.workflows.workflow_types import Unknown, base_of, workflow_type

_TAKEN_UP = 1.0  # seconds in which the task of a run begins that a worker has heard of
_REMEMBERED = 1_000  # runs that were asked too early


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A payload that could not be read; whoever checks values refuses it and shows why."""

    reason: str

    def __repr__(self) -> str:
        return f"a payload that cannot be read ({self.reason})"


class AgentWorkflowRunner(WorkflowRunner):
    """A runner like the one it is given, with a converter that never fails for workflows of agents.

    Args:
        clock: of what serves queries, seconds; None where whole histories are replayed, which may end with what no task
            has taken in.
    """

    def __init__(
        self, runner: WorkflowRunner | None, workflows: Sequence[type], *, clock: Callable[[], float] | None = None
    ) -> None:
        self._runner = runner or UnsandboxedWorkflowRunner()
        self._refused = None if clock is None else _Refused(clock)
        self._has_agents_alone = all(issubclass(known, AgentRun | Unknown) for known in workflows)

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        if det.defn.cls is Unknown:
            base = base_of(det.info, self._has_agents_alone)
            if base is None:
                # Fails the task alone, so that Temporal goes on to offer it to workers.
                raise RuntimeError(f"This worker has no agent and no workflow type '{det.info.workflow_type}'")
            known = workflow._Definition.must_from_class(workflow_type(cast(Any, base), det.info.workflow_type))
            det = replace(det, defn=known, disable_eager_activity_execution=True)  # what it starts is for others
        is_ours = issubclass(det.defn.cls, RunHandlers)
        if is_ours:
            factory = det.payload_converter_factory
            det = replace(
                det,
                payload_converter_factory=lambda: _TolerantConverter(factory()),
                interceptor_classes=[*det.interceptor_classes, _Elsewhere],
            )
        instance = self._runner.create_instance(det)
        return instance if self._refused is None or not is_ours else _InItsTasks(instance, self._refused)


class _InItsTasks(WorkflowInstance):
    """A workflow that takes in nothing outside of its tasks.

    A worker that has not the run in its cache gets the whole history with a query, also events for which no task has
    begun. The SDK would take them in at once, and those that come until the task begins after them; a replay takes them
    in together, signals first. The history would not replay, and the run be wedged. So the query fails, with which the
    worker forgets the run, and the task gets all of them.
    """

    def __init__(self, instance: WorkflowInstance, refused: "_Refused") -> None:
        self._instance, self._refused = instance, refused
        self._task = (0, 0, 0)  # when the last one began, the size of its history, and where that ended

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        task = (act.timestamp.ToNanoseconds(), act.history_size_bytes, act.history_length)
        is_outside = task[:2] == self._task[:2] and task[2] > self._task[2] and not act.is_replaying
        has_news = any(not job.HasField("query_workflow") and not job.HasField("remove_from_cache") for job in act.jobs)
        if is_outside and has_news and self._refused.again(act.run_id, act.history_length):
            refused = WorkflowActivationCompletion()
            refused.failed.failure.message = names.ASK_AGAIN
            return refused
        self._task = task
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


class _Refused:
    """Which runs were asked between their tasks. One that is so for longer has ended: it is asked as it is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: OrderedDict[tuple[str, int], float] = OrderedDict()

    def again(self, run_id: str, length: int) -> bool:
        """Whether to refuse to take in this much of a history with a query."""
        now = self._clock()
        since = self._since.setdefault((run_id, length), now)
        if len(self._since) > _REMEMBERED:
            self._since.popitem(last=False)
        return now - since < _TAKEN_UP


class _Elsewhere(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_NotHereFirst(outbound))


class _NotHereFirst(WorkflowOutboundInterceptor):
    """Have what looks for another worker, or goes to one, not handed to this one first, as the server would."""

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
            return Undecodable(" ".join(cut(error_text(error), 200).split()))
