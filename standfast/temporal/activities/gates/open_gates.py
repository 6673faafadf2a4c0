"""Finds the gates that are open in a session and the decisions on them, and keeps people's edits of a call."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import (
    CallPlace,
    Decision,
    Gate,
    LoopState,
    caller_problem,
    decider_problem,
    handed_to,
    last_answer,
    last_speaker,
)
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import Question
from standfast.messages import JSONObject, Message, ToolCall, Tripped, read_json
from standfast.runtime.dependencies import kept_context
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.standing_approvals import decided_in_advance
from standfast.runtime.users_functions import ask_at_gates, edit_refusal
from standfast.stores.kept_values import read_kept
from standfast.stores.protocol import Session, session_id_of
from standfast.temporal.activities.tools.dependencies import guardrails_at
from standfast.temporal.activities.worker.activity_guards import called
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire.activity_types import Asked, LetThrough, OpenReference
from standfast.temporal.wire.inputs import GATES_BYTES, INLINE_BYTES, SCHEMAS_BYTES, SHOWN_BYTES
from standfast.temporal.wire.outcomes import shown_arguments
from standfast.temporal.wire.shown_gates import shown_inline
from standfast.temporal.wire.turn_records import (
    TurnRecord,
    edit_digest,
    edit_place,
    edit_reference,
    gate_of,
    with_edit_of,
)
from standfast.tools.calls import turn_scope


async def find_gates(
    host: AgentHost,
    agent: Agent,
    calls: Sequence[ToolCall],
    run: str,
    spoke: Iterable[str | None],
    place: CallPlace,
    tripped: Iterable[Tripped],
    at: datetime | None = None,
) -> tuple[list[Question], dict[str, str]]:
    """Return the gates that calls must pass, and, by id, the reasons why some calls cannot run at all.

    Args:
        run: the run whose audit trail has the editors of its calls.
        spoke: the other people who have sent it messages.
        place: the place of the calls, for decisions that were made in advance.
        tripped: the guardrails' verdicts on them.
        at: the present time, if the next attempt must use the same time.
    """
    requesters = [*spoke, *await Kept(run, host.store).editors()]
    asked = ask_at_gates(agent, calls, at=at or datetime.now(UTC), requesters=requesters, tripped=tripped)
    questions, refused = await host.thread.run(asked)
    questions = await decided_in_advance(host.store, questions, calls, place)
    size = 0
    for question in list(questions):
        bare = {name: value for name, value in (question.gate or {}).items() if name not in ("arguments", "schema")}
        size += len(to_json([question.model_copy(update={"gate": bare})]))
        if size > GATES_BYTES:
            questions.remove(question)
            refused[str(question.tool_call_id)] = "Not run: too many calls of a turn need approval; ask again for these"
    return questions, refused


def asked_of(gates: Sequence[Question], run: str, turn: int) -> Asked:
    """Return gates as a history has them, and, by id, the arguments that people see, whole or cut.

    Cut arguments come with the size of the whole; see `load_arguments`. A gate that does not hold a call has the shown
    content instead; see `load_shown`.
    """
    shown: JSONObject = {}
    asked, sizes, left = [], {}, INLINE_BYTES
    for gate in _with_few_schemas(gates):
        rule = dict(gate.gate or {})
        arguments = rule.pop("arguments", None)
        if gate.is_held:
            shown[str(gate.tool_call_id)] = shown_inline(arguments, run, turn, str(gate.tool_call_id))
            asked.append(gate.model_copy(update={"gate": rule, "held": None}).model_dump())
            continue
        left -= (size := len(to_json(arguments)))
        is_small = size <= SHOWN_BYTES and left > 0
        shown[str(gate.tool_call_id)] = arguments if is_small else shown_arguments(arguments)
        if not is_small:
            sizes[str(gate.tool_call_id)] = size
        asked.append(gate.model_copy(update={"gate": rule}).model_dump())
    found: Asked = {"gates": asked, "arguments": shown}
    return {**found, "sizes": sizes} if sizes else found


def _with_few_schemas(gates: Iterable[Question]) -> list[Question]:
    """Return questions with no more call schemas than a history should carry."""
    found, left = [], SCHEMAS_BYTES
    for question in gates:
        gate = question.gate or {}
        left -= len(to_json(gate["schema"])) if "schema" in gate else 0
        lighter = {name: value for name, value in gate.items() if name != "schema"}
        found.append(question if left >= 0 or not gate else question.model_copy(update={"gate": lighter}))
    return found


def held_by(workflow_id: str, gates: Sequence[Question]) -> tuple[Question, ...]:
    """Return questions as a session has them while a workflow waits at their gates: no one else may decide."""
    return tuple(one if one.gate is None else one.with_gate(workflow=workflow_id) for one in gates)


async def after_decisions(host: AgentHost, agent: Agent, session: Session, question: Question) -> Question:
    """Return a session's gate after people's decisions in a workflow that no longer exists, or in the store.

    While one gate of a turn is open, none of the turn's calls has run. Approved calls may have run: they are orphans.
    """

    async def judge(at: Gate, decision: Decision) -> str | None:
        refused = await called(host, lambda: decider_problem(agent.access.get("approve"), decision))
        return refused or await _refused_today(host, session, at, decision)

    if question.gate is None:
        return question
    gate, is_of_workflow = Gate.read(question.gate), "workflow" in question.gate
    run = str(session.journal_key).rpartition("/")[0] if is_of_workflow else f"{session.agent_name}/{session.id}"
    gate = await Kept(run, host.store).gate_after(gate, judge)
    gate = gate.at(datetime.now(UTC)) if is_of_workflow else gate
    return question.model_copy(update={"gate": gate.plain()})


async def _refused_today(host: AgentHost, session: Session, gate: Gate, decision: Decision) -> str | None:
    """Return why today's agent rejects a decision on a call of a session, or None if the decision counts."""
    messages = await host.store.load_messages(session.id)
    agent, last = host.catalogue.speaker(last_speaker(messages)), last_answer(messages)
    calls = () if last is None else messages[last].tool_calls or ()
    asked = next((call for call in calls if call.id == gate.name), None)
    if gate.holds:
        agent, asked = host.catalogue.speaker(handed_to(agent, messages)), ToolCall(id=gate.name)
    if asked is None:
        return None
    shown = ToolCall(id=asked.id, name=asked.name, arguments=gate.arguments)
    refused: str | None = await called(host, lambda: caller_problem(agent, shown, decision, gate.rule))
    if refused is not None or decision.edit is None:
        return refused
    session_id = session_id_of(session.id)
    context = AgentContext(
        AgentIdentity(session_id, agent.name),
        agent.read_state(session.state),
        session.user_id,
        session.tenant_id,
        session_id=session_id,
    )
    guardrails = guardrails_at(agent, context, kept_context(messages))
    return await host.thread.run(edit_refusal(agent, shown, decision, gate.rule, guardrails.verdicts_on))


