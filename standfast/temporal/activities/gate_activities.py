"""Activities at gates: find the calls that need approval, and record people's decisions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from pydantic_core import to_json
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes
from temporalio.client import Client

from standfast.agent_loop import (
    Decision,
    Gate,
    GateRule,
    LoopState,
    approver_problem,
    caller_problem,
    decider_problem,
    edit_problem,
)
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import ToolCall, json_problem, read_json
from standfast.pipelines import Pipeline, Step
from standfast.pipelines.paths import find
from standfast.runtime.call_gates import ask_at_gates
from standfast.runtime.dispatches import has_started
from standfast.runtime.pipeline_results import Kept, decision_of
from standfast.runtime.users_functions import call_users
from standfast.stores.kept_values import read_kept
from standfast.stores.protocol import DurableStore, Session
from standfast.temporal.activities.failures import TypedErrors
from standfast.temporal.activities.hosts import TRIES, AgentHost, Heartbeats
from standfast.temporal.activities.json_activities import json_activity
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import Asked, DecideReference, Recalled, RecallReference, SentReference
from standfast.temporal.wire.limits import GATES_BYTES, INLINE_BYTES, SHOWN_BYTES, VALUES
from standfast.temporal.wire.outcomes import shown_arguments
from standfast.temporal.wire.references import edit_digest, edit_reference, gate_of
from standfast.temporal.wire.results import receipted
from standfast.temporal.wire.snapshots import Surroundings
from standfast.temporal.wire.turn_records import TurnRecord
from standfast.tools import Approval

T = TypeVar("T")


async def find_gates(
    host: AgentHost,
    agent: Agent,
    state: LoopState,
    run: str,
    spoke: Iterable[str | None],
    at: datetime | None = None,
) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that the calls of a state have to pass, and by id why some cannot run at all.

    Args:
        run: whose audit trail says who has edited calls of it.
        spoke: who else has spoken to it.
        at: the time now, if it is to be the same for the next attempt.
    """
    if not state.unasked:
        return [], {}
    requesters = [*spoke, *await Kept(run, host.store).editors()]
    questions, refused = await called(
        host, lambda: ask_at_gates(agent, state.unasked, at=at or datetime.now(UTC), requesters=requesters)
    )
    size = 0
    for question in list(questions):
        size += len(to_json(asked_of([question])["gates"]))
        if size > GATES_BYTES:
            questions.remove(question)
            refused[str(question.tool_call_id)] = "Not run: too many calls of a turn need approval; ask again for these"
    return questions, refused


def asked_of(gates: Sequence[Question]) -> Asked:
    """Return what a history has of gates, and by id the arguments that people see: all of them, or their beginning.

    Of those that are cut the size of the whole is beside them; see `load_arguments`.
    """
    asked, shown, sizes, left = [], {}, {}, INLINE_BYTES
    for gate in gates:
        rule = dict(gate.gate or {})
        arguments = rule.pop("arguments", None)
        left -= (size := len(to_json(arguments)))
        is_small = size <= SHOWN_BYTES and left > 0
        shown[str(gate.tool_call_id)] = arguments if is_small else shown_arguments(arguments)
        if not is_small:
            sizes[str(gate.tool_call_id)] = size
        asked.append(gate.model_copy(update={"gate": rule}).model_dump())
    found: Asked = {"gates": asked, "arguments": shown}
    return {**found, "sizes": sizes} if sizes else found


def held_by(workflow_id: str, gates: Sequence[Question]) -> tuple[Question, ...]:
    """Return questions as they stand in a session while a workflow waits at their gates: others must not decide."""
    return tuple(
        one if one.gate is None else one.model_copy(update={"gate": {**one.gate, "workflow": workflow_id}})
        for one in gates
    )


async def after_decisions(store: DurableStore, session: Session, question: Question) -> Question:
    """Return a gate of a session as it is after what people decided at it in a workflow that is gone.

    While one of a turn is open, none of its calls has run. Those that were let through may have: they are orphans.
    """
    if question.gate is None or "workflow" not in question.gate:
        return question
    gate = Gate.read(question.gate)
    rows = await Kept(str(session.run_key).rpartition("/")[0], store).decisions(gate.name)
    gate = gate.after((decision_of(row), row.at) for row in rows).at(datetime.now(UTC))
    return question.model_copy(update={"gate": gate.plain()})


