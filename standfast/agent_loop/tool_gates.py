"""Gates of tool calls: which calls need approval, what may be changed at a gate, and what the model reads about it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop.gate_rules import Decision, GateRule, in_turn
from standfast.agent_loop.gates import Gate, digest_of
from standfast.agent_loop.guardrails import approval_of_guardrail, refusal_by_guardrail, rule_of
from standfast.agent_loop.standing_approvals import policy_of
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import (
    JSONObject,
    ToolCall,
    Tripped,
    cut,
    distinct_people,
    error_text,
    person,
    read_json,
    size_over,
)
from standfast.tools import Approval, Failed, Outcome, Returned, Tool

NOBODY_TO_ASK = "Not run: it needs approval, for which an agent that a tool runs cannot wait"
_CHANGED = "changed the arguments before it ran"
_SHOWN_BYTES = 4 * 1024  # of the question to people before a call; a turn may have 64
_SCHEMA_BYTES = 16 * 1024  # of the schema by which people change its arguments


def open_gates(
    agent: Agent,
    calls: Iterable[tuple[ToolCall, InputError | None]],
    *,
    at: datetime,
    requesters: Iterable[str | None],
    asked_at: Mapping[str, datetime] = MappingProxyType({}),
    tripped: Iterable[Tripped] = (),
) -> tuple[list[Question], dict[str, str], list[str]]:
    """Return the gates that these calls have to pass; by call id, why some cannot run at all; and messages about that
    for a developer.

    If an approval's function raises, that is an error of the call, as if its handler had raised. An approval without a
    timeout waits as long as the agent's questions do.

    Args:
        calls: with their arguments as the handlers get them, or with why they cannot be read.
        at: the time now.
        requesters: who has spoken to the run.
        asked_at: by call id, when people were asked according to an untrusted source: its digest is used, and an
            expired time stays expired, but it does not let any call through.
        tripped: the verdicts on calls by guardrails that leave the decision to people.
    """
    people, verdicts = distinct_people(requesters), [one for one in tripped if one.asks]
    questions, refused, faults = [], {}, []
    for call, problem in calls:
        if problem is not None:
            refused[call.id] = error_text(problem)
            continue
        try:
            own = agent.tool_map[call.name].approval_of(call)
            asks: list[tuple[Approval, Tripped | None]] = [] if own is None else [(own, None)]
            for verdict in (one for one in verdicts if one.tool_call_id == call.id):
                approval = approval_of_guardrail(agent, verdict.guardrail)
                if approval is None:  # a deploy has taken its approval away: now it refuses
                    raise InputError(refusal_by_guardrail(verdict))
                asks.append((approval, verdict))
            if asks:
                questions.append(_question_for(agent, call, asks, at, asked_at.get(call.id, at), people))
        except InputError as error:
            refused[call.id] = cut(error_text(error), _SHOWN_BYTES)
            faults.append(refused[call.id])
        except (Exception, SystemExit) as error:
            kind, text = type(error).__name__, error_text(error)
            raised = text if text.startswith(kind) else f"{kind}: {text}"
            refused[call.id] = cut(f'Tool "{call.name}": its approval raised {raised}', _SHOWN_BYTES)
            faults.append(refused[call.id])
    return questions, refused, faults


def _question_for(
    agent: Agent,
    call: ToolCall,
    asks: Sequence[tuple[Approval, Tripped | None]],
    at: datetime,
    asked_at: datetime,
    requesters: tuple[str, ...],
) -> Question:
    """Return the question at the gate of a call: all who are asked must approve it, one after the other.

    Args:
        asks: the tool's own approval, if it has one, and those of guardrails, with their verdicts.
    """
    texts = [[_message(call, each, verdict) for each in approval.chain] for approval, verdict in asks]
    rules = [rule_of(agent, approval, "" if verdict is None else verdict.guardrail) for approval, verdict in asks]
    # The digest includes the time: providers' ids repeat, and a decision must not count for another call.
    shown = (call.name, call.arguments, asked_at.isoformat())
    first, *later = in_turn(rules, texts, lambda text, number: digest_of(call.id, text, *shown, number))
    rule, is_let_through_by_time = replace(first, message="", digest=""), any(one.opens_by_time for one in rules)
    tool, schema = agent.tool_map[call.name], agent.tool_map[call.name].input_schema
    gate = Gate(
        name=call.id,
        rule=rule,
        digest=first.digest,
        since=at if is_let_through_by_time else min(at, asked_at),
        requesters=requesters,
        arguments=call.arguments,
        edits=True,
        is_call=True,
        fingerprint=tool.fingerprint,
        schema_digest=tool.schema_digest,
        schema=schema if len(to_json(schema)) <= _SCHEMA_BYTES else None,
        policy=policy_of(tool, rule),
        later=tuple(later),
    )
    return Question(question=first.message, tool_call_id=call.id, gate=gate.plain())


def _message(call: ToolCall, approval: Approval, verdict: Tripped | None) -> str:
    usual = f'May the tool "{call.name}" run?'
    if verdict is None:
        return cut(approval.shown(call.model_copy(deep=True)), _SHOWN_BYTES) or usual
    why = f"The guardrail {verdict.guardrail} has stopped it: {verdict.reason}"
    return f"{cut(approval.shown(call.model_copy(deep=True)), _SHOWN_BYTES - len(why.encode())) or usual}\n{why}"


def _approval_at(agent: Agent, call: ToolCall, rule: GateRule) -> Approval | None:
    """Return the approval by which a gate asks today; None if there is none any more."""
    if rule.guardrail:
        return approval_of_guardrail(agent, rule.guardrail, rule.holds)
    tool = agent.tool_map.get(call.name)
    return None if tool is None else tool.approval_of(call)


async def edit_problem(
    agent: Agent,
    call: ToolCall,
    decision: Decision,
    rule: GateRule,
    *,
    read: Callable[[Tool[..., Any], JSONObject], Awaitable[JSONObject]],
    check: Callable[[ToolCall], Awaitable[Iterable[Tripped]]],
) -> str | None:
    """Return why the arguments of an edit cannot replace the model's, or None if they can.

    They must be valid, no guardrail may refuse them, and they must not need the approval of other people.

    Args:
        call: with the arguments that were shown.
        rule: by which the gate asks now.
        read: returns arguments as the handler gets them.
        check: returns the verdicts of guardrails on a call.
    """
    if decision.edit is None or decision.decision == "reject":
        return None
    tool, gate, edit = agent.tool_map.get(call.name), decision.gate, decision.edit
    if tool is None:
        return f"gate {gate}: edit: the agent no longer has the tool {call.name}"
    if not isinstance(edit, dict):
        return f"gate {gate}: edit must be an object, all arguments of tool {tool.name}"
    try:
        normal = await read(tool, edit)
        if (unknown := unknown_key(edit, normal)) is not None:
            has = ", ".join(normal) or "none"
            return f"gate {gate}: edit: tool {tool.name} has no argument {unknown!r}; it has {has}"
        edited = ToolCall(id=call.id, name=call.name, arguments=normal)
        verdicts = list(await check(edited))
        for verdict in (one for one in verdicts if not one.asks):
            return f"gate {gate}: edit: the guardrail {verdict.guardrail} refuses these arguments: {verdict.reason}"
        own = tool.approval_of(edited)
        asks = [] if own is None else [rule_of(agent, own)]
        for name, approval in ((one.guardrail, approval_of_guardrail(agent, one.guardrail)) for one in verdicts):
            asks += [] if approval is None else [rule_of(agent, approval, name)]
        approval = _approval_at(agent, call, rule)
        usual = None if approval is None else rule_of(agent, approval, rule.guardrail)
    except (Exception, SystemExit) as error:
        return f"gate {gate}: edit: {cut(error_text(error), _SHOWN_BYTES)}"
    if not asks:
        return None
    is_asked = usual is not None and rule.bare() in [one.bare() for one in usual.chain]
    if len(asks) > 1 or usual is None or not is_asked or asks[0].bare() != usual.bare():
        return f"gate {gate}: edit: these arguments need a different approval; reject it, and explain why"
    return None


def unknown_key(edit: Any, normal: Any, path: str = "") -> str | None:
    """Return a key of an edit that the tool, or the model of a value, does not know and would silently drop."""
    if isinstance(edit, list) and isinstance(normal, list):
        pairs: Iterable[tuple[Any, Any]] = enumerate(edit[: len(normal)])
    elif isinstance(edit, dict) and isinstance(normal, dict):
        if dropped := sorted(edit.keys() - normal.keys()):
            return f"{path}{dropped[0]}"
        pairs = edit.items()
    else:
        return None
    found = (unknown_key(item, normal[key], f"{path}{key}.") for key, item in pairs)
    return next((what for what in found if what is not None), None)


def refused_as_changed(tool: Tool[..., Any], arguments: JSONObject | str, *, approved: bool) -> Failed | None:
    """Return the outcome of a call that does not run because another tool has its name now; None if it may run.

    Args:
        approved: people have approved these arguments: they run as they were seen, or not at all.
    """
    try:
        normal = tool.normal_arguments(arguments)
    except InputError as error:
        return Failed(error_text(error))
    given = arguments if isinstance(arguments, dict) else read_json(arguments)
    if unknown := sorted(given.keys() - normal.keys()):
        return Failed(f'Not run: tool "{tool.name}" no longer has the argument {unknown[0]!r}')
    return tool.not_as_approved() if approved and normal != given else None


def decided_too_late(gate: str) -> str:
    """Return why a decision does not count at the gate of a call that has run."""
    return f"gate {gate}: the call has already run"


def answered_already(gate: str) -> str:
    """Return why a decision does not count at the gate of a call that was answered without being run."""
    return f"gate {gate}: the call has ended, and the agent has read that it was not run"


def refusal(gate: Gate) -> str:
    """Return what the model reads about a call that its gate did not let through."""
    if gate.status == "timed-out":
        return f"Approval timed out: it was not decided by {gate.deadline:%Y-%m-%d %H:%M} UTC, so it was not run"
    if gate.last is None:
        return "Not run: it was not approved in time"
    who = "" if gate.last.by is None else f" by {gate.last.by}"
    why = "" if gate.last.comment is None else f": {gate.last.comment}"
    return f"Not run: it was rejected{who}{why}"


def edit_note(editor: str | None) -> str:
    """Return the words by which a result says who changed the arguments of its call."""
    return f"{editor or 'Someone'} {_CHANGED}"


def is_edited(result: Mapping[str, Any]) -> bool:
    """Whether a result says that people changed its call, and is not a tool's own that only looks like it."""
    has_keys = {"note", "result"} <= result.keys() <= {"note", "arguments", "result"}
    return has_keys and isinstance(result["note"], str) and result["note"].endswith(_CHANGED)


