"""Keeps workers from applying events out of the history's order, which queries cause in the SDK.

Such a history would not replay, and the run would be stuck for good. There are two faults (both seen with a bare
workflow, at every try):

- **A query that comes alone**, to a worker without the run in its cache, brings the whole history. The history includes
  events that no completed task has seen. No task has begun for them, or another worker has begun the task and may never
  complete it. The SDK applies these events at once, and later events after them. A replay applies all of them together,
  signals first. So the worker evicts the run, and reads its history with the next task. The worker cannot distinguish
  its own first task of a run from one that another worker has begun, and evicts the run after both.
- **A query that comes with a task** ends the task at once, even while a local activity runs. If the activity has just
  ended, its marker is written to the history with that task. The workflow gets the result with the next task, after the
  events that arrived in between. The worker fails that task, which begins again at once with the whole history, in
  order.
"""

from collections import defaultdict
from dataclasses import dataclass

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

from standfast.temporal.workflows.sdk.worker_internals import warn_without

_QUERY_ALONE = "legacy_query"  # the id of a query that the server sends without a workflow task
_QUERY = {"query_workflow"}
_SENT = ("signal_workflow", "do_update", "cancel_workflow")
_INTERNALS = ("poll_workflow_activation", "complete_workflow_activation", "request_workflow_eviction")
_AGAIN = "A query separated a local activity's result from its task, which begins again"


@dataclass(slots=True)
class _Run:
    """The progress of a cached run, and whether this worker's tasks brought it there.

    Args:
        task: the last task: when it began, and the size of its history.
        length: the length of the applied history.
        first: the first task that brought this worker new events.
        is_own: two tasks have brought new events, so the first of them was this worker's own.
        is_ahead: an event was applied for which no task had begun.
    """

    task: tuple[int, int] = (0, 0)
    length: int = 0
    first: tuple[int, int] | None = None
    is_own: bool = False
    is_ahead: bool = False

    def take_in(self, activation: WorkflowActivation) -> None:
        task = (activation.timestamp.ToNanoseconds(), activation.history_size_bytes)
        if not activation.is_replaying:
            self.is_ahead |= task == self.task and activation.history_length > self.length
            self.is_own |= self.first not in (None, task)
            self.first = self.first or task
        self.task, self.length = task, activation.history_length

    @property
    def may_be_ahead(self) -> bool:
        return self.is_ahead or (self.first is not None and not self.is_own)


def keep_order_beside_queries(worker: Worker) -> None:
    """Make a worker evict a run or repeat a task, before it runs, if a query brought events too early."""
    if not all(callable(getattr(getattr(worker, "_bridge_worker", None), name, None)) for name in _INTERNALS):
        warn_without("a query that comes with other events may leave a run with a history that does not replay")
        return
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation
    runs: defaultdict[str, _Run] = defaultdict(_Run)

    async def poll_in_order() -> WorkflowActivation:
        activation = await poll()
        while _has_late_result(activation, kinds := _kinds(activation)):
            again = WorkflowActivationCompletion(run_id=activation.run_id)
            again.failed.failure.message = _AGAIN
            again.failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
            await bridge.complete_workflow_activation(again)
            activation = await poll()
        run_id = activation.run_id
        if "remove_from_cache" in kinds:
            runs.pop(run_id, None)
        elif kinds != _QUERY:
            runs[run_id].take_in(activation)
        elif activation.jobs[0].query_workflow.query_id == _QUERY_ALONE and runs[run_id].may_be_ahead:
            # The SDK applies no other events of the run until the query is answered, and it gets this before the
            # answer.
            bridge.request_workflow_eviction(run_id)
        return activation

    bridge.poll_workflow_activation = poll_in_order  # type: ignore[method-assign]


def _kinds(activation: WorkflowActivation) -> set[str | None]:
    return {job.WhichOneof("variant") for job in activation.jobs}


def _has_late_result(activation: WorkflowActivation, kinds: set[str | None]) -> bool:
    """Whether the end of a local activity comes together with messages sent after it; a replay has them in order."""
    if activation.is_replaying or "resolve_activity" not in kinds or kinds.isdisjoint(_SENT):
        return False
    return any(job.HasField("resolve_activity") and job.resolve_activity.is_local for job in activation.jobs)
