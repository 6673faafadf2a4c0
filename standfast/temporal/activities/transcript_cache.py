"""Caches runs in flight in a worker, so that a step costs the same at any length and needs few reads.

Memory is never trusted against the store: a write says which message it follows, and is refused if that is not so.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from standfast.messages import Message
from standfast.stores.protocol import Session
from standfast.temporal.wire.activity_types import WrittenOutcome
from standfast.temporal.wire.turn_records import TurnRecord

LIMIT = 64 * 1024 * 1024  # characters, of all transcripts together
RECORDS = 1_000  # turns, and results
LONGEST = 1024 * 1024  # characters of a result


@dataclass(frozen=True, slots=True)
class KeptTranscript:
    """The messages of a session from `after` up to `seq`, fit to be shown to a model.

    Args:
        session: as it was written last.
        call_ids: all that were used.
        size: in characters.
    """

    session: Session
    after: int
    seq: int
    messages: list[Message]
    call_ids: set[str]
    size: int


class TranscriptCache:
    """The transcripts that were used last, as many as fit, and what was kept of the last turns."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[str, KeptTranscript] = OrderedDict()
        self._records: OrderedDict[tuple[str, int], TurnRecord] = OrderedDict()
        self._results: OrderedDict[tuple[str, str], WrittenOutcome] = OrderedDict()
        self._facts: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._run_keys: OrderedDict[str, str] = OrderedDict()

    def take(self, session_id: str) -> KeptTranscript | None:
        """Return what is kept of a session, and keep it no longer: whoever has it may change it."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._size -= kept.size
        return kept

    def keep(self, transcript: KeptTranscript) -> None:
        self.take(transcript.session.id)
        self._kept[transcript.session.id] = transcript
        self._size += transcript.size
        while self._size > self._limit:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def run_key(self, run_id: str) -> str | None:
        """Return the run key of a workflow's run, if an activity of it ran here lately."""
        return self._run_keys.get(run_id)

    def keep_run_key(self, run_id: str, run_key: str) -> None:
        self._run_keys[run_id] = run_key
        if len(self._run_keys) > RECORDS:
            self._run_keys.popitem(last=False)

    def facts(self, run: str) -> Mapping[str, Any] | None:
        """Return the facts that a run recorded at its start, if an activity of it ran here lately."""
        return self._facts.get(run)

    def keep_facts(self, run: str, facts: Mapping[str, Any]) -> None:
        self._facts[run] = facts
        if len(self._facts) > RECORDS:
            self._facts.popitem(last=False)

    def record(self, run: str, turn: int) -> TurnRecord | None:
        """Return the record of a turn, if this worker wrote it lately."""
        return self._records.get((run, turn))

    def keep_record(self, run: str, turn: int, record: TurnRecord) -> None:
        self._records[run, turn] = record
        if len(self._records) > RECORDS:
            self._records.popitem(last=False)

    def result(self, run: str, call_key: str) -> WrittenOutcome | None:
        """Return the written outcome of a call, if this worker recorded it lately; once, since it is needed once."""
        return self._results.pop((run, call_key), None)

    def keep_result(self, run: str, call_key: str, written: WrittenOutcome, size: int) -> None:
        if size <= LONGEST:
            self._results[run, call_key] = written
            if len(self._results) > RECORDS:
                self._results.popitem(last=False)


def size_of(message: Message) -> int:
    """Return about how many characters a message keeps alive."""
    calls = sum(len(str(call.arguments)) for call in message.tool_calls or ())
    return len(message.content) + calls
