"""Opens gates in users' own workflows: `await approval(…)`."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypedDict, cast

from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from standfast.agent_loop import Decision, Gate, GateRule, digest_of
from standfast.errors import DefinitionError
from standfast.messages import JSONObject, distinct_people
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AtGate
from standfast.temporal.wire.boards import Whose
from standfast.temporal.wire.inputs import INLINE_BYTES, ITEM_NAME, OWN_GATES_BYTES
from standfast.temporal.wire.snapshots import WHOLE_GATES, GateSurroundings, Surroundings
from standfast.temporal.workflows.board.run_board import Opening
from standfast.temporal.workflows.board.visibility import Refused, pipeline_details
from standfast.temporal.workflows.board.waiting_items import Waiting, whose
from standfast.temporal.workflows.gates.gate_keeper import GateKeeper
from standfast.temporal.workflows.run.activity_options import OPEN_OPTIONS
from standfast.temporal.workflows.run.handlers import RunHandlers
from standfast.temporal.workflows.run.run_parts import RunParts
from standfast.tools import Approval, Duration
from standfast.tools.approvals import OnTimeout

_ATTRIBUTE = "_standfast_gates"  # of the user's workflow
_ITEM_BYTES = 2_000  # of a waiting item, besides its message and the people


class _WorkflowGates(RunHandlers):
    """The gates of one user workflow run."""

    asks_groups = False  # until a gate does

    def __init__(self) -> None:
        self.journal_key = workflow.info().original_execution_run_id
        self._parts = parts = RunParts(self)
        self._board = parts.board
        self._gates = GateKeeper(parts, self)
        self._asked: Counter[str] = Counter()  # how often the run has asked for the same approval, by digest
        self._looking: asyncio.Future[GateSurroundings] | None = None
        self._found: GateSurroundings = {"search": False}
        self._shown_bytes = 0

    # --- what its parts and gates ask ---

    def page(self, status: str, waiting: Sequence[Waiting], refused: Refused) -> str:
        return pipeline_details({}, (), status, waiting, refused)

    def whose(self) -> Whose:
        return whose(self.journal_key, None, None, None)

    def opening(self) -> Opening:
        return names.SEARCHABLE, {}

    def learn(self, found: Surroundings) -> None:
        pass

    def leave_if_long(self) -> None:
        pass  # the workflow is its user's

    def patience(self) -> float | None:
        return None

    def choose_model(self, model: str) -> None:
        pass

    def may_open(self, gate: str) -> bool:
        return True

    def elsewhere(self, gate: str) -> str:
        return ""

    def as_kept(self, decision: Decision) -> Decision:
        return decision

    def recorded_with(self, gate: Gate) -> AtGate:
        return {}

    def recalled_with(self, gate: str) -> AtGate:
        return {}

    def progressed(self, gate: Gate) -> None:
        pass

    async def wait_at(self, gate: Gate, message: str) -> Gate:
        texts = (message, *(rule.message for rule in gate.rule.chain))
        with self._shown(gate, max(len(to_json(text)) for text in texts)):
            decided = await self._gates.wait_at(gate, message)
        await self._board.rows.settled()  # the workflow may end now
        return decided

    @contextlib.contextmanager
    def _shown(self, gate: Gate, message_bytes: int) -> Iterator[None]:
        """Reserve room for a gate in the answer to the query `pending` until the block ends.

        Only the history has the message of such a gate, so people could not look up a part that was cut. Clients do not
        read a larger item.

        Raises:
            ApplicationError: of type `InputError`: there is no room, and no approver is notified.
        """
        people = max(len(to_json([rule.users, rule.users, rule.groups])) for rule in gate.rule.chain)
        size = message_bytes + people + _ITEM_BYTES
        problem = None
        if self._found.get("fits_item") and len(gate.name) > ITEM_NAME:
            problem = f"its name has {len(gate.name):,} characters, more than {ITEM_NAME:,}, so no one was asked"
        elif self._found.get("fits_item") and (item := size + len(to_json(gate.name))) > INLINE_BYTES:
            problem = (
                f"it needs {item:,} bytes to show, more than {INLINE_BYTES:,}, so no one was asked: shorten the "
                "message, for example to a link"
            )
        elif self._found.get("shows_whole") and self._shown_bytes + size > OWN_GATES_BYTES:
            problem = (
                f"it needs {size:,} bytes to show, and other open gates of this workflow {self._shown_bytes:,}; the "
                f"limit is {OWN_GATES_BYTES:,} bytes at a time, so no one was asked: shorten the message, for example "
                "to a link, or wait for the other gates first"
            )
        if problem is not None:
            what = f"approval: gate {gate.name[:ITEM_NAME]!r}: {problem}"
            raise ApplicationError(what, type="InputError", non_retryable=True)
        self._shown_bytes += size
        try:
            yield
        finally:
            self._shown_bytes -= size

    async def digest(self, name: str, message: str) -> str:
        """Return the digest of a gate that is about to open; it differs each time the run asks for the same approval.

        Otherwise, after a reset, each gate would find the verdict of the first one. Another run that asks for the same
        approval has other digests. A resent approval must not count for a workflow that was started again under the
        same id. The run's surroundings are looked up once before that. A worker without the standfast activities cannot
        look them up.
        """
        self._asked[digest_of(name, message)] += 1
        count = self._asked[digest_of(name, message)]
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        found = self._found = await asyncio.shield(self._looking)
        self._parts.learn(found)
        of_run = [self.journal_key] if found.get("binds_run") else []
        of_call = [count] if count > 1 and "was_reset" in found else []
        return digest_of(name, message, *of_run, *of_call)

    async def asking(self, name: str, rule: GateRule, messages: Sequence[str]) -> GateRule:
        """Return the rule of a gate with the messages of its escalations, each with its own digest.

        Runs that an earlier version has begun keep showing the first message after a deadline.
        """
        if not self._found.get("shows_escalations") or len({*messages}) == 1:
            return rule
        return rule.asking([{"message": text, "digest": await self.digest(name, text)} for text in messages[1:]])

    async def _look(self) -> GateSurroundings:
        if workflow.unsafe.is_replaying() and workflow.patched(names.NO_ACTIVITIES):
            return WHOLE_GATES  # the worker that began the run could not look, so this one must not
        try:
            found: GateSurroundings | bool = await workflow.execute_local_activity(
                names.SEARCHABLE, {"run": self.journal_key}, **OPEN_OPTIONS
            )
        except (FailureError, ValueError) as error:  # ValueError: the worker does not have the activity
            if isinstance(error, ValueError) and workflow.patched(names.NO_ACTIVITIES):
                return WHOLE_GATES
            if workflow.patched(names.WHOLE_UNSEEN):
                return WHOLE_GATES
            if isinstance(error, ActivityError | ValueError):
                return {"search": False}
            raise
        if isinstance(found, bool):  # older versions returned nothing else
            return {"search": found}
        # A seed that came before the first gate was not received. The history must record it: in a replay, the run
        # has the id from its last reset right from the beginning.
        self._parts.running.note_resets(found.get("was_reset", False))
        return found

    def status(self, *ignored: Any) -> JSONObject:
        return {"status": self._board.status} | self._board.seen()


class ApprovalResult(TypedDict):
    """The decision at a gate, made by people or by the gate's deadline."""

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
    """Wait in a user's workflow until people have decided, or until the deadline.

    The workflow takes the signals `approve` and `reject`, the update `decide` and the query `pending`, as a pipeline
    does. Signals that arrive earlier are kept. A worker with a `StandfastPlugin` records each decision.

    Args:
        name: of the gate; gates that are open at the same time need different names.
        requester: the person who asked for it, for `exclude_requester`.
        The other arguments are the same as in `Approval`; the message is a text.

    Raises:
        ApplicationError: when it is called, of type `DefinitionError`: an option is invalid. When it is awaited, of
            type `InputError`: the message is too large to be shown, on its own or with those of the other open gates.
    """
    try:
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
        messages = [one.message for one in asked.chain]
        if other := [one for one in messages if not isinstance(one, str)]:
            raise DefinitionError(f"approval.message must be a text here, got {other[0]!r:.80}")
    except DefinitionError as error:  # raised unchanged, it would fail the workflow task again and again
        raise ApplicationError(f"approval({name!r}): {error}", type="DefinitionError", non_retryable=True) from None
    return ask(name, asked, cast("list[str]", messages), requester)