def let_through(state: LoopState, calls: Sequence[ToolCall]) -> list[Any]:
    """Return what people have let through, by position, as `Turn.approved` has it."""
    approved = []
    for position, call in enumerate(calls):
        gate = state.verdict(call)
        if gate is not None and gate.status == "approved":
            edit = {} if gate.edit is None else {"edit": edit_digest(gate.edit)}
            approved.append([position, {"by": list(gate.approved_by), **edit}])
    return approved


async def with_references(host: AgentHost, run: str, state: LoopState) -> LoopState:
    """Return a state whose gates have references in the place of arguments."""

    async def without_arguments(question: Question) -> Question:
        if question.gate is None:
            return question
        approvals = [dict(one) for one in question.gate["approvals"]]
        for one in approvals:
            if one.get("edit") is not None:
                await keep_edit(host, run, one["edit"])
                one["edit"] = edit_reference(one["edit"])
        rest = {name: value for name, value in question.gate.items() if name != "arguments"}
        return question.model_copy(update={"gate": {**rest, "approvals": approvals}})

    questions = [await without_arguments(question) for question in state.questions]
    verdicts = [await without_arguments(question) for question in state.verdicts]
    return replace(state, questions=tuple(questions), verdicts=tuple(verdicts))


def arguments_of(record: TurnRecord, call_id: str) -> Any:
    """Return the arguments that people are asked about, or None if the call had no gate."""
    return (gate_of(record, call_id) or {}).get("arguments")


