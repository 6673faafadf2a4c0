"""Describes an edit part by part, compared with the value that was shown, which the store has with the run."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from standfast.agent_loop import Gate, edited_call_digest, edited_digest, value_digest
from standfast.errors import StandfastError
from standfast.messages import How, Record, changed_lines, changed_parts, difference_in_words
from standfast.stores.protocol import DecisionRecord, Ledger
from standfast.temporal.wire.shown_gates import read_asked
from standfast.temporal.wire.turn_records import read_record

_LONG = 80  # characters of a text; a longer one is compared by lines
_TURNS = 16  # read at once


class Change(Record):
    """A part of a value that an edit has changed.

    Args:
        path: the keys to the part, joined by dots, with zero-based indexes for arrays; "" for the whole.
        how: "added" if it did not exist before, "removed" if it no longer exists.
    """

    path: str
    how: How = "changed"
    before: Any = None
    after: Any = None

    @property
    def in_words(self) -> str:
        """The change in one line, as `amount: 120 → 80`; a text of several lines only as changed."""
        if self.lines is not None:
            return f"{self.path or 'value'}:"
        return difference_in_words(self.path, self.how, self.before, self.after)

    @property
    def lines(self) -> list[str] | None:
        """The changed lines of a long text, after "- " and "+ ", and some context lines; None for all other values."""
        texts = (self.before, self.after)
        if not all(isinstance(text, str) for text in texts) or not any(
            "\n" in text or len(text) > _LONG for text in texts
        ):
            return None
        return changed_lines(self.before, self.after)


def changes_between(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield the parts in which two values differ; see `changed_parts`."""
    for at, how, had, has in changed_parts(before, after, path):
        yield Change(path=at, how=how, before=had, after=has)


async def load_changes(store: Ledger, rows: Sequence[DecisionRecord]) -> list[tuple[Change, ...] | None]:
    """Return each decision's changes; None if it is unedited, or the store lacks the value that was shown."""
    edited = [row for row in rows if row.edit is not None]
    calls = [await _calls(store, key, edited) for key in dict.fromkeys(row.journal_key for row in edited)]
    shown = {place: value for found in calls for place, value in found.items()}
    for row in edited:
        shown |= await _gate(store, row, edited)
    places = [(row.journal_key, row.gate, row.digest) for row in rows]
    return [
        tuple(changes_between(shown[place], row.edit)) if row.edit is not None and place in shown else None
        for row, place in zip(rows, places, strict=True)
    ]


_Shown = dict[tuple[str, str, str | None], Any]  # the shown values, by run, gate and digest


async def _gate(store: Ledger, row: DecisionRecord, edited: Iterable[DecisionRecord]) -> _Shown:
    """Return the value that people have been shown at a pipeline's gate: the original, or an earlier edit."""
    try:
        text = await store.load_reply(f"{row.journal_key}/steps/{row.gate}?gate", 0)
        asked: Mapping[str, Any] = {} if text is None else read_asked(row.gate, row.journal_key, text)
    except StandfastError:
        return {}
    if "value" not in asked:
        return {}
    found: _Shown = {}
    here = [one.edit for one in edited if (one.journal_key, one.gate) == (row.journal_key, row.gate)]
    for digest in [one["digest"] for one in (asked, *asked.get("later", ()))]:
        found |= {(row.journal_key, row.gate, edited_digest(digest, edit)): edit for edit in here}
        found[row.journal_key, row.gate, digest] = asked["value"]
    return found


async def _calls(store: Ledger, run: str, edited: Iterable[DecisionRecord]) -> _Shown:
    """Return the arguments of a run's calls that people have edited, by their turns' records.

    An edit may be of an earlier editor's version.
    """
    edits = [(row.gate, row.edit) for row in edited if row.journal_key == run]
    wanted = {(run, row.gate, row.digest) for row in edited if row.journal_key == run}
    found: _Shown = {}
    first = 0
    while wanted - found.keys():
        turns = range(first, first := first + _TURNS)
        texts = await asyncio.gather(*(store.load_reply(run, turn) for turn in turns))
        for turn, text in zip(turns, texts, strict=True):
            if text is None:
                continue
            try:
                gates = read_record(run, turn, text).gates
            except StandfastError:
                return found
            for gate in [Gate.read(question.gate) for question in gates if question.gate is not None]:
                for digest in gate.stages if gate.arguments is not None else ():
                    found[run, gate.name, digest] = gate.arguments
                    for edit in (edit for name, edit in edits if name == gate.name):
                        found[run, gate.name, edited_call_digest(digest, value_digest(edit))] = edit
        if texts[-1] is None:
            break
    return found
