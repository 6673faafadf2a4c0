"""Reads the values in a history's entries, which any client may have written: invalid values are omitted."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

from standfast.agent_loop import Decision, Gate, GateRule
from standfast.errors import StandfastError
from standfast.events import (
    Event,
    MessageReceived,
    RunEnded,
    StepCompleted,
    StepFailed,
    ToolEnded,
    ToolOutcome,
)
from standfast.messages import ToolCall, Usage, read_usage
from standfast.pipelines.paths import place_of as place_in_plan
from standfast.temporal.client.histories import Entry
from standfast.temporal.wire import names
from standfast.temporal.wire.turn_records import edit_reference

_OUTCOMES: tuple[ToolOutcome, ...] = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")
SAID = {names.MESSAGE: "text", names.ANSWER: "text", names.RESUME: "action", names.RESOLVE: "decision"}
CLOSED = {
    "workflow_execution_completed": "completed",
    "workflow_execution_failed": "failed",
    "workflow_execution_canceled": "cancelled",
    "workflow_execution_terminated": "terminated",
    "workflow_execution_timed_out": "timed-out",
}


def is_ours(activity: str) -> bool:
    return activity.startswith("standfast.")


def fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)[:500]


def place_of(given: Mapping[str, Any]) -> tuple[int, int]:
    return number(given.get("turn")), number(given.get("position"))


def tool_call(call_id: str, name: str, shown: str) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=shown)


def tool_ended(call: ToolCall, written: Mapping[str, Any]) -> ToolEnded:
    outcome = next(one for one in _OUTCOMES if one in written)
    size, usage = written.get("size"), None
    with suppress(TypeError, ValueError, StandfastError):
        usage = read_usage(written.get("spent"))
        if isinstance(written.get("used"), Mapping):
            usage = Usage.model_validate(written["used"])
    return ToolEnded(call, None, outcome, written[outcome], size if isinstance(size, int) else None, usage=usage)


def gate_after(gate: Gate, given: Mapping[str, Any]) -> Gate:
    """Return a gate after a recorded decision that has counted."""
    at = datetime.fromisoformat(given["at"])
    decision = {name: given[name] for name in ("gate", "decision", "by", "digest", "edit") if name in given}
    if gate.is_call and "edit" in decision:
        decision["edit"] = edit_reference(decision["edit"])
    return gate.at(at).decided(Decision(**decision), at)


def step_gate(making: Mapping[str, Any], made: Mapping[str, Any], rules: Mapping[str, Any], at: datetime) -> Gate:
    """Return the gate that a pipeline opens, by the rules recorded at its start; a rule may be missing."""
    path, rule = text(making.get("path")), GateRule()
    with suppress(KeyError, TypeError, ValueError):
        rule = GateRule.read(rules[place_in_plan(path)])
    return Gate.of_step(path, rule, made, since=at, requesters=())


def stepped(given: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the outcome of a pipeline's step."""
    done, made, making = (
        one if isinstance(one, Mapping) else {} for one in (given.get("done"), found.get("made"), given.get("make"))
    )
    path = text(done.get("path")) or text(making.get("path"))
    match found.get("failed"):
        case [str(reason), str(error), *_]:
            yield StepFailed(path, reason, error)
        case _ if done:
            yield StepCompleted(path, number(done.get("iterations")), text(done.get("response")))
    match made.get("failed"):
        case [str(reason), str(error), *_]:
            yield StepFailed(text(making.get("path")), reason, error)


def received(name: str, given: Mapping[str, Any]) -> MessageReceived:
    of = given.get("tool_call_id") or given.get("name")
    return MessageReceived(cast(Any, name), text(given.get(SAID[name])), word(of), word(given.get("by")))


def ending(kind: str, entry: Entry, result: Mapping[str, Any]) -> RunEnded:
    usage, status = None, CLOSED[kind]
    if kind != "workflow_execution_completed":
        return RunEnded(None, status, "", entry.error or None)
    with suppress(TypeError, ValueError):
        usage = None if result.get("usage") is None else Usage.model_validate(result["usage"])
    said = text(result.get("status")) or status
    return RunEnded(dict(result), said, text(result.get("response")), word(result.get("error")), usage)
