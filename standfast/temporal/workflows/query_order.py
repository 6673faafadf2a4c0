"""Keeps a worker from taking things in otherwise than in the order of the history, as queries make the SDK do.

The history would not replay, and the run be stuck for good. There are two such faults (each with a bare workflow, in
every try):

- **A query that comes alone**, to a worker that does not have the run in its cache, brings the whole history, also the
  events that no completed task has seen: those for which no task has begun, and those of a task that another worker has
  begun and may never complete. The SDK takes them in at once, and what comes until the next task behind them; a replay
  takes in all of it together, signals first. The worker forgets the run then, and reads its history with the next task.
- **A query that comes with a task** ends it at once, also while a local activity runs. If that has just ended, its
  marker goes into the history with that task, and the workflow hears of it with the next one, behind what arrived in
  between. That task is failed, and begun again at once with the whole history, by which it is in order.
"""

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

_QUERY_ALONE = "legacy_query"  # the id of a query that the server sends without a workflow task
_SENT = ("signal_workflow", "do_update", "cancel_workflow")
_AGAIN = "A query parted what a local activity came to from its task, which is begun again"


def keep_order_beside_queries(worker: Worker) -> None:
    """Have a worker forget a run, or begin a task again, where a query brought things too early; before it runs."""
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation
    in_doubt: set[str] = set()  # runs that have taken in something new, by a task of theirs or by a query

    async def poll_in_order() -> WorkflowActivation:
        while _has_late_result(activation := await poll()):
            again = WorkflowActivationCompletion(run_id=activation.run_id)
            again.failed.failure.message = _AGAIN
            again.failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
            await bridge.complete_workflow_activation(again)
        run_id = activation.run_id
        if any(job.HasField("remove_from_cache") for job in activation.jobs):
            in_doubt.discard(run_id)
        elif any(not job.HasField("query_workflow") for job in activation.jobs):
            (in_doubt.discard if activation.is_replaying else in_doubt.add)(run_id)
        elif run_id in in_doubt and activation.jobs[0].query_workflow.query_id == _QUERY_ALONE:
            # Until the query is answered the SDK takes in nothing else of the run, and it hears this before the answer.
            # If it was a task of the worker's own after all, the history is read once more than it had to be.
            bridge.request_workflow_eviction(run_id)
        return activation

    bridge.poll_workflow_activation = poll_in_order  # type: ignore[method-assign]


def _has_late_result(activation: WorkflowActivation) -> bool:
    """Whether a local activity's end comes together with what was sent after it; a replay has them in order."""
    jobs = activation.jobs
    return not activation.is_replaying and any(map(_is_local_result, jobs)) and any(map(_was_sent, jobs))


def _is_local_result(job: WorkflowActivationJob) -> bool:
    return job.HasField("resolve_activity") and job.resolve_activity.is_local


def _was_sent(job: WorkflowActivationJob) -> bool:
    return job.WhichOneof("variant") in _SENT
