"""Activities for gates: find the calls that need approval, and record people's decisions."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes
from temporalio.client import Client

from standfast.agent_loop import (
    CallPlace,
    Decision,
    Gate,
    GateRule,
    Holds,
    answered_already,
    approval_of_guardrail,
    approver_problem,
    caller_problem,
    decided_too_late,
    decider_problem,
)
from standfast.agents import Agent, AgentContext
from standfast.errors import InputError
from standfast.messages import JSONObject, ToolCall, Tripped, error_text, json_problem
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find
from standfast.runtime.call_ledger import NOT_RUN, last_entry
from standfast.runtime.pipeline_results import Kept, decision_of
from standfast.runtime.standing_approvals import Gives, given_by, standing_refusal
from standfast.runtime.users_functions import edit_refusal, gate_edit_refusal
from standfast.stores.protocol import LedgerEntry
from standfast.temporal.activities.gates.open_gates import arguments_of, keep_edit, load_edit
from standfast.temporal.activities.tools.dependencies import context_of_turn, guardrails_at
from standfast.temporal.activities.worker.activity_guards import Guard, called, json_activity
from standfast.temporal.activities.worker.agent_host import TRIES, AgentHost
from standfast.temporal.client.runs.ended_runs import UnreadableError, read_signal, was_refused
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import (
    DecideReference,
    OpenReference,
    Recalled,
    RecallReference,
    RefusedReference,
    SentReference,
)
from standfast.temporal.wire.inputs import VALUES
from standfast.temporal.wire.results import perhaps_refused_before, receipted, refused_before
from standfast.temporal.wire.snapshots import WHOLE_GATES, GateSurroundings
from standfast.temporal.wire.turn_records import edit_digest, edit_reference, gate_of


class GateActivities:
    """Finds gates, and records people's decisions."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.decide, self.recall, self.sent, self.refused, self.searchable]

    @json_activity(names.DECIDE)
    async def decide(self, reference: DecideReference) -> str | None:
        """Record a decision; return the reason why it does not count, or None."""
        with Guard(self._host, beats="edit" in reference):  # guardrails check an edit, which takes time
            given: JSONObject = {name: value for name, value in reference.items() if name != "receipt"}
            run, at = given.pop("run"), datetime.fromisoformat(given.pop("at"))
            await self._check_store(run)
            info, kept = activity.info(), Kept(run, self._host.store)
            asked = f"receipt {reference['receipt']}" if "receipt" in reference else info.activity_id
            key = f"{info.workflow_run_id}/{asked}"
            if info.attempt > 1 and (known := await kept.verdict(key)) is not None:
                return receipted(reference, known.refused)  # regardless of changes since an earlier attempt recorded it
            refused: str | None = given.pop("refused")
            sent = given.pop("sent", None)
            refused = refused or await refusal_before(run, sent, reference["decision"])
            has_rule, call, stopped = given.pop("access", False), given.pop("call", None), given.pop("stopped", None)
            stage, proposed = given.pop("stage", None), given.pop("proposed", None)
            decision = Decision(**given)
            if refused is None:
                may = _declared(self._host, is_needed=has_rule)
                if may is not None:
                    refused = await called(self._host, lambda: decider_problem(may.access.get("approve"), decision))
            if refused is None and stopped is not None:
                refused = await self._denied_at(decision, *stopped)
            elif refused is None and has_rule and call is None:  # a pipeline's; for a call, see `_denied`
                step = self._step(decision.gate)
                refused = approver_problem(None if step is None else step.approval, decision)
                if refused is None and step is not None:
                    refused = await self._host.thread.run(gate_edit_refusal(step, decision))
            if refused is None and call is not None:
                refused = await self._too_late(run, call, decision)
            if refused is None and call is not None:
                refused = await self._denied(run, call, decision, stage)
            gives = None
            if refused is None and (decision.standing is not None or decision.remember is not None):
                refused, gives = await self._standing(run, call, decision, at, proposed)
            await kept.record(decision, at, refused, key, gives=gives)
            return receipted(reference, refused)

    @json_activity(names.RECALL)
    async def recall(self, reference: RecallReference) -> Recalled:
        """Return the decisions that counted at a gate before the workflow was reset, and the outcome of its call."""
        with Guard(self._host, beats=False):
            run, gate, call = reference["run"], reference["gate"], reference.get("call")
            await self._check_store(run)
            found: Recalled = {"decisions": []}
            for row in await Kept(run, self._host.store).decisions(gate):
                decision = decision_of(row)
                if decision.edit is not None and call is not None:
                    await keep_edit(self._host, run, decision.edit)
                    decision = decision.model_copy(update={"edit": edit_reference(decision.edit)})
                found["decisions"].append((decision.model_dump(exclude_none=True), row.at.isoformat()))
            entry = None if call is None else await _last_entry(self._host, run, *call)
            if entry is not None and entry.owner == NOT_RUN:
                found["not_run"] = True
            elif entry is not None and entry.state != "abandoned":
                found["has_run"] = True
            return found

    @json_activity(names.SENT)
    async def sent(self, reference: SentReference) -> str | None:
        """Return the time at which a signal was sent. The time is in the history, which a workflow cannot see.

        If the signal may be one that cannot be read, the reason is returned instead.
        """
        with Guard(self._host):
            info, client, left, unread = activity.info(), activity.client(), reference["number"], None
            run = client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
            async for event in run.fetch_history_events():
                signal = event.workflow_execution_signaled_event_attributes
                is_signal = event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
                if not is_signal or signal.signal_name != reference["name"]:
                    continue
                try:
                    left -= await _digest(client, signal) == reference["digest"]
                except UnreadableError as error:
                    if info.attempt < TRIES:
                        raise
                    unread = names.UNREADABLE + error_text(error)
                if not left:
                    return event.event_time.ToDatetime(UTC).isoformat()
            return unread

    @json_activity(names.REFUSED)
    async def refused(self, reference: RefusedReference) -> bool | None:
        """Whether the sender of a signal learned, before the workflow was reset, that it does not count.

        Returns None if this stays unknown.
        """
        with Guard(self._host):
            try:
                return await was_refused(*_here(), reference["sent"])
            except UnreadableError:
                if activity.info().attempt < TRIES:
                    raise
                return None

    @json_activity(names.SEARCHABLE)
    async def searchable(self, reference: OpenReference) -> GateSurroundings:
        """Return the facts that a user's workflow needs at its first gate; its history keeps them for replays."""
        here = activity.info().workflow_run_id
        return {**WHOLE_GATES, **self._host.surroundings, "was_reset": reference.get("run", here) != here}

    async def _check_store(self, run: str) -> None:
        """Check that a standfast run was opened with this worker's store; users' workflows leave no record of that."""
        if _declared(self._host, is_needed=False) is not None:
            await self._host.records.check_run(run)

    async def _too_late(self, run: str, call: Sequence[int], decision: Decision) -> str | None:
        """Return why a decision is too late: its call has begun, or was answered without being run. Otherwise None."""
        entry = await _last_entry(self._host, run, *call)
        if entry is None or entry.state == "abandoned":
            return None
        if entry.owner == NOT_RUN:
            return answered_already(decision.gate)
        return decided_too_late(decision.gate) if decision.decision == "reject" else None

    def _step(self, path: str) -> Step[Any] | None:
        """Return the step of a gate, if the step still exists."""
        try:
            step = find(self._host.catalogue.pipeline(), path)
        except InputError:
            return None
        return step if isinstance(step, Step) else None

    async def _standing(
        self, run: str, call: Sequence[int] | None, decision: Decision, at: datetime, proposed: str | None
    ) -> tuple[str | None, Gives | None]:
        """Return why a decision does not count as made in advance, and the standing approval that it creates.

        The history decides neither, since anyone may send a signal. The store and the call's record decide both.

        Args:
            proposed: the digest of the edit that the decision is about, if any.
        """
        gate: JSONObject | None = None
        if call is not None:
            record = await self._host.records.load_record(run, call[0])
            asked = record.calls[call[1]]
            gate = gate_of(record, asked.id)
        if gate is None:
            return f"gate {decision.gate}: there is no call here to approve in advance", None
        place = CallPlace(
            agent=self._host.catalogue.agent().name,
            run=run,
            session=record.session,
            session_key=record.key.rpartition("/")[0],
            tenant_id=record.tenant_id,
            user_id=record.user_id,
            tool=asked.name,
        )
        opened, speaker = Gate.read(gate), self._host.catalogue.speaker(record.message.agent)
        refused = await standing_refusal(self._host.store, decision, opened, place)
        if refused is not None:
            return refused, None
        if proposed is not None:
            opened = opened.showing(str(decision.digest), await load_edit(self._host, run, proposed))
        try:
            return None, await given_by(self._host.store, speaker, decision, opened, place, at)
        except InputError as error:
            return error_text(error), None

    async def _denied_at(self, decision: Decision, speaker: str, guardrail: str, holds: Holds) -> str | None:
        """Return why today's agent rejects a decision on content that a guardrail has stopped, other than a call.

        If no worker has the agent any more, the recorded facts apply.
        """
        info = activity.info()
        if info.workflow_type not in self._host.catalogue.agents and info.attempt >= TRIES:
            return None
        return approver_problem(
            approval_of_guardrail(self._host.catalogue.speaker(speaker), guardrail, holds), decision
        )

    async def _denied(self, run: str, call: Sequence[int], decision: Decision, stage: str | None) -> str | None:
        """Return the reason why today's agent rejects a decision on a call; otherwise keep edited arguments.

        If no worker has the agent any more, only the record of the call is checked.

        Args:
            stage: the digest with which the gate asks these people, if it differs from the decision's.
        """
        info = activity.info()
        if decision.edit is None and info.workflow_type not in self._host.catalogue.agents and info.attempt >= TRIES:
            return None
        turn, position = call
        record = await self._host.records.load_record(run, turn)
        asked, agent = record.calls[position], self._host.catalogue.speaker(record.message.agent)
        gate = gate_of(record, asked.id)
        opened = None if gate is None else Gate.read(gate)
        rule = GateRule() if opened is None else opened.stages.get(stage or decision.digest or "", opened.rule)
        shown = arguments_of(record, asked.id)
        if shown is not None:
            asked = ToolCall(id=asked.id, name=asked.name, arguments=shown)
        problem = await called(self._host, lambda: caller_problem(agent, asked, decision, rule))
        if problem is None:
            written = None if decision.edit is None else await self._host.records.load_context(agent, run, turn)
            check = partial(_verdicts_on, agent, context_of_turn(agent, record), written)
            problem = await self._host.thread.run(edit_refusal(agent, asked, decision, rule, check))
        if problem is None:
            await keep_edit(self._host, run, decision.edit)
        return problem