async def ask(name: str, asked: Approval, messages: Sequence[str], requester: str | None = None) -> ApprovalResult:
    """Wait at a gate until people have decided, or until the deadline.

    Args:
        messages: the texts that people read: first the gate's own, then each escalation's.
    """
    gates, message = _gates(), messages[0]
    digest = await gates.digest(name, message)
    rule = await gates.asking(name, GateRule.of(asked), messages)
    # The gate's time begins here. A replay knows when a local activity ended, but not when it began if it outlasted a
    # workflow task. The deadline would then differ.
    gate = Gate(name=name, rule=rule, digest=digest, since=workflow.now(), requesters=distinct_people([requester]))
    decided = await gates.wait_at(gate, message)
    return cast(ApprovalResult, {"status": decided.status, **decided.output})


def _gates() -> _WorkflowGates:
    """Return the gates of the run. The first call adds the handlers for decisions to the workflow."""
    instance = workflow.instance()
    gates: _WorkflowGates | None = getattr(instance, _ATTRIBUTE, None)
    if gates is None:
        _check_own_handlers()
        gates = _WorkflowGates()
        setattr(instance, _ATTRIBUTE, gates)
        workflow.set_query_handler(names.PENDING, gates.pending)
        workflow.set_query_handler(names.OUTCOME, gates.outcome)
        if workflow.get_query_handler(names.STATUS) is None:  # a handler defined by the user stays
            workflow.set_query_handler(names.STATUS, gates.status)
        workflow.set_update_handler(names.DECIDE_UPDATE, gates.decide_update, validator=gates._check_decide)
        workflow.set_signal_handler(names.APPROVE, gates.approve_signal)
        workflow.set_signal_handler(names.REJECT, gates.reject_signal)
        if workflow.get_signal_handler(names.RESUME) is None:  # otherwise a pause at a gate could not be ended
            workflow.set_signal_handler(names.RESUME, gates.resume_signal)
    return gates


def _check_own_handlers() -> None:
    """Reject a name that the workflow already uses for its own handler.

    Raises:
        ApplicationError: of type `DefinitionError`; runs in which an older version took the name keep the standfast
            handler.
    """
    taken = [
        f"{kind} {name!r}"
        for kind, handler_of, ours in (
            ("the signal", workflow.get_signal_handler, (names.APPROVE, names.REJECT)),
            ("the update", workflow.get_update_handler, (names.DECIDE_UPDATE,)),
            ("the query", workflow.get_query_handler, (names.PENDING, names.OUTCOME)),
        )
        for name in ours
        if handler_of(name) is not None
    ]
    if taken and workflow.patched(names.OWN_HANDLERS):
        what = f"workflow {workflow.info().workflow_type} has its own handler for {', '.join(taken)}"
        raise ApplicationError(
            f"approval: {what}, which approval() needs: give yours another name",
            type="DefinitionError",
            non_retryable=True,
        )
