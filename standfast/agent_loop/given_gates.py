"""Checks gates that come from a checkpoint, which strangers may have written."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from standfast.agent_loop.gates import Gate
from standfast.messages import explain
from standfast.tools import SCOPES


def gate_problem(data: Mapping[str, Any], call_id: str | None) -> str | None:
    """Return why a gate from a checkpoint cannot be used, or None if it can."""
    try:
        gate = _GATE.validate_python(_flat(data))
    except ValidationError as error:
        return explain(error)
    rules = [one for rule in (gate.rule, *gate.later) for one in rule.chain]
    if gate.name != call_id:
        return f"it is the gate of call {gate.name}, not of {call_id}"
    if gate.since.tzinfo is None or (gate.opened is not None and gate.opened.tzinfo is None):
        return "since has no time zone"
    seconds = [one for rule in rules for one in (rule.timeout, rule.remind_every) if one is not None]
    if not all(0 < one < _LONGEST for one in seconds):
        return "a time of its rule is not above 0"
    if any(rule.quorum < 1 for rule in rules) or len(rules) > _MOST_RULES:
        return "its rule cannot be kept"
    if any(rule.remember not in ("", *SCOPES) for rule in rules):
        return "its rule remembers what it cannot"
    return None


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a gate's JSON with those whom it asks later beside its rule, as a `Gate` has them."""
    rule = data.get("rule")
    return {**data, "later": rule.get("later", ())} if isinstance(rule, Mapping) else dict(data)


_GATE = TypeAdapter(Gate)
_LONGEST = 100 * 365 * 86_400.0
_MOST_RULES = 100
