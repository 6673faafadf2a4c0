"""Rows of every SQL store: the columns of its tables, and the conversion of values to and from them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_core import to_json

from standfast.checkpoints import Question
from standfast.errors import SessionConflictError
from standfast.messages import Message, ToolCall, Usage
from standfast.stores.kept_values import reading
from standfast.stores.protocol import DecisionRecord, LedgerEntry, Session

WRITTEN = ("state", "user_id", "tenant_id", "questions", "workflow_id", "run_key", "usage", "updated_at")  # each time
# Selected columns, by the names of the fields. The column of a journal key has an older name.
SESSION = f"id, agent_name, {', '.join(WRITTEN)}, last_seq, version, created_at".replace(
    "run_key", "run_key AS journal_key"
)
DECISION = (
    "run_key AS journal_key, gate, at, decision, by, comment, digest, edit, refused, key, act_id, outcome, standing, "
    "remembered"
)
WORK = "session_id, namespace, workflow_id, run_key AS journal_key"
# Whether a mark is of another run than the writer's. A session's journal key begins with its writer's; a run in process
# has none. Its parameter is the journal key, as text.
OF_ANOTHER_RUN = "substr({0}, 1, length(run_key) + 1) <> run_key || '/'"
RUNNING = "owner, worker, task_token, workflow_id, run_id"
MESSAGE = "role, content, tool_calls, tool_call_id, tool_name, status, usage, cost, more"
_MORE = {  # few have them
    "images",
    "reasoning",
    "stop_reason",
    "model",
    "agent",
    "by",
    "id",
    "message_id",
    "context",
    "hosted",
    "citations",
    "tripped",
    "unfit",
}


LONGEST_KEY = 600  # characters, of at most four bytes


def index_key(text: str) -> str:
    """Return a key that fits into an index: models may invent call ids of any length."""
    return text if len(text) <= LONGEST_KEY else f"{text[:100]}…{hashlib.blake2b(text.encode()).hexdigest()}"


def fields(selected: str) -> list[str]:
    """Return the field names of selected columns."""
    return [one.rpartition(" AS ")[2] for one in selected.split(", ")]


def columns(selected: str) -> str:
    """Return selected columns by their names in the table."""
    return ", ".join(one.partition(" AS ")[0] for one in selected.split(", "))


def named(selected: str, row: Sequence[Any]) -> dict[str, Any]:
    """Return the values of a row by field name."""
    return dict(zip(fields(selected), row, strict=True))


@dataclass(frozen=True, slots=True)
class Write:
    """A session and its next messages.

    Args:
        rows: the messages, as `message_rows` returns them.
        write_key, expected_seq, expected_version: as for `append_messages_atomic`.
        holder: the holder under whose hold it is written; None without a hold.
    """

    session: Session
    rows: list[tuple[Any, ...]]
    write_key: str | None = None
    expected_seq: int | None = None
    expected_version: int | None = None
    holder: str | None = None

    @property
    def id(self) -> str:
        return self.session.id


def session_values(session: Session) -> dict[str, Any]:
    """Return the columns of a session that its writer sets, without times and numbers."""
    return {
        "id": session.id,
        "agent_name": session.agent_name,
        "state": session.state,
        "user_id": session.user_id,
        "tenant_id": session.tenant_id,
        "questions": json.dumps([one.model_dump() for one in session.questions]) if session.questions else None,
        "workflow_id": session.workflow_id,
        "run_key": session.journal_key,
        "usage": None if session.usage is None else json.dumps(session.usage.plain()),
    }


def read_session(row: Sequence[Any]) -> Session:
    values = named(SESSION, row)
    if values["questions"] is not None:
        values["questions"] = tuple(Question.model_validate(item) for item in json.loads(values["questions"]))
    if values["usage"] is not None:
        values["usage"] = Usage.of(json.loads(values["usage"]))
    return Session.model_validate(values)


def message_rows(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    """Return the values of `MESSAGE` for messages, without system messages."""
    return [
        (
            message.role,
            message.content,
            None if message.tool_calls is None else to_json([_plain(call) for call in message.tool_calls]).decode(),
            message.tool_call_id,
            message.tool_name,
            message.status,
            None if message.usage is None else message.usage.model_dump_json(),
            message.cost,
            _more(message),
        )
        for message in messages
        if message.role != "system"
    ]


def _more(message: Message) -> str | None:
    more = {name for name in _MORE if getattr(message, name) is not None}
    return message.model_dump_json(include=more) if more else None


def _plain(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def read_message(row: Sequence[Any]) -> Message:
    role, content, tool_calls, tool_call_id, tool_name, status, usage, cost, more = row
    return Message(
        role=role,
        content=content,
        tool_calls=None if tool_calls is None else tuple(ToolCall(**call) for call in json.loads(tool_calls)),
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        status=status,
        usage=None if usage is None else Usage.model_validate_json(usage),
        cost=cost,
        **({} if more is None else json.loads(more)),
    )


def decision_values(record: DecisionRecord) -> dict[str, Any]:
    """Return the columns of a decision."""
    return {**dict(record), "at": record.at.isoformat(), "edit": json.dumps(record.edit)}


def read_decision(row: Sequence[Any]) -> DecisionRecord:
    values = named(DECISION, row)
    return DecisionRecord.model_validate({**values, "edit": json.loads(values["edit"])})


def conflict(session_id: str, last: int, expected_seq: int | None) -> SessionConflictError:
    """Return the error of a writer with outdated knowledge of a session."""
    return SessionConflictError(
        f"Session {session_id} is at message {last}, this run knows of {expected_seq}: another run has written to "
        "it. Nothing was written; run again to go on from there."
    )


def superseded(session_id: str, at_work: str) -> SessionConflictError:
    """Return the error of a writer whose run has ended, by the mark of a later run or of its own end."""
    return SessionConflictError(
        f"Session {session_id}: this run has ended, and the session was marked since by workflow {at_work}. "
        "Nothing was written."
    )


def read_entry(row: Sequence[Any], scope: str, call_key: str, store: str) -> LedgerEntry:
    """Return an entry whose last column is the time of its claim, or its age in seconds by the database's clock."""
    state, owner, arguments_hash, result, since = row
    with reading(f"call {call_key} of run {scope} in the ledger of {store}"):
        return LedgerEntry(
            state=state,
            owner=owner,
            arguments_hash=arguments_hash,
            result=result,
            claimed_at=_time(since),
        )


def _time(since: str | float | None) -> datetime | None:
    if since is None:
        return None
    return datetime.fromisoformat(since) if isinstance(since, str) else datetime.now(UTC) - timedelta(seconds=since)
