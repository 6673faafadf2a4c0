"""Makes a worker forget a run after a query that may have taken it further than its workflow tasks did.

A worker that does not have a run in its cache gets the whole history with a query, also the events that no completed
task has seen: those for which no task has begun, and those of a task that another worker has begun and may never
complete. The SDK takes them in at once and keeps the run so. What comes until the next task begins is taken in after
them, but a replay takes in all of it together, signals first. The history would not replay, and the run be stuck for
good (a bare workflow: 2 of 2 tries). A worker that forgets the run reads its whole history again with the next task.
"""

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.worker import Worker

_QUERY_ALONE = "legacy_query"  # the id of a query that the server sends without a workflow task


def forget_runs_after_queries(worker: Worker) -> None:
    """Have a worker that is about to run forget each run that a query may have taken too far, once it has answered.

    What it took in last may also have been a task of its own, which cannot be told from here; then it reads the run's
    history once more than it had to.
    """
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation
    in_doubt: set[str] = set()  # runs that have taken in something new, by a task or by a query

    async def poll_and_forget() -> WorkflowActivation:
        activation = await poll()
        run_id = activation.run_id
        if any(job.HasField("remove_from_cache") for job in activation.jobs):
            in_doubt.discard(run_id)
        elif any(not job.HasField("query_workflow") for job in activation.jobs):
            (in_doubt.discard if activation.is_replaying else in_doubt.add)(run_id)
        elif run_id in in_doubt and activation.jobs[0].query_workflow.query_id == _QUERY_ALONE:
            # Until the query is answered the SDK takes in nothing else of the run, and it hears this before the answer.
            bridge.request_workflow_eviction(run_id)
        return activation

    bridge.poll_workflow_activation = poll_and_forget  # type: ignore[method-assign]
