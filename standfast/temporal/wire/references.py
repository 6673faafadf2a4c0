"""References that stand in a history for values in the store."""

import hashlib
from typing import Any

from pydantic_core import to_json

from standfast.agent_loop import Gate
from standfast.temporal.wire.activity_types import LetThrough
from standfast.temporal.wire.turn_records import TurnRecord


def let_through(gate: Gate) -> LetThrough:
    """Return what a run knows of an approved gate: by whom, and by what the arguments are found that replace others."""
    who: LetThrough = {"by": list(gate.approved_by)}
    return who if gate.edit is None else {**who, "edit": gate.edit["digest"]}


def edit_reference(arguments: object) -> dict[str, str]:
    """Return what a history has in the place of edited arguments, which are in the store."""
    return {"digest": edit_digest(arguments)}


def edit_digest(arguments: object) -> str:
    return hashlib.blake2b(to_json(arguments), digest_size=16).hexdigest()


def gate_of(record: TurnRecord, call_id: str) -> dict[str, Any] | None:
    """Return the gate of a call as it was opened, or None if it had none."""
    return next((question.gate for question in record.gates if question.tool_call_id == call_id), None)
