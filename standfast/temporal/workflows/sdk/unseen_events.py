"""Tells a workflow of a cancel or a reset before its own code has run: the SDK applies other events first.

A workflow that continues as new in the task that brings its cancel would lose the cancel (seen with a bare workflow).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

_HAS_COME = "standfast_cancel_has_come"  # the functions by which a workflow asks about events it cannot see
_RESETS = "standfast_resets"


def cancel_has_come() -> bool:
    """Whether this task or an earlier one brought a cancel of the workflow, even if nothing was cancelled yet."""
    has_come: Callable[[], bool] = workflow.extern_functions()[_HAS_COME]
    return has_come()


def reset_has_come() -> bool:
    """Whether this task or an earlier one follows a reset of the workflow; False in users' workflows."""
    return resets_come() > 0


def resets_come() -> int:
    """Return how often this task and the earlier ones follow a reset of the workflow; 0 in users' workflows."""
    count: Callable[[], int] | None = workflow.extern_functions().get(_RESETS)
    return 0 if count is None else count()


def create_told(
    create: Callable[[WorkflowInstanceDetails], WorkflowInstance], details: WorkflowInstanceDetails
) -> WorkflowInstance:
    """Return a workflow made by `create` that can ask whether a cancel or a reset has arrived."""
    come: Counter[str] = Counter()
    told = {
        _HAS_COME: lambda: "cancel_workflow" in come,
        _RESETS: lambda: come["update_random_seed"],
    }
    instance = create(replace(details, extern_functions={**details.extern_functions, **told}))
    activate = instance.activate

    def activate_told(act: WorkflowActivation) -> WorkflowActivationCompletion:
        come.update(str(job.WhichOneof("variant")) for job in act.jobs)
        return activate(act)

    instance.activate = activate_told  # type: ignore[method-assign]
    return instance
