"""Compares texts line by line in linear time, since anyone may have written them, and JSON values part by part.

`difflib` takes quadratic and, between similar lines, cubic time: 2 KB kept it busy for a minute and a half, and blocked
the process.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

from standfast.messages.texts import visible_json

_LONG = 80  # characters of a value in a line about an edit
_MOST_DIFFERENCES = 20
_MOST_WORDS = 500  # characters of that line
How = Literal["changed", "added", "removed"]
_LEVELS = 8  # of gaps within gaps; each level takes linear time


def line_difference(before: str, after: str) -> list[str]:
    """Return all lines of two texts: common lines after two blanks, the others after "- " and "+ "."""
    old, new = before.split("\n"), after.split("\n")
    found: list[str] = []
    i = j = 0
    for k, m in [*_matches(old, new, (0, len(old)), (0, len(new)), _LEVELS), (len(old), len(new))]:
        found += [f"- {line}" for line in old[i:k]]
        found += [f"+ {line}" for line in new[j:m]]
        found += [f"  {line}" for line in old[k : k + 1]]
        i, j = k + 1, m + 1
    return found


def changed_lines(before: str, after: str, around: int = 1) -> list[str]:
    """Return the lines that differ, and as many lines around them; "  …" represents omitted lines in between."""
    lines = line_difference(before, after)
    near = {at + step for at, line in enumerate(lines) if line[0] != " " for step in range(-around, around + 1)}
    found: list[str] = []
    for at in sorted(near & set(range(len(lines)))):
        if found and at - 1 not in near:
            found.append("  …")
        found.append(lines[at])
    return found


def _matches(
    old: Sequence[str], new: Sequence[str], of_old: tuple[int, int], of_new: tuple[int, int], levels: int
) -> Iterator[tuple[int, int]]:
    """Yield the positions of equal lines, in order: at both ends, and around lines that are unique in both texts."""
    (i, end), (j, stop) = of_old, of_new
    while i < end and j < stop and old[i] == new[j]:
        yield i, j
        i, j = i + 1, j + 1
    same = 0
    while i < end - same and j < stop - same and old[end - same - 1] == new[stop - same - 1]:
        same += 1
    end, stop = end - same, stop - same
    if levels and (anchors := _anchors(old, new, (i, end), (j, stop))):
        for k, m in anchors:
            yield from _matches(old, new, (i, k), (j, m), levels - 1)
            yield k, m
            i, j = k + 1, m + 1
        yield from _matches(old, new, (i, end), (j, stop), levels - 1)
    yield from ((end + at, stop + at) for at in range(same))


def _anchors(
    old: Sequence[str], new: Sequence[str], of_old: tuple[int, int], of_new: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the positions of the most lines that both texts have once, and in the same order."""
    once_old, once_new = Counter(old[slice(*of_old)]), Counter(new[slice(*of_new)])
    places = {new[j]: j for j in range(*of_new) if once_new[new[j]] == 1}
    pairs = [(i, places[old[i]]) for i in range(*of_old) if old[i] in places and once_old[old[i]] == 1]
    ends: list[int] = []  # by length, the smallest position in `new` at which an increasing sequence ends
    last: list[int] = []  # by length, the pair there
    before: list[int] = []  # by pair, the one before it
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        ends[length : length + 1], last[length : length + 1] = [j], [number]
        before.append(last[length - 1] if length else -1)
    found: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def changed_parts(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, How, Any, Any]]:
    """Yield the parts in which two JSON values differ; `1`, `1.0` and `true` differ. The order of keys is ignored.

    Each has its path (keys and indexes joined by dots), the kind of change, and both values.
    """
    match before, after:
        case dict(), dict():
            for key in [*before, *(key for key in after if key not in before)]:
                at = f"{path}.{_key(key)}" if path else _key(key)
                if key not in after:
                    yield at, "removed", before[key], None
                elif key not in before:
                    yield at, "added", None, after[key]
                else:
                    yield from changed_parts(before[key], after[key], at)
        case list(), list() if len(before) == len(after):
            for place, pair in enumerate(zip(before, after, strict=True)):
                yield from changed_parts(*pair, f"{path}.{place}" if path else str(place))
        case _ if json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            yield path, "changed", before, after


def difference_in_words(path: str, how: How, before: Any, after: Any) -> str:
    """Return a difference in one line, such as `amount: 120 → 80`."""
    had = "(not given)" if how == "added" else visible_json(before, indent=None)
    has = "(not given)" if how == "removed" else visible_json(after, indent=None)
    return f"{path or 'value'}: {had} → {has}"


def edit_in_words(before: Any, after: Any) -> str:
    """Return the changes of an edit in one line, which may be cut: people see the edited value beside it."""
    words = "; ".join(
        difference_in_words(path, how, *(_start(value) for value in values))
        for path, how, *values in islice(changed_parts(before, after), _MOST_DIFFERENCES)
    )
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"


def edited_in_words(by: str, changes: str | None) -> str:
    """Return a line that names the editor, and the changes if they are known."""
    return f"Edited {_by_whom(by, changes)}"


def waiting_edit_in_words(by: str, changes: str | None) -> str:
    """Return the text after "Edited" at a gate that still waits: its message may quote the value before the edit."""
    return f"{_by_whom(by, changes)}. The message was written before the edit."


def _by_whom(by: str, changes: str | None) -> str:
    return f"by {by or 'somebody'}{f': {changes}' if changes else ''}"


def _start(value: Any) -> Any:
    """Return a value, or the beginning of a long one as text."""
    text = value if isinstance(value, str) else visible_json(value, indent=None)
    return value if len(text) <= _LONG else f"{text[:_LONG]}…"


def _key(key: str) -> str:
    return key if key and "." not in key else json.dumps(key, ensure_ascii=False)