async def note_held(
    host: AgentHost, reference: OpenReference, session: Session, held: Sequence[Question], epoch: int
) -> None:
    """Keep the content that an earlier run has left at a gate without a call, for people who view the gate."""
    record = TurnRecord(
        message=held[0].held or Message(role="assistant"),
        key=turn_scope(session.key, session.last_seq + 1),
        session=session.id,
        agent_id=reference["input"].get("instance_id") or reference["run"],
        user_id=session.user_id,
        tenant_id=session.tenant_id,
        gates=tuple(held),
        epoch=epoch,
    )
    await host.store.save_reply(reference["run"], 0, record.model_dump_json())


def let_through(state: LoopState, calls: Sequence[ToolCall]) -> list[tuple[int, LetThrough]]:
    """Return the calls that people have approved, by position, as `Turn.approved` has them."""
    approved: list[tuple[int, LetThrough]] = []
    for position, call in enumerate(calls):
        gate = state.verdict(call)
        if gate is not None and gate.status == "approved":
            who: LetThrough = {"by": list(gate.approved_by)}
            known = gate.edit is None
            approved.append((position, who if known else with_edit_of(who, gate, edit_reference(gate.edit))))
    return approved


async def with_references(host: AgentHost, run: str, state: LoopState) -> LoopState:
    """Return a state whose gates have references instead of arguments."""

    async def without_arguments(question: Question) -> Question:
        if question.gate is None:
            return question
        approvals = [dict(one) for one in question.gate["approvals"]]
        for one in approvals:
            if one.get("edit") is not None:
                await keep_edit(host, run, one["edit"])
                one["edit"] = edit_reference(one["edit"])
        rest = {name: value for name, value in question.gate.items() if name != "arguments"}
        return question.model_copy(update={"gate": {**rest, "approvals": approvals}, "held": None})

    questions = [await without_arguments(question) for question in _with_few_schemas(state.questions)]
    verdicts = [await without_arguments(question) for question in state.verdicts]
    return replace(state, questions=tuple(questions), verdicts=tuple(verdicts))


def arguments_of(record: TurnRecord, call_id: str) -> Any:
    """Return the arguments shown to people, or None for a call without a gate."""
    return (gate_of(record, call_id) or {}).get("arguments")


async def keep_edit(host: AgentHost, run: str, edit: object) -> None:
    """Keep the arguments with which people have replaced the model's."""
    if edit is not None:
        await host.store.save_reply(edit_place(run, edit_digest(edit)), 0, to_json(edit).decode())


async def load_edit(host: AgentHost, run: str, digest: str) -> Any:
    """Return the arguments that `keep_edit` has kept."""
    kept = await host.records.load_kept(edit_place(run, digest), 0)
    return read_kept(f"edited arguments of run {run}", kept, read_json)