async def _verdicts_on(agent: Agent, context: AgentContext, written: str | None, call: ToolCall) -> list[Tripped]:
    """Return the guardrails' verdicts on a call as edited by people.

    Args:
        written: the run's context.
    """
    if not agent.tool_guardrails:
        return []
    return await guardrails_at(agent, context, written).verdicts_on(call)


def _declared(host: AgentHost, *, is_needed: bool) -> Agent | Pipeline | None:
    """Return the agent or pipeline of this activity's workflow; None if it is neither, or is missing here."""
    name = activity.info().workflow_type or ""
    known: dict[str, Agent | Pipeline] = {**host.catalogue.agents, **host.catalogue.pipelines}
    return host.catalogue.here("agent or pipeline", name, known) if is_needed else known.get(name)


async def _digest(client: Client, signal: WorkflowExecutionSignaledEventAttributes) -> str | None:
    """Return the digest that a workflow makes of a signal's data; None for invalid data."""
    values = await read_signal(client.data_converter, signal.input.payloads)
    if signal.input.payloads and not values:
        return None  # no handler received it
    data = values[0] if values else None  # as a handler receives it
    return None if json_problem(data, VALUES) is not None else edit_digest(data)


async def _last_entry(host: AgentHost, run: str, turn: int, position: int) -> LedgerEntry | None:
    """Return the ledger's entry for a call of a run; None if it has none."""
    record = await host.records.load_record(run, turn)
    return await last_entry(host.store, record.key, position, record.calls[position].id)


async def refusal_before(run: str, sent: str | None, name: str) -> str | None:
    """Return why a signal does not count if its sender learned that before the workflow was reset, or may have."""
    info = activity.info()
    if sent is None or run == info.workflow_run_id:
        return None
    try:
        return refused_before(name) if await was_refused(*_here(), sent) else None
    except UnreadableError as error:
        if info.attempt < TRIES:
            raise
        return perhaps_refused_before(name, error_text(error))


def _here() -> tuple[Client, str, str]:
    """Return the client of this activity's worker, and the ids of its run."""
    info = activity.info()
    return activity.client(), str(info.workflow_id), str(info.workflow_run_id)
