"""Says what an edit has changed, part by part: beside what was shown, which the store has, with the run that asked."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from standfast.agent_loop import Gate, edited_digest
from standfast.errors import StandfastError
from standfast.messages import Record, changed_lines, visible_json
from standfast.stores.protocol import DecisionRecord, Ledger
from standfast.temporal.wire.shown_gates import read_asked
from standfast.temporal.wire.turn_records import read_record

_LONG = 80  # characters of a text; a longer one is compared by lines
_TURNS = 16  # read at once


class Change(Record):
    """A part of a value that an edit has changed.

    Args:
        path: the keys to it, with dots between them, and from 0 the places in arrays; "" for the whole.
        how: "added" if it was not there before, "removed" if it is not there any more.
    """

    path: str
    how: Literal["changed", "added", "removed"] = "changed"
    before: Any = None
    after: Any = None

    @property
    def in_words(self) -> str:
        """The change in one line, as `amount: 120 → 80`; of a text of several lines only that it has changed."""
        if self.lines is not None:
            return f"{self.path or 'value'}:"
        before = "(not given)" if self.how == "added" else visible_json(self.before, indent=None)
        after = "(not given)" if self.how == "removed" else visible_json(self.after, indent=None)
        return f"{self.path or 'value'}: {before} → {after}"

    @property
    def lines(self) -> list[str] | None:
        """The lines of a long text that were changed, after "- " and "+ ", and some around them; None of all else."""
        texts = (self.before, self.after)
        if not all(isinstance(text, str) for text in texts) or not any(
            "\n" in text or len(text) > _LONG for text in texts
        ):
            return None
        return changed_lines(self.before, self.after)


def changes_between(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield the parts in which two values differ; `1`, `1.0` and `true` do. Keys in another order do not."""
    match before, after:
        case dict(), dict():
            for key in [*before, *(key for key in after if key not in before)]:
                at = f"{path}.{_key(key)}" if path else _key(key)
                if key not in after:
                    yield Change(path=at, how="removed", before=before[key])
                elif key not in before:
                    yield Change(path=at, how="added", after=after[key])
                else:
                    yield from changes_between(before[key], after[key], at)
        case list(), list() if len(before) == len(after):
            for place, pair in enumerate(zip(before, after, strict=True)):
                yield from changes_between(*pair, f"{path}.{place}" if path else str(place))
        case _ if json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            yield Change(path=path, before=before, after=after)


def _key(key: str) -> str:
    return key if key and "." not in key else json.dumps(key, ensure_ascii=False)


async def load_changes(store: Ledger, rows: Sequence[DecisionRecord]) -> list[tuple[Change, ...] | None]:
    """Return what each decision of runs has changed; None if it has no edit, or the store lacks what it was shown."""
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


_Shown = dict[tuple[str, str, str | None], Any]  # what was shown, by run, gate and digest


async def _gate(store: Ledger, row: DecisionRecord, edited: Iterable[DecisionRecord]) -> _Shown:
    """Return what people have been shown at a gate of a pipeline: the value, or what somebody before has made of it."""
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
    """Return the arguments of the calls of a run that people have changed, by their turns' records."""
    wanted = {(row.gate, row.digest) for row in edited if row.journal_key == run}
    found: _Shown = {}
    first = 0
    while wanted:
        turns = range(first, first := first + _TURNS)
        texts = await asyncio.gather(*(store.load_reply(run, turn) for turn in turns))
        for turn, text in zip(turns, texts, strict=True):
            if text is None:
                continue
            try:
                gates = read_record(run, turn, text).gates
            except StandfastError:
                return found
            for gate in [question.gate for question in gates if question.gate is not None]:
                for digest in Gate.read(gate).stages:
                    if (gate["name"], digest) in wanted and "arguments" in gate:
                        wanted.discard((gate["name"], digest))
                        found[run, gate["name"], digest] = gate["arguments"]
        if texts[-1] is None:
            break
    return found
