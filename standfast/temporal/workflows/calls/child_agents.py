"""Runs an agent that is a tool as a child workflow; its failure is an error for the caller, never an answer."""

from contextlib import suppress
from typing import cast

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)

from standfast.agent_loop import agent_failure
from standfast.messages import JSONObject, cut
from standfast.runtime.child_agents import call_digest, depth_problem
from standfast.stores.protocol import session_key_of
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AttachReference, CallReference, LostReference, Source
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.outcomes import (
    outcome_of_result,
    outcome_of_terminal_error,
    result_usage,
    source_of,
)
from standfast.temporal.wire.results import LOST, OTHER, fits, is_result
from standfast.temporal.wire.run_state import Call, Turn
from standfast.temporal.workflows.run.activity_options import ATTACH_OPTIONS, summary
from standfast.temporal.workflows.run.activity_results import put_in_by_hand
from standfast.temporal.workflows.run.run_lifetime import Running
from standfast.temporal.workflows.run.run_parts import Pauses
from standfast.tools import Cancelled, Failed, Outcome, Returned, Unknown


async def run_agent(
    call: Call,
    turn: Turn,
    given: AgentInput,
    running: Running,
    pauses: Pauses,
    *,
    asked: str,
    lost: CallReference | None = None,
) -> Outcome:
    """Return the outcome of an agent that the model called, and note in `turn` where its answer is.

    Args:
        given: the child's input; its arguments are found by reference.
        asked: see `agent_result`.
        lost: the arguments with which an activity finds the call, if an earlier run may have started it. The agent then
            continues its session in a workflow of another name. The workflow that was cancelled with the earlier run
            has the first name.
    """
    name, spent = call.id, None
    approved = (given.call or {}).get("approved", {})
    if (problem := depth_problem(call.name, (given.depth or 0) - 1)) is not None:
        outcome: Outcome = Failed(problem)
    elif lost is not None and not await _can_go_on(call, given, running, asked, lost):
        outcome = Unknown()
    else:
        if lost is not None:
            name = f"{call.id}.{call_digest(f'{asked} {workflow.info().original_execution_run_id}')}"
        try:
            more = {"name": name, "asked": asked, "shown": approved.get("shown", call.shown), "called": call.id}
            result = await agent_result(call.name, given, running, pauses, **more)
            outcome, spent = outcome_of_result(call.name, result), result_usage(result)
        except FailureError as error:
            outcome = _failure(call.name, error)
    source: Source = (
        {"answer_of": session_key_of(given.tenant_id, str(given.session_id))}
        if isinstance(outcome, Returned)
        else source_of(outcome)
    )
    if approved:
        source["edited"] = approved
    turn.sources[call.position] = source if spent is None else {**source, "spent": spent.plain()}
    turn.spend(call.id, spent)
    return outcome


async def _can_go_on(call: Call, given: AgentInput, running: Running, asked: str, lost: CallReference) -> bool:
    """Whether an agent that was lost with its run can continue: its session has everything it did."""
    child = session_key_of(given.tenant_id, str(given.session_id))
    reference: LostReference = {**lost, "child": child, "asked": call_digest(asked)}
    look = workflow.start_activity(names.ATTACH, reference, **ATTACH_OPTIONS, summary=summary(f"lost: {call.shown}"))
    try:
        return bool(await running.add(look) == LOST)  # and not a value that an operator entered
    except FailureError:  # including a cancel
        return False


async def agent_result(
    agent: str,
    given: AgentInput,
    running: Running,
    pauses: Pauses,
    *,
    name: str,
    asked: str,
    shown: str = "",
    called: str = "",
) -> JSONObject:
    """Run an agent as the child workflow `<parent>/<name>`, or find the one that an earlier attempt started.

    Args:
        called: the call or step, if different from `name`.
        asked: identifies the agent's task among all runs. The name of a call does not.
    """
    child, digest = names.child_id(workflow.info().workflow_id, name), call_digest(asked)
    resets = running.resets
    with suppress(WorkflowAlreadyStartedError):
        handle = await workflow.start_child_workflow(
            agent,
            given.plain(),
            id=child,
            # After a reset, the same call must find the agent's work, not repeat it.
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            static_summary=summary(shown),
            memo={names.AGENT_MEMO: agent, names.ASKED_MEMO: digest, names.CALLER_MEMO: called or name},
        )
        running.add(handle)
        if not running.attaches or await running.ended_or_reset(handle, resets):
            result = await handle
            if not is_result(result):  # an unrelated workflow has the agent's name
                why = f"workflow {child} ended as no agent does"
                raise ApplicationError(why, type="StandfastError", non_retryable=True)
            return cast(JSONObject, result)
    if (found := await _attached(child, digest, running, pauses)) is not None:
        return found
    # Provider ids repeat: that agent belongs to another call. Or it has expired.
    more = {"name": f"{name}.{digest}", "asked": asked, "shown": shown, "called": called or name}
    return await agent_result(agent, given, running, pauses, **more)


async def _attached(child: str, digest: str, running: Running, pauses: Pauses) -> JSONObject | None:
    """Return the result of an agent that is already running; None if it was asked something else, or has expired."""
    reference: AttachReference = {"workflow_id": child, "asked": digest}
    failure = ""
    while True:
        handle = workflow.start_activity(names.ATTACH, reference, **ATTACH_OPTIONS, summary=summary(child))
        try:
            found = await running.add(handle)
        except ActivityError as error:
            # The agent's own failure is found again. An operator's failure is not, and the agent continues in the
            # meantime.
            if running.cancelled or failure == str(error.cause) or not workflow.patched(names.LOOKED_AGAIN):
                raise
            failure = str(error.cause)
            continue
        if found == OTHER or (found is None and not workflow.patched(names.OTHERS_SAID)):
            return None
        if found is not None and fits(names.ATTACH, reference, found):
            return cast(JSONObject, found)
        if not await pauses.pause(names.ATTACH, put_in_by_hand(names.ATTACH)):
            if running.cancelled:
                with suppress(FailureError):  # it has ended
                    await workflow.get_external_workflow_handle(child).cancel()
                raise CancelledError("the run was cancelled")
            raise ApplicationError(put_in_by_hand(names.ATTACH), type="StandfastError", non_retryable=True)


def _failure(name: str, error: FailureError) -> Outcome:
    cause = error.cause if isinstance(error, ChildWorkflowError | ActivityError) else error
    found = cause.type if isinstance(cause, ApplicationError) else None  # of an agent that was attached to
    if isinstance(cause, CancelledError) or found == "WorkflowCancelledError":
        return Cancelled(f"Agent '{name}' was cancelled")
    if isinstance(cause, TerminatedError) or found == "WorkflowTerminatedError":
        return Failed(f"Agent '{name}' was terminated")
    if isinstance(cause, ApplicationError) and cause.type == "InputError":
        return Failed(cut(cause.message, 8_192))  # the arguments from the model cannot be read
    if (
        isinstance(cause, ApplicationError)
        and cause.type == names.TERMINAL_ERROR
        and workflow.patched(names.TERMINAL_KEPT)  # asked only then, since the answer is written to the history
    ):
        return outcome_of_terminal_error(cause.message, cause.details)
    return Failed(agent_failure(name, str(cause or error)))