class GateActivities:
    """Records what people decide."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def all(self) -> list[Any]:
        return [self.decide, self.recall, self.sent, self.searchable]

    @json_activity(names.DECIDE)
    async def decide(self, reference: DecideReference) -> str | None:
        """Record a decision; returns why it does not count."""
        with TypedErrors(self._host):
            given: dict[str, Any] = {name: value for name, value in reference.items() if name != "receipt"}
            run, at = given.pop("run"), datetime.fromisoformat(given.pop("at"))
            refused: str | None = given.pop("refused")
            has_rule, call = given.pop("access", False), given.pop("call", None)
            decision = Decision(**given)
            if refused is None:
                may = _declared(self._host, is_needed=has_rule)
                if may is not None:
                    refused = await called(self._host, lambda: decider_problem(may.access.get("approve"), decision))
            if refused is None and has_rule and call is None:  # a pipeline's; of a call see `_denied`
                refused = approver_problem(self._approval(decision.gate), decision)
            if refused is None and decision.decision == "reject" and call is not None:
                has_run = await _has_started(self._host, run, *call)
                refused = f"gate {decision.gate}: the call has run already" if has_run else None
            if refused is None and call is not None:
                refused = await self._denied(run, call, decision)
            info = activity.info()
            asked = f"receipt {reference['receipt']}" if "receipt" in reference else info.activity_id  # once, if again
            key = f"{info.workflow_run_id}/{asked}"
            await Kept(run, self._host.store).record(decision, at, refused, key)
            return receipted(reference, refused)

    @json_activity(names.RECALL)
    async def recall(self, reference: RecallReference) -> Recalled:
        """Return what has counted at a gate before the workflow was reset, and whether the call behind it has run."""
        with TypedErrors(self._host):
            run, gate, call = reference["run"], reference["gate"], reference.get("call")
            found: Recalled = {"decisions": []}
            for row in await Kept(run, self._host.store).decisions(gate):
                decision = decision_of(row)
                if decision.edit is not None and call is not None:
                    await keep_edit(self._host, run, decision.edit)
                    decision = decision.model_copy(update={"edit": edit_reference(decision.edit)})
                found["decisions"].append([decision.model_dump(exclude_none=True), row.at.isoformat()])
            if call is not None and await _has_started(self._host, run, *call):
                found["has_run"] = True
            return found

    @json_activity(names.SENT)
    async def sent(self, reference: SentReference) -> str | None:
        """Return when a signal was sent, by the history, which a workflow does not see."""
        with TypedErrors(self._host), Heartbeats():
            info, client, left = activity.info(), activity.client(), reference["number"]
            run = client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
            async for event in run.fetch_history_events():
                signal = event.workflow_execution_signaled_event_attributes
                if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                    continue
                if signal.signal_name == reference["name"] and await _digest(client, signal) == reference["digest"]:
                    left -= 1
                    if not left:
                        return event.event_time.ToDatetime(UTC).isoformat()
            return None

    @activity.defn(name=names.SEARCHABLE)
    async def searchable(self) -> Surroundings:
        """Return whether the namespace has the search attributes, and what the webhooks want to know of."""
        return self._host.surroundings

    def _approval(self, path: str) -> Approval | None:
        """Return what a step declares today, if it still is a gate."""
        try:
            step = find(self._host.pipeline(), path)
        except InputError:
            return None
        return step.approval if isinstance(step, Step) else None

    async def _denied(self, run: str, call: Sequence[int], decision: Decision) -> str | None:
        """Return why a decision on a call does not count as its agent is now; else keep edited arguments.

        Where no worker has the agent any more, what was recorded with the call is all there is to go by.
        """
        info = activity.info()
        if decision.edit is None and info.workflow_type not in self._host.agents and info.attempt >= TRIES:
            return None
        turn, position = call
        record = await self._host.load_record(run, turn)
        asked, agent = record.calls[position], self._host.agent()
        gate = gate_of(record, asked.id)
        rule = GateRule.read(gate["rule"]) if gate is not None else GateRule()
        shown = arguments_of(record, asked.id)
        if shown is not None:
            asked = ToolCall(id=asked.id, name=asked.name, arguments=shown)
        problem = await called(
            self._host, lambda: caller_problem(agent, asked, decision) or edit_problem(agent, asked, decision, rule)
        )
        if problem is None:
            await keep_edit(self._host, run, decision.edit)
        return problem


def _declared(host: AgentHost, *, is_needed: bool) -> Agent | Pipeline | None:
    """Return the agent or pipeline of the workflow that runs this activity; None if it is neither, or not here."""
    name = activity.info().workflow_type or ""
    known: dict[str, Agent | Pipeline] = {**host.agents, **host.pipelines}
    return host.here("agent or pipeline", name, known) if is_needed else known.get(name)


async def called(host: AgentHost, function: Callable[[], T]) -> T:
    """Call what a user declared, where users' code runs."""
    return cast(T, await host.thread.run(call_users(function)))


async def _digest(client: Client, signal: WorkflowExecutionSignaledEventAttributes) -> str | None:
    """Return the digest of a signal's data, as a workflow makes it; None for what it cannot use."""
    try:
        data, *_ = [*await client.data_converter.decode(signal.input.payloads), None]  # as a handler takes it
    except Exception:  # of any kind: what does not decode reached no handler
        return None
    return None if json_problem(data, VALUES) is not None else edit_digest(data)


async def _has_started(host: AgentHost, run: str, turn: int, position: int) -> bool:
    """Return whether a call of a run was ever begun, by the ledger."""
    record = await host.load_record(run, turn)
    return await has_started(host.store, record.key, position, record.calls[position].id)


async def keep_edit(host: AgentHost, run: str, edit: object) -> None:
    """Keep the arguments that people have put in place of the model's."""
    if edit is not None:
        await host.store.save_reply(_edit_place(run, edit_digest(edit)), 0, to_json(edit).decode())


async def load_edit(host: AgentHost, run: str, digest: str) -> Any:
    """Return what `keep_edit` has kept."""
    kept = await host.load_kept(_edit_place(run, digest), 0)
    return read_kept(f"edited arguments of run {run}", kept, read_json)


def _edit_place(run: str, digest: str) -> str:
    """Return where edited arguments are kept."""
    return f"{run}/edits/{digest}"
