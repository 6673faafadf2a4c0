"""Decides the gates of a run by people's decisions and by deadlines; each decision is recorded before it counts.

One consumer per gate takes decisions in the order of arrival. A deadline ends a gate only when its timer has fired and
no decision waits. The history tells whether a decision came in time, even if no worker ran for long. For an update, the
time of acceptance counts; for a signal, the time of its event. Decisions recorded before a reset are not asked for
again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, cast

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from standfast.agent_loop import Decision, Gate, answered_already, decided_too_late
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import JSONObject, explain
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import AtGate, DecideReference, RecallReference
from standfast.temporal.wire.inbox import EarlyError, LaterError, Sent
from standfast.temporal.wire.inputs import AWAITED_BYTES, EARLY_BYTES, PARKED_MESSAGES, check_json, read_fields
from standfast.temporal.wire.shown_gates import shown_changed
from standfast.temporal.wire.turn_records import edit_reference, let_through
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.temporal.workflows.inbox.arrivals import refuse_by
from standfast.temporal.workflows.run.activity_options import STORE_OPTIONS, summary
from standfast.temporal.workflows.run.activity_results import why
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_lifetime import began_again, is_long, until_told
from standfast.temporal.workflows.run.run_parts import RunParts

_HAS_RUN = "passed by a call that has run"
_NOT_RUN = "left by a call that was answered without being run"
_DECISION = {"gate": str, "decision": str, "by": str, "comment": str, "digest": str, "edit": object, "remember": object}


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A decision that has not been judged yet.

    Args:
        at: when a worker received it; a signal may have been `sent` earlier.
        verdict: for an update; becomes the reason why the decision does not count, or None.
    """

    decision: Decision
    at: datetime
    verdict: "asyncio.Future[str | None] | None" = None
    sent: Sent | None = None


class GateFace(Protocol):
    """What the gates of a run ask of the run."""

    @property
    def journal_key(self) -> str: ...

    def leave_if_long(self) -> None:
        """Set `is_leaving` of the gates if the history has become too long."""
        ...

    def may_open(self, gate: str) -> bool:
        """Whether a gate that is not open may open later."""
        ...

    def elsewhere(self, gate: str) -> str:
        """Return where a gate may be that is not here."""
        ...

    def as_kept(self, decision: Decision) -> Decision:
        """Return the part of a counting decision that the run keeps."""
        ...

    def recorded_with(self, gate: Gate) -> AtGate:
        """Return what else the activity that records a decision needs to know of a gate."""
        ...

    def recalled_with(self, gate: str) -> AtGate:
        """Return the same for the activity that finds what was decided before a reset."""
        ...

    def progressed(self, gate: Gate) -> None:
        """Take in a gate after a decision."""
        ...


