"""Tells a run of a cancel before the SDK does.

The SDK takes in the signals of a workflow task first, and lets the run go on with them; then it takes in a cancel that
came with the same task. A run that had just continued as new would lose the cancel, and never end: to the server, the
run that was cancelled is over (measured: 12 of 25 cancels beside such a signal).
"""

from collections.abc import Callable
from dataclasses import replace

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

_HAS_COME = "standfast_cancel_has_come"  # the function by which a workflow asks what it cannot see


def cancel_has_come() -> bool:
    """Whether this task, or one before it, has brought a cancel of the workflow, also if nothing was cancelled yet."""
    has_come: Callable[[], bool] = workflow.extern_functions()[_HAS_COME]
    return has_come()


def create_told(
    create: Callable[[WorkflowInstanceDetails], WorkflowInstance], details: WorkflowInstanceDetails
) -> WorkflowInstance:
    """Return a workflow that `create` makes, and that can ask whether a cancel has come."""
    cancels: list[WorkflowActivation] = []
    asks = {**details.extern_functions, _HAS_COME: lambda: bool(cancels)}
    instance = create(replace(details, extern_functions=asks))
    activate = instance.activate

    def activate_told(act: WorkflowActivation) -> WorkflowActivationCompletion:
        if any(job.HasField("cancel_workflow") for job in act.jobs):
            cancels.append(act)
        return activate(act)

    instance.activate = activate_told  # type: ignore[method-assign]
    return instance
