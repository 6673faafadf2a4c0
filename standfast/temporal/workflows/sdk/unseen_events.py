"""Tells a workflow of a cancel or a reset before its own code has run: the SDK applies other events first.

A workflow that continues as new in the task that brings its cancel would lose the cancel (seen with a bare workflow).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

_HAS_COME = "standfast_cancel_has_come"  # the functions by which a workflow asks about events it cannot see
_WAS_RESET = "standfast_was_reset"
_JUST_RESET = "standfast_just_reset"


def cancel_has_come() -> bool:
    """Whether this task or an earlier one brought a cancel of the workflow, even if nothing was cancelled yet."""
    has_come: Callable[[], bool] = workflow.extern_functions()[_HAS_COME]
    return has_come()


def reset_has_come() -> bool:
    """Whether this task or an earlier one follows a reset of the workflow; False in users' workflows."""
    was_reset: Callable[[], bool] = workflow.extern_functions().get(_WAS_RESET, lambda: False)
    return was_reset()


def hears_of_resets() -> bool:
    """Whether this workflow can ask about resets; users' workflows cannot."""
    return _JUST_RESET in workflow.extern_functions()


def undetected_reset() -> Callable[[bool], bool]:
    """Return a function that tells whether what is applied now follows a reset that the workflow has not detected.

    Its argument is True when the workflow detects the reset. In users' workflows, it always returns False.
    """
    ask: Callable[[bool], bool] = workflow.extern_functions().get(_JUST_RESET, lambda _: False)
    return ask


def create_told(
    create: Callable[[WorkflowInstanceDetails], WorkflowInstance], details: WorkflowInstanceDetails
) -> WorkflowInstance:
    """Return a workflow made by `create` that can ask whether a cancel or a reset has arrived."""
    come, coming = set[str](), set[str]()

    def ask_just_reset(is_detected: bool) -> bool:
        if is_detected:
            coming.clear()
        return "update_random_seed" in coming

    told: dict[str, Callable[..., Any]] = {
        _HAS_COME: lambda: "cancel_workflow" in come,
        _WAS_RESET: lambda: "update_random_seed" in come,
        _JUST_RESET: ask_just_reset,
    }
    instance = create(replace(details, extern_functions={**details.extern_functions, **told}))
    activate = instance.activate

    def activate_told(act: WorkflowActivation) -> WorkflowActivationCompletion:
        coming.update([str(job.WhichOneof("variant")) for job in act.jobs])
        come.update(coming)
        try:
            return activate(act)
        finally:
            coming.clear()

    instance.activate = activate_told  # type: ignore[method-assign]
    return instance