class GateKeeper:
    """The gates of a run, and the decisions on them."""

    def __init__(self, parts: RunParts, run: GateFace) -> None:
        self.left: dict[str, JSONObject] = {}  # gates that stay open while the run continues as new
        self.is_leaving = False  # the run is about to continue as new, and only waits at gates
        self._board, self._inbox, self._running, self._workers = parts.board, parts.inbox, parts.running, parts.workers
        self._board.rows.stays = lambda: bool(self.left) and workflow.patched(names.STAYS_SHOWN)
        self._inbox.parked.append(self._parked)
        self._inbox.pending.append(self._pending)
        self._run = run
        self._arrived: dict[str, deque[Arrived]] = {}
        self._closed: dict[str, str] = {}  # the decisions on gates, by name
        self._unrecorded: set[str | None] = set()  # ids of signals whose decisions may or may not be in the store
        self._looked: dict[str, int] = {}  # by open gate, the number of resets after which it has looked for decisions

    def _parked(self) -> list[Any]:
        """Return the decisions that have not been judged yet, as JSON."""
        return [item.decision.model_dump() for items in self._arrived.values() for item in items]

    def _pending(self, sent_id: str) -> JSONObject | None:
        """Return `{}` for a signal whose decision has not been judged: its outcome is not known yet."""
        waiting = (item.sent for items in self._arrived.values() for item in items if item.sent is not None)
        return {} if sent_id in self._unrecorded or any(one.id == sent_id for one in waiting) else None

    def has_senders(self) -> bool:
        """Whether a sender waits for the outcome of a decision."""
        return any(item.verdict is not None for items in self._arrived.values() for item in items)

    def carried(self) -> JSONObject:
        """Return as JSON what must survive continue-as-new, including decisions whose senders do not wait."""
        arrived = {
            gate: [[item.decision.model_dump(), item.at.isoformat(), item.sent and item.sent.id] for item in items]
            for gate, items in self._arrived.items()
            if items
        }
        data = {
            "arrived": arrived,
            "closed": self._closed,
            "mailbox": self._inbox.mailbox.carried(),
            "resets": self._running.resets,
            "board": self._board.rows.carried(),
        }
        return {name: value for name, value in data.items() if value}

    def take_over(self, data: Mapping[str, Any]) -> None:
        """Take in the previous run's state before any messages that have arrived in the meantime."""
        for gate, items in data.get("arrived", {}).items():
            before = [
                Arrived(Decision(**decision), datetime.fromisoformat(at), sent=Sent(id=sent_id) if sent_id else None)
                for decision, at, sent_id in items
            ]
            self._arrived[gate] = deque([*before, *self._arrived.get(gate, ())])
        self._closed = {**data.get("closed", {}), **self._closed}
        self._running.resets += data.get("resets", 0)
        self._board.rows.take_over(data.get("board", ()), keeps=data.get("asks", False))
        self._running.note_resets(began_again())
        self._inbox.mailbox.take_over(data.get("mailbox", {}))

    def refuse_closed_to_all(self) -> None:
        """Refuse the early decisions for gates that the run turns out not to have."""
        for gate in [gate for gate in self._arrived if not self._run.may_open(gate)]:
            for item in self._arrived.pop(gate):
                self._board.refuse(item.decision.decision, f"there is not a gate {gate}")

    # --- what arrives ---

    def _read(self, name: str, data: Any, extra: tuple[Any, ...], *, may_be_early: bool) -> Decision:
        known = {key: kind for key, kind in _DECISION.items() if name == names.DECIDE_UPDATE or key != "decision"}
        fields = read_fields(self._inbox.one(name, data, extra, most=AWAITED_BYTES), name, known)
        if name != names.DECIDE_UPDATE:
            fields["decision"] = name
        open_gates = [*self.left, *self._board.gates()]
        if "gate" not in fields:
            raise InputError(f"{name}: 'gate' is missing; open: {_listed(open_gates)}")
        gate = fields["gate"]
        if self._running.cancelled:
            raise InputError(f"{name}: the run is cancelled")
        if fields.get("decision") not in ("approve", "reject"):
            raise InputError(f'{name}: decision must be "approve" or "reject", got {fields.get("decision")!r}')
        check_json(fields.get("edit"), f"{name}: edit")
        if gate in self._closed:
            raise InputError(f"{name}: {self._over(gate)}")
        is_open = gate in open_gates
        if not is_open and not (may_be_early and self._run.may_open(gate)):
            problem = f"{name}: no gate {gate} is open; open: {_listed(open_gates)}{self._hint(gate)}"
            raise EarlyError(problem) if "digest" in fields else InputError(problem)
        waiting = len(self._arrived.get(gate, ())) if is_open else sum(map(len, self._arrived.values()))
        if waiting >= PARKED_MESSAGES:
            raise LaterError(f"{name}: {waiting:,} decisions are already waiting; try again later")
        try:
            decision = Decision(**fields)
        except ValidationError as error:
            raise InputError(f"{name}: {explain(error)}") from error
        if not is_open and len(to_json([*self._early(), decision])) > EARLY_BYTES:
            raise InputError(
                f"{name}: too many decisions are waiting for gates that are not open; open: {_listed(open_gates)}"
            )
        return decision

    def _hint(self, gate: str) -> str:
        """Return a further hint about a gate that is not open here."""
        again = "; the run was reset: earlier decisions count as soon as the gate is open again"
        return self._run.elsewhere(gate) + (again if self._running.resets else "")

    def _early(self) -> list[Decision]:
        """Return the decisions on gates that are not open yet."""
        open_gates = {*self.left, *self._board.gates()}
        return [item.decision for gate, items in self._arrived.items() if gate not in open_gates for item in items]

    def _keep(
        self, decision: Decision, sent: Sent | None = None, verdict: "asyncio.Future[str | None] | None" = None
    ) -> None:
        self._arrived.setdefault(decision.gate, deque()).append(Arrived(decision, workflow.now(), verdict, sent))

    def take_signal(self, name: str, data: Any, extra: tuple[Any, ...]) -> None:
        self._inbox.take(
            name, data, lambda given, sent_id: self._read(name, given, extra, may_be_early=sent_id is None), self._keep
        )

    async def take_update(self, data: Any, extra: tuple[Any, ...]) -> JSONObject:
        """Take in an update, and return when its decision has been judged."""
        decision = self._read(names.DECIDE_UPDATE, data, extra, may_be_early=False)
        verdict: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._keep(decision, verdict=verdict)
        refused = await verdict
        if refused is not None:
            raise ApplicationError(refused, type="InputError", non_retryable=True)
        return {"accepted": True, "gate": decision.gate}

    def check_update(self, data: Any, extra: tuple[Any, ...]) -> None:
        refuse_by(lambda: self._read(names.DECIDE_UPDATE, data, extra, may_be_early=False))

    # --- a gate ---

    async def wait_at(self, gate: Gate, message: str, **shown: Any) -> Gate:
        """Wait until a gate is decided or its deadline passes.

        The gate is still open if the run is cancelled or continues as new.

        Args:
            shown: what else people see of the gate; see `Waiting`.
        """
        self._looked.setdefault(gate.name, 0)
        try:
            return await self._wait_at(gate, message, shown)
        except FailureError:  # the run fails, and nothing waits here any more
            self._looked.pop(gate.name, None)
            raise

    async def _wait_at(self, gate: Gate, message: str, shown: JSONObject) -> Gate:
        arrived = self._arrived.setdefault(gate.name, deque())
        self.left.pop(gate.name, None)
        self._closed.pop(gate.name, None)  # an earlier call may have had the same id
        if gate.advance:
            gate = await self._in_advance(gate)
        while gate.status == "open" and not self._running.cancelled and not self._may_leave(gate, arrived):
            rule = gate.rule
            waiting = Waiting(
                "approval",
                gate.name,
                rule.message or message,
                gate.since,
                gate.deadline,
                gate.shown_digest,
                rule.users,
                rule.groups,
                rule.quorum,
                gate.approved_by,
                requesters=gate.barred,
                then=gate.then,
                remember=rule.remember,
                **shown_changed(shown, gate),
            )
            self._board.asks_groups = self._board.asks_groups or bool(rule.groups)
            self._board.end_gate(gate.name)  # for another value, or for other people
            self._board.begin(waiting)
            gate = await self._asked(gate, arrived)
        if leaves := gate.status == "open" and not self._running.cancelled:
            seen = {"seen": shown} if shown and not gate.is_call else {}  # the call's turn has the value to show
            self.left[gate.name] = {**gate.plain(), "message": message, **seen}
        self._board.end_gate(gate.name)
        if leaves:
            return gate
        if gate.status != "open":
            self._closed.setdefault(gate.name, gate.status.replace("-", " "))
            if len(self._closed) > PARKED_MESSAGES:
                del self._closed[next(iter(self._closed))]
        while arrived:
            await self._judge(
                gate, arrived[0], "the run is cancelled" if gate.status == "open" else self._over(gate.name)
            )
            arrived.popleft()
        del self._arrived[gate.name], self._looked[gate.name]
        return gate

    async def _in_advance(self, gate: Gate) -> Gate:
        """Return a gate after the decisions that were made in advance, before people are asked."""
        if self._looked[gate.name] < self._running.resets:
            gate = await self._recall(gate)
        for decision in gate.unjudged:
            gate = await self._judge(gate, Arrived(decision, gate.since))
        self._show_progress(gate := gate.asking())
        return gate

    def note_run(self, calls: Iterable[str]) -> None:
        """Take in which calls have run, for people who still try to decide on one."""
        self._closed.update((call, _HAS_RUN) for call in calls if call in self._closed)

    def _over(self, gate: str) -> str:
        """Return why a closed gate accepts no more decisions."""
        closed = self._closed[gate]
        if closed == _NOT_RUN:
            return answered_already(gate)
        return decided_too_late(gate) if closed == _HAS_RUN else f"gate {gate} was {closed} already"

    def _show_progress(self, gate: Gate) -> None:
        self._board.progressed(gate.name, gate.approved_by)
        self._run.progressed(gate)

    async def _asked(self, gate: Gate, arrived: "deque[Arrived]") -> Gate:
        """Return the gate as soon as its people or its value change, or it no longer asks anyone."""
        rule, digest = gate.rule, gate.shown_digest
        while gate.status == "open" and gate.rule is rule and not self._running.cancelled:
            if gate.shown_digest != digest:  # the shown value was edited
                return gate
            if arrived and self._has_undetected_reset():  # it may have sent this again after what was recorded
                await workflow.wait_condition(lambda: not self._running.is_just_reset())
                continue
            if (arrived and self._may_be_sent_again(arrived[0])) or self._looked[gate.name] < self._running.resets:
                gate = await self._recall(gate)
                self._show_progress(gate)
                continue
            self._run.leave_if_long()
            if self._may_leave(gate, arrived):
                return gate
            if arrived:
                gate = await self._judge(gate, arrived[0])
                arrived.popleft()
                self._show_progress(gate)
                continue
            reminder = gate.next_reminder(workflow.now())
            is_over = await self._running.until(
                lambda: bool(arrived) or self.is_leaving or self._looked[gate.name] < self._running.resets,  # noqa: B023
                reminder or gate.deadline,
                f"{names.REMINDER if reminder else names.ESCALATION if gate.escalates else names.DECISION}{gate.name}",
            )
            if not is_over or arrived or self._looked[gate.name] < self._running.resets:
                continue
            if reminder is None:
                gate = gate.expired()
            else:
                workflow.logger.warning("Gate %s still waits for %s", gate.name, ", ".join(rule.users) or "anybody")
                for item in [item for item in self._board.waiting if item.is_gate(gate.name)]:
                    self._board.notify(item, int((workflow.now() - gate.since).total_seconds()))
        return gate

    def _has_undetected_reset(self) -> bool:
        return self._running.wakes and self._running.is_just_reset() and workflow.patched(names.RESETS_FIRST)

    def _may_be_sent_again(self, arrived: Arrived) -> bool:
        """Whether a reset may have sent a decision again that the store cannot recognize by its id."""
        return (arrived.sent is None or arrived.sent.id is None) and self._running.may_follow_reset(arrived)

    def _may_leave(self, gate: Gate, arrived: "deque[Arrived]") -> bool:
        """Whether the run may continue as new with the waiting decisions.

        More decisions may arrive than it can judge. A sender who waits for a verdict would lose it, and only this
        history has the time of a late signal.
        """
        return self.is_leaving and all(item.verdict is None and gate.at(item.at) == gate for item in arrived)

    async def _judge(self, gate: Gate, arrived: Arrived, problem: str | None = None) -> Gate:
        """Return the gate after a decision, which is recorded whether it counts or not."""
        decision, at = arrived.decision, arrived.at
        try:
            if gate.at(at) != gate and arrived.sent is not None and arrived.sent.number:
                at = await self._inbox.when_sent(arrived.sent, at)
            gate = gate.at(at)
        except InputError as error:  # later signals may have been in time
            problem = problem or str(error)
        problem = problem or ("the run has ended" if self._board.ended else gate.problem(self._run.as_kept(decision)))
        given = {name: value for name, value in decision.model_dump().items() if value is not None}
        reference: JSONObject = {
            "run": self._run.journal_key,
            "at": at.isoformat(),
            "refused": problem,
            "digest": gate.shown_digest,
            **given,
            **self._run.recorded_with(gate),
        }
        what = summary(f"{decision.decision} of {decision.by or 'someone'} at {gate.name}")
        sent_id = None if arrived.sent is None else arrived.sent.id
        if sent_id is not None:
            reference["sent"] = sent_id
        try:
            refused = await self._workers.execute(
                names.DECIDE,
                cast(DecideReference, reference),
                {**STORE_OPTIONS, "summary": what},
                otherwise="the run is cancelled",
            )
        except FailureError as error:  # the store may still have it
            self._unrecorded.add(sent_id)
            if arrived.verdict is not None:
                arrived.verdict.set_result(f"it may count or may not, since recording it failed: {why(error)}")
            raise
        if arrived.verdict is not None:
            arrived.verdict.set_result(refused)
        elif refused is not None:
            self._inbox.came_of(decision.decision, sent_id, refused)
        else:
            self._inbox.mailbox.came_of(sent_id, accepted=True, gate=gate.name)
        return gate if refused is not None else gate.decided(self._run.as_kept(decision), at)

    async def _recall(self, gate: Gate) -> Gate:
        """Return the gate after the decisions from before a reset.

        A gate whose call has run is approved. A gate whose call was answered without running is rejected.
        """
        self._looked[gate.name] = self._running.resets
        reference: RecallReference = {
            "run": self._run.journal_key,
            "gate": gate.name,
            **self._run.recalled_with(gate.name),
        }
        options = {**STORE_OPTIONS, "summary": summary(f"what was decided at {gate.name} before the reset")}
        found = await self._workers.execute(names.RECALL, reference, options, otherwise=None)
        if found is None:
            return gate
        recorded = [(Decision(**decision), datetime.fromisoformat(at)) for decision, at in found.get("decisions", ())]
        gate = gate.after(recorded)
        if found.get("not_run"):
            self._closed[gate.name] = _NOT_RUN
            return gate if gate.status == "rejected" else replace(gate, status="rejected")
        if not found.get("has_run") or gate.status == "rejected":
            return gate
        self._closed[gate.name] = _HAS_RUN
        return replace(gate, status="approved")

    # --- the end ---

    async def senders_told(self) -> None:
        """Wait until every sender has the outcome of its decision.

        A decision on a gate that is not open changed nothing.
        """
        for gate in [gate for gate in self._arrived if gate not in self._looked]:
            for item in self._arrived.pop(gate):
                if item.verdict is not None and not item.verdict.done():
                    item.verdict.set_result("the run has ended")
                elif item.sent is not None and item.sent.id not in self._unrecorded:
                    self._inbox.mailbox.came_of(item.sent.id, refused="the run has ended")
        if self._is_judging() and workflow.patched(names.SENDERS_HEAR):
            await until_told(lambda: not self._is_judging())

    def _is_judging(self) -> bool:
        """Whether a decision is being judged whose sender looks up the outcome."""
        waiting = (item.sent for gate in self._looked for item in self._arrived.get(gate, ()))
        return any(sent is not None and sent.id is not None for sent in waiting)


