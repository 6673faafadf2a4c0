"""Reads what is written of calls and answers that a run has not heard of."""

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from standfast.agent_loop import not_started
from standfast.messages import Message
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import LedgerEntry, Session
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire.activity_types import FinishReference, WrittenOutcome
from standfast.temporal.wire.outcomes import write_outcome
from standfast.tools import Unknown

NO_ANSWER = "It is said to have ended, and its answer is not in the store"


def final_answer(messages: Sequence[Message]) -> str | None:
    """Return what an agent's session ends with; None if it has not come to an end, whatever is said of its run."""
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        return None
    return messages[-1].content


def was_written_by(session: Session, run: str) -> bool:
    """Whether a run, by its key, is the last that has written to a session."""
    return str(session.journal_key).rpartition("/")[0] == run


def recorded(entry: LedgerEntry | None) -> WrittenOutcome:
    """Return the written outcome that the ledger has of a call."""
    if entry is None or entry.result is None:
        return write_outcome(Unknown("the record of its result is gone"))
    return read_entry(entry)


def read_entry(entry: LedgerEntry) -> WrittenOutcome:
    """Return the written outcome of a call that has one."""
    return cast(WrittenOutcome, read_kept_object("the result of a call in its ledger", entry.result or "{}"))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


async def with_last_answer(host: AgentHost, reference: FinishReference) -> FinishReference:
    """Return what a cancelled run knows, and the answer that it has not heard of, whose calls are not run.

    The model's activity has written it and was cut off, or its result came together with the cancel: Temporal keeps
    that from the run.
    """
    run, turn = reference["run"], reference["turn"] + 1
    session = await host.store.load_session(reference["session"])
    if session is None or session.journal_key != f"{run}/{turn}":
        return reference
    record = await host.load_record(run, turn)
    outcome = write_outcome(not_started(None))
    sources = [[position, outcome] for position in range(len(record.calls))]
    known = {name: value for name, value in reference.items() if name not in ("part", "questions", "agent_state")}
    return cast(FinishReference, known | {"turn": turn, "seq": session.last_seq, "sources": sources})
