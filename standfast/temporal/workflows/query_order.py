"""Keeps workers from taking events in out of the history's order, as queries make the SDK do.

Such a history would not replay, and the run would be stuck for good. There are two faults (both seen with a bare
workflow, at every try):

- **A query that comes alone**, to a worker that does not have the run in its cache, brings the whole history. It
  includes events that no completed task has seen: those for which no task has begun, and those of a task that another
  worker has begun and may never complete. The SDK takes them in at once, and later events behind them, while a replay
  takes in all of them together, signals first. So the worker forgets the run, and reads its history with the next task.
  It cannot tell its own first task of a run from one that another worker has begun, and forgets the run after both.
- **A query that comes with a task** ends the task at once, also while a local activity runs. If the activity has just
  ended, its marker goes into the history with that task. The workflow hears of it with the next task, behind what
  arrived in between. That task is failed, and begins again at once with the whole history, which is in order.
"""

from collections import defaultdict
from dataclasses import dataclass

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

_QUERY_ALONE = "legacy_query"  # the id of a query that the server sends without a workflow task
_SENT = ("signal_workflow", "do_update", "cancel_workflow")
_AGAIN = "A query parted what a local activity came to from its task, which is begun again"


@dataclass(slots=True)
class _Run:
    """How far a run in the cache is, and whether its tasks brought it there.

    Args:
        task: the last task: when it began, and the size of its history.
        length: the length of the history that was taken in.
        first: the first task that brought this worker something new.
        is_own: two tasks have brought something new, so the first of them was this worker's own.
        is_ahead: something came in for which no task had begun.
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
    """Make a worker, before it runs, forget a run or repeat a task where a query brought events too early."""
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation
    runs: defaultdict[str, _Run] = defaultdict(_Run)

    async def poll_in_order() -> WorkflowActivation:
        while _has_late_result(activation := await poll()):
            again = WorkflowActivationCompletion(run_id=activation.run_id)
            again.failed.failure.message = _AGAIN
            again.failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
            await bridge.complete_workflow_activation(again)
        run_id = activation.run_id
        if any(job.HasField("remove_from_cache") for job in activation.jobs):
            runs.pop(run_id, None)
        elif any(not job.HasField("query_workflow") for job in activation.jobs):
            runs[run_id].take_in(activation)
        elif activation.jobs[0].query_workflow.query_id == _QUERY_ALONE and runs[run_id].may_be_ahead:
            # The SDK takes in nothing else of the run until the query is answered, and it gets this before the answer.
            bridge.request_workflow_eviction(run_id)
        return activation

    bridge.poll_workflow_activation = poll_in_order  # type: ignore[method-assign]


def _has_late_result(activation: WorkflowActivation) -> bool:
    """Whether the end of a local activity comes together with what was sent after it; a replay has them in order."""
    jobs = activation.jobs
    return not activation.is_replaying and any(map(_is_local_result, jobs)) and any(map(_was_sent, jobs))


def _is_local_result(job: WorkflowActivationJob) -> bool:
    return job.HasField("resolve_activity") and job.resolve_activity.is_local


def _was_sent(job: WorkflowActivationJob) -> bool:
    return job.WhichOneof("variant") in _SENT
