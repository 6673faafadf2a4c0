"""Caches runs in flight in a worker, so that a step costs the same at any length and needs few reads.

The cache is never trusted over the store: a write names the message before it, and is refused on a mismatch.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from standfast.stores.protocol import Session
from standfast.temporal.wire.activity_types import Located, WrittenOutcome
from standfast.temporal.wire.turn_records import TurnRecord

LIMIT = 64 * 1024 * 1024  # characters, of all transcripts together
RECORDS = 1_000  # of each kind
LONGEST = 1024 * 1024  # characters of a result

K = TypeVar("K")
V = TypeVar("V")


class Kept(Protocol):
    """A transcript, as far as the cache needs to know it; `size` is in characters."""

    session: Session
    size: int


class Recent(OrderedDict[K, V]):
    """The items that were set last."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > RECORDS:
            self.popitem(last=False)


class TranscriptCache:
    """The transcripts that were used last, as many as fit, and the records of the last turns.

    Attributes:
        records: of turns that this worker wrote, by run and number.
        results: outcomes of calls that it recorded, by scope and key; each is read and removed once.
        facts: the facts that runs recorded at their start, by run key.
        located: the journal key, and the session if the workflow id contains it, by the workflow's run id.
    """

    def __init__(self) -> None:
        self._size = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.records: Recent[tuple[str, int], TurnRecord] = Recent()
        self.results: Recent[tuple[str, str], WrittenOutcome] = Recent()
        self.facts: Recent[str, Mapping[str, Any]] = Recent()
        self.located: Recent[str, Located] = Recent()

    def take(self, session_id: str) -> Kept | None:
        """Return the transcript of a session, and remove it from the cache: the caller may change it."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._size -= kept.size
        return kept

    def keep(self, transcript: Kept) -> None:
        self.take(transcript.session.id)
        self._kept[transcript.session.id] = transcript
        self._size += transcript.size
        while self._size > LIMIT:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def forget(self, run: str) -> None:
        """Drop cached data of a run that the store may have lost."""
        for known in [key for key in self.records if key[0] == run]:
            del self.records[known]
        self.results.clear()

    def keep_result(self, scope: str, call_key: str, written: WrittenOutcome, size: int) -> None:
        if size <= LONGEST:
            self.results[scope, call_key] = written
