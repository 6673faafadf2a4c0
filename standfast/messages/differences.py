"""Compares texts line by line in linear time, since anybody may have written them.

`difflib` takes quadratic and, between similar lines, cubic time: 2 KB kept it busy for a minute and a half, and nothing
else in the process ran meanwhile.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

_LEVELS = 8  # of gaps within gaps; each level takes linear time


def line_difference(before: str, after: str) -> list[str]:
    """Return all lines of two texts: those of both after two blanks, the others after "- " and "+ "."""
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
    """Return the lines that differ, and as many around them; "  …" stands for those left out in between."""
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
    """Yield the places of equal lines, in order: at both ends, and around lines that either text has only once."""
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
    """Return the places of the most lines that both texts have once, and in the same order."""
    once_old, once_new = Counter(old[slice(*of_old)]), Counter(new[slice(*of_new)])
    places = {new[j]: j for j in range(*of_new) if once_new[new[j]] == 1}
    pairs = [(i, places[old[i]]) for i in range(*of_old) if old[i] in places and once_old[old[i]] == 1]
    ends: list[int] = []  # by length, the least place in `new` at which an increasing sequence ends
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
