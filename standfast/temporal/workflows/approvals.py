"""Opens gates in users' own workflows: `await approval(…)`."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypedDict, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from standfast.agent_loop import Gate, GateRule, digest_of
from standfast.errors import DefinitionError
from standfast.messages import distinct_people
from standfast.temporal.wire import names
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.workflows.activity_options import OPEN_OPTIONS
from standfast.temporal.workflows.gates import GateKeeper
from standfast.temporal.workflows.handlers import RunHandlers
from standfast.temporal.workflows.run_parts import RunParts
from standfast.temporal.workflows.visibility import pipeline_details
from standfast.tools import Approval, Duration
from standfast.tools.approvals import OnTimeout

_ATTRIBUTE = "_standfast_gates"  # of the user's workflow


class _WorkflowGates(RunHandlers):
    """The gates of one run of a user's workflow."""

    def __init__(self) -> None:
        self._parts = parts = RunParts(partial(pipeline_details, {}, ()), lambda: (names.SEARCHABLE, {}))
        self._board = parts.board
        self._gates = GateKeeper(parts, workflow.info().original_execution_run_id)
        self._looking: asyncio.Future[Surroundings] | None = None

    async def wait_at(self, gate: Gate, message: str) -> Gate:
        """Find out the run's surroundings once, then wait. A worker without our activities cannot tell them."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(_look())
        found = await asyncio.shield(self._looking)
        self._parts.learn(found)
        return await self._gates.wait_at(gate, message)

    def status(self, *ignored: Any) -> dict[str, Any]:
        return {"status": self._board.status} | self._board.seen()


class ApprovalResult(TypedDict):
    """The decision at a gate: by people, or by its deadline."""

    status: Literal["approved", "rejected", "timed-out"]
    decision: Literal["approve", "reject"]
    by: list[str]
    comment: str | None
    edit: Any


def approval(
    name: str,
    *,
    message: str = "",
    timeout: Duration | None = None,
    on_timeout: OnTimeout = "fail",
    remind_every: Duration | None = None,
    approvers: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
    quorum: int | None = None,
    exclude_requester: bool | None = None,
    escalate_to: Approval | None = None,
    requester: str | None = None,
) -> Coroutine[Any, Any, ApprovalResult]:
    """Wait in a workflow of your own until people have decided, or until their time is over.

    The workflow takes the signals `approve` and `reject`, the update `decide` and the query `pending`, as a pipeline
    does; signals that come before are kept. Each decision is recorded by a worker with a `StandfastPlugin`.

    Args:
        name: of the gate; each of a run has its own.
        requester: who asked for it, for `exclude_requester`.
        The others are those of `Approval`; the message is a text.

    Raises:
        ApplicationError: when it is called, of type `DefinitionError`: an option cannot be used.
    """
    try:
        if not isinstance(message, str):
            raise DefinitionError(f"approval.message must be a text here, got {message!r:.80}")
        asked = Approval(
            message=message,
            timeout=timeout,
            on_timeout=on_timeout,
            remind_every=remind_every,
            approvers=approvers,
            groups=groups,
            quorum=quorum,
            exclude_requester=exclude_requester,
            escalate_to=escalate_to,
        )
    except DefinitionError as error:  # raised as it is, it would fail the workflow's task again and again
        raise ApplicationError(f"approval({name!r}): {error}", type="DefinitionError", non_retryable=True) from None
    return _decided(name, asked, message, requester)


async def _decided(name: str, asked: Approval, message: str, requester: str | None) -> ApprovalResult:
    digest = digest_of(name, message)
    gate = Gate(
        name=name, rule=GateRule.of(asked), digest=digest, since=workflow.now(), requesters=distinct_people([requester])
    )
    decided = await _gates().wait_at(gate, message)
    return cast(ApprovalResult, {"status": decided.status, **decided.output})


async def _look() -> Surroundings:
    with contextlib.suppress(ActivityError, ValueError):
        found: Surroundings | bool = await workflow.execute_local_activity(names.SEARCHABLE, **OPEN_OPTIONS)
        return {"search": found} if isinstance(found, bool) else found  # older versions returned only this
    return {"search": False}


def _gates() -> _WorkflowGates:
    """Return the gates of the run. The first call gives the workflow its handlers for decisions."""
    instance = workflow.instance()
    gates: _WorkflowGates | None = getattr(instance, _ATTRIBUTE, None)
    if gates is None:
        gates = _WorkflowGates()
        setattr(instance, _ATTRIBUTE, gates)
        workflow.set_query_handler(names.PENDING, gates.pending)
        workflow.set_query_handler(names.OUTCOME, gates.outcome)
        if workflow.get_query_handler(names.STATUS) is None:  # a handler of the user's own stays
            workflow.set_query_handler(names.STATUS, gates.status)
        workflow.set_update_handler(names.DECIDE_UPDATE, gates.decide_update, validator=gates._check_decide)
        workflow.set_signal_handler(names.APPROVE, gates.approve_signal)
        workflow.set_signal_handler(names.REJECT, gates.reject_signal)
    return gates
