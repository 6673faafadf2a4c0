"""Has a task begun again that brings what a local activity came to together with what came after it.

A query that comes with a workflow task ends it at once, also while a local activity runs. If that has just ended, its
marker goes into the history with that task, and the workflow hears of it with the next one, behind what arrived in
between. A replay has it hear in the order of the history: the run would be stuck for good (measured: 3 of 3 tries). A
task that fails is begun again at once, with the whole history, by which it is in order.
"""

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import Worker

_SENT = ("signal_workflow", "do_update", "cancel_workflow")
_AGAIN = "A query parted what a local activity came to from its task, which is begun again"


def begin_again_with_late_results(worker: Worker) -> None:
    """Have a worker that is about to run fail such tasks. In a replay results stand where the history has them."""
    bridge = worker._bridge_worker
    poll = bridge.poll_workflow_activation

    async def poll_in_order() -> WorkflowActivation:
        while _is_mixed(activation := await poll()):
            again = WorkflowActivationCompletion(run_id=activation.run_id)
            again.failed.failure.message = _AGAIN
            again.failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE
            await bridge.complete_workflow_activation(again)
        return activation

    bridge.poll_workflow_activation = poll_in_order  # type: ignore[method-assign]


def _is_mixed(activation: WorkflowActivation) -> bool:
    jobs = activation.jobs
    return not activation.is_replaying and any(map(_is_late, jobs)) and any(map(_was_sent, jobs))


def _is_late(job: WorkflowActivationJob) -> bool:
    return job.HasField("resolve_activity") and job.resolve_activity.is_local


def _was_sent(job: WorkflowActivationJob) -> bool:
    return job.WhichOneof("variant") in _SENT