def _listed(gates: Sequence[str]) -> str:
    return ", ".join(gates) or "none"


class CallApprovals:
    """The gates of an agent's run. They are gates of calls, so nobody can decide on a call without having seen it.

    Args:
        is_interrupted: whether the run has other work than waiting for decisions.
    """

    def __init__(self, run: RunState, parts: RunParts, journal_key: str, is_interrupted: Callable[[], bool]) -> None:
        self.journal_key = journal_key
        self.gates = GateKeeper(parts, self)
        self._run, self._running, self._is_interrupted = run, parts.running, is_interrupted
        self._deciding: dict[str, asyncio.Task[Gate]] = {}  # gates of the turn, by call

    def leave_if_long(self) -> None:
        self.gates.is_leaving = self.gates.is_leaving or is_long()

    async def wait(self, questions: Sequence[Question]) -> None:
        """Wait until one gate of the turn is decided; all of them are open at once."""
        for question in questions:
            gate = Gate.read(question.gate or {})
            if gate.name not in self._deciding:
                deciding = self.gates.wait_at(gate, question.question, **self._shown(gate))
                self._deciding[gate.name] = asyncio.create_task(deciding)
        tasks = self._deciding
        await workflow.wait_condition(lambda: any(task.done() for task in tasks.values()) or self._is_interrupted())
        if self._running.cancelled or self.gates.is_leaving:
            await self.leave()
        self._take_passed()

    def _shown(self, gate: Gate) -> JSONObject:
        """Return what people see besides the message of a gate."""
        turn = self._run.progress.turn
        if gate.holds:
            return dict(turn.arguments.get(gate.name, {}))
        call = turn.calls[gate.name]
        shown: JSONObject = {"tool": call.name, "arguments": turn.arguments.get(call.id, call.shown)}
        shown |= {} if gate.schema is None else {"edit": dict(gate.schema)}
        if call.id in turn.sizes:
            shown["size"] = turn.sizes[call.id]
        place = {"journal_key": self._run.progress.run, "turn": turn.number, "position": call.position}
        return {**shown, "reference": place}

    async def leave(self) -> None:
        """Wait until no task waits at a gate.

        Each wait ends automatically when the run is cancelled or continues as new.
        """
        if self._deciding:
            await asyncio.gather(*self._deciding.values())
        self._take_passed()

    def _take_passed(self) -> None:
        """Take in the outcomes of gates."""
        turn = self._run.progress.turn
        for name in [name for name, task in self._deciding.items() if task.done()]:
            gate = self._deciding.pop(name).result()
            self._run.loop = self._run.loop.decided(gate)
            if gate.status == "approved" and not gate.holds:
                turn.approved[turn.calls[gate.name].position] = let_through(gate)

    # --- what the gates ask of the run ---

    def may_open(self, gate: str) -> bool:
        return False

    def elsewhere(self, gate: str) -> str:
        return ""

    def as_kept(self, decision: Decision) -> Decision:
        """Return a decision with a reference instead of its edit, which is in the store."""
        if decision.edit is None:
            return decision
        return decision.model_copy(update={"edit": edit_reference(decision.edit)})

    def progressed(self, gate: Gate) -> None:
        """Take in who has approved so far; an export also includes it."""
        if gate.status == "open":
            self._run.loop = self._run.loop.decided(gate)

    def recalled_with(self, gate: str) -> AtGate:
        """Return the arguments with which activities find the call that waits at a gate."""
        turn = self._run.progress.turn
        return {"call": [turn.number, turn.calls[gate].position]} if gate in turn.calls else {}

    def recorded_with(self, gate: Gate) -> AtGate:
        asks: AtGate = {"access": True} if "approve" in self._run.facts.hooks else {}
        if gate.holds:
            return {"stopped": [self._run.loop.agent, gate.rule.guardrail, gate.holds], **asks}
        edited: AtGate = {} if gate.changed is None else {"stage": gate.digest, "proposed": gate.changed["digest"]}
        return {**self.recalled_with(gate.name), **edited, **asks}
