"""Records of turns in the store (the model's answer, and all data for its calls), and references to their parts."""

import hashlib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field
from pydantic_core import to_json

from standfast.agent_loop import Gate, value_digest
from standfast.checkpoints import Question
from standfast.messages import JSONObject, Message, Record, ToolCall
from standfast.stores.kept_values import read_kept
from standfast.temporal.wire.activity_types import LetThrough
from standfast.temporal.wire.outcomes import shown_arguments
from standfast.temporal.wire.snapshots import tool_facts, write_tool_facts
from standfast.tools import Tool

_SHOWN_EDIT_BYTES = 4 * 1024  # of an edit; a turn may have 64, which a run carries when it continues as new


class CalledTool(Record):
    """The facts about a tool that are recorded with the turn that calls it.

    Args:
        facts: the facts that steer its calls, as JSON; see `ToolFacts`.
        schema_digest: the digest of its input schema, which distinguishes it from another tool that has taken its name.
    """

    facts: Mapping[str, Any] = Field(default_factory=dict)
    schema_digest: str = ""

    @classmethod
    def of(cls, tool: Tool[..., Any], *, agent: bool = False) -> Self:
        return cls(facts=write_tool_facts(tool_facts(tool, agent)), schema_digest=tool.schema_digest)


class TurnRecord(Record):
    """One answer of the model; kept by run and turn, and the same whenever it is requested again.

    Args:
        message: the answer; a held answer includes the verdicts of guardrails.
        said: digests of the user's messages that the model has read.
        state: the agent's state, as JSON.
        key: the coordinates of the answer, `<session>@<made>/<message>`, which are the prefix of its calls' ledger
            entries and idempotency keys; for a pipeline's tool step, the run.
        session, agent_id, user_id, tenant_id: the session, the agent and the owner.
        view: the turn of the compressed context, if the context was compressed for it.
        gates: the gates that people must approve before its calls run.
        refused: by id, the reasons why calls do not run.
        tools: by name, the tools that its calls name.
        available: all tools of the agent, if a call names one that it does not have.
        epoch: the store's epoch when this was made; see `restored_stores`.
    """

    message: Message
    said: tuple[str, ...] = ()
    state: str = "{}"
    key: str
    session: str
    agent_id: str
    user_id: str | None = None
    tenant_id: str | None = None
    view: int | None = None
    gates: tuple[Question, ...] = ()
    refused: Mapping[str, str] = Field(default_factory=dict)
    tools: Mapping[str, CalledTool] = Field(default_factory=dict)
    available: tuple[str, ...] | None = None
    epoch: int = 0

    @property
    def is_held(self) -> bool:
        """Whether the answer waits at a gate, beside the transcript."""
        return bool(self.gates) and any(question.is_held for question in self.gates)

    @property
    def ends(self) -> bool:
        """Whether it is a final answer."""
        return not self.message.tool_calls and not self.is_held

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls or ()

    def coordinates(self, position: int) -> str:
        """Return the coordinates that distinguish a call of it from the calls of all runs.

        They are the session, the message, the place and the id.
        """
        return f"{self.key}.{position}/{self.calls[position].id}"


def read_record(run: str, turn: int, kept: str) -> TurnRecord:
    """Read the record of a turn.

    Raises:
        StoreError: it cannot be read.
    """
    return read_kept(f"turn {turn} of run {run}", kept, TurnRecord.model_validate_json)


class KeptView(Record):
    """A compressed context, which replaces the messages up to `seq`."""

    seq: int
    messages: tuple[Message, ...]


def step_place(run: str, path: str) -> str:
    """Return the key under which the record of a pipeline's tool step is kept."""
    return f"{run}/calls/{path}"


def let_through(gate: Gate) -> LetThrough:
    """Return the facts that a run knows of an approved gate: its approver, and the digest of edited arguments."""
    who: LetThrough = {"by": list(gate.approved_by)}
    return who if gate.edit is None else with_edit_of(who, gate, gate.edit)


def with_edit_of(who: LetThrough, gate: Gate, reference: Mapping[str, Any]) -> LetThrough:
    """Return the facts of an approved gate with its edit, given the edit's reference."""
    edited: LetThrough = {**who, "edit": reference["digest"]}
    if not gate.edits:  # opened by an earlier version, whose runs get nothing else in a replay
        return edited
    return {**edited, "editor": gate.editor or "", "shown": shown_arguments(reference["shown"])}


def edit_reference(arguments: Any) -> JSONObject:
    """Return a history's reference to edited arguments; the store has the arguments.

    People see its contents: the arguments, or the beginning of large ones and their `size`.
    """
    reference = {"digest": edit_digest(arguments), "value": value_digest(arguments), "shown": arguments}
    if (size := len(to_json(arguments))) > _SHOWN_EDIT_BYTES:
        reference |= {"shown": shown_arguments(arguments), "size": size}
    return reference


def edit_place(run: str, digest: str) -> str:
    """Return the key under which edited arguments are kept."""
    return f"{run}/edits/{digest}"


def edit_digest(arguments: object) -> str:
    return hashlib.blake2b(to_json(arguments), digest_size=16).hexdigest()


def held_in(record: TurnRecord, gate: Mapping[str, Any]) -> Question:
    """Return the current state of a gate without a call, with all content that it holds."""
    (question,) = (one for one in record.gates if one.tool_call_id == gate["name"])
    return question.with_gate(**gate)


def gate_of(record: TurnRecord, call_id: str) -> JSONObject | None:
    """Return the gate of a call as it was opened, or None if it had none."""
    return next((question.gate for question in record.gates if question.tool_call_id == call_id), None)