def with_edit(outcome: Outcome, editor: str | None, arguments: Mapping[str, Any], limit: int) -> Outcome:
    """Return the outcome of a call that ran with edited arguments; it tells the model so.

    Args:
        editor: who changed them.
        limit: the largest result in bytes; if it would be exceeded, the model is told less.
    """
    note = edit_note(editor)
    match outcome:
        case Returned(content):
            try:
                result = read_json(content)
            except ValueError:
                result = content
            for told in ({"note": note, "arguments": arguments, "result": result}, {"note": note, "result": result}):
                if not size_over(text := to_json(told).decode(), limit):
                    return replace(outcome, content=text)
            return outcome
        case Failed(error):
            return replace(outcome, error=cut(f"{error} ({note}: {to_json(arguments).decode()})", limit))
    return outcome


def approver_problem(approval: Approval | None, decision: Decision) -> str | None:
    """Return why a person whom a gate has asked may no longer decide; None if today's declaration still asks them.

    Whom it asks, at whichever stage of an escalation; the rest of what was declared when the gate was opened holds.

    Args:
        approval: today's; None if the gate was removed from the declaration: then the recorded rule applies.
    """
    asked = [] if approval is None else [one.users for one in approval.chain]
    if not asked or any(not users or person(decision.by) in map(person, users) for users in asked):
        return None
    return f"gate {decision.gate}: {decision.by} may no longer decide it; {', '.join(asked[0])} may"


def caller_problem(agent: Agent, call: ToolCall, decision: Decision, rule: GateRule) -> str | None:
    """Return the same for the gate of a tool call, which a function may have made for its arguments.

    Args:
        rule: by which the gate asks now.
    """
    try:
        return approver_problem(_approval_at(agent, call, rule), decision)
    except (Exception, SystemExit) as error:
        return f"gate {decision.gate}: its approval raised {type(error).__name__}: {cut(error_text(error), 2_000)}"
